"""Owners, phases and lines sum to the peak exactly, whatever the history; compared with a plain replay."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.memory_snapshot import Allocator, Program
from gpuprof.errors import UnreadableTrace
from gpuprof.memory.analyse import analyse
from gpuprof.memory.snapshot import from_data, read_snapshot

SIZES = (1, 511, 512, 4096, 1 << 20, (1 << 20) + 7, 21 << 20)


@dataclass
class State:
    """What is in use after an event, by kind."""

    live: dict[int, tuple[int, int, bool]]
    """Address → (bytes, number of its stack, whether it waits)."""
    reserved: int


def stacks() -> list[list[dict]]:
    program = Program(2)
    return [
        program.load(), program.adapter(), program.block(7), program.block(8), program.head(), program.loss(3),
        program.backward(), program.backward("torch::autograd::AccumulateGrad"), program.optimizer(),
        program.optimizer("_multi_tensor_adamw"), program.mine(5), [],
    ]  # fmt: skip


STACKS = stacks()

commands = st.lists(
    st.tuples(
        st.sampled_from(["alloc", "alloc", "alloc", "free", "free", "wait", "complete", "fail"]),
        st.integers(0, 50), st.sampled_from(SIZES), st.integers(0, len(STACKS) - 1),
    ),
    max_size=60,
)  # fmt: skip


def played(steps: list[tuple[str, int, int, int]], most: int | None) -> tuple[Allocator, list[State]]:
    """Plays commands; returns the state before the first event and after each, from plain separate book-keeping."""
    allocator, states, live = Allocator(most=most), [State({}, 0)], {}

    def note(before: int) -> None:
        """One state per event; segments grow first, memory is taken with the last event."""
        reserved = sum(segment["total_size"] for segment in allocator.segments)
        for _ in range(before):
            states.append(State(dict(live), reserved))

    for what, pick, size, stack in steps:
        counted = allocator.count
        waiting = sorted(a for a, one in live.items() if one[2])
        held = sorted(a for a, one in live.items() if not one[2])
        if what == "alloc":
            address = allocator.alloc(size, STACKS[stack])
            note(allocator.count - counted - 1)  # the segment, if one was needed
            live[address] = (size, stack, False)
            note(1)
        elif what == "free" and held:
            address = held[pick % len(held)]
            allocator.free(address)
            live[address] = (*live[address][:2], True)
            note(1)
            del live[address]
            note(1)
        elif what == "wait" and held:
            address = held[pick % len(held)]
            allocator.free(address, waits=True)
            live[address] = (*live[address][:2], True)
            note(1)
        elif what == "complete" and waiting:
            address = waiting[pick % len(waiting)]
            allocator.complete(address)
            del live[address]
            note(1)
        elif what == "fail":
            allocator.fail(size, pick, STACKS[stack])
            note(1)
    return allocator, states


@given(commands, st.one_of(st.none(), st.integers(1, 40)))
def test_peak_is_that_of_a_plain_replay_and_its_parts_sum_to_it(steps, most):
    allocator, states = played(steps, most)
    if not states[1:]:
        return
    data = pickle.loads(pickle.dumps(allocator.snapshot()))
    device = analyse(from_data(data), lines=3).devices[0]
    seen = states[len(states) - 1 - len(allocator.events) :]
    used = [sum(size for size, _, _ in state.live.values()) for state in seen]
    peak, at = device.peak, used.index(max(used))
    assert peak.event == at - 1
    assert peak.allocated_bytes == max(used)
    assert peak.reserved_bytes == seen[at].reserved
    assert device.before_bytes == used[0]
    assert device.reserved_peak_bytes == max(state.reserved for state in seen)
    assert sum(one.bytes for one in peak.owners) == peak.reserved_bytes
    assert sum(one.bytes for one in peak.phases) == peak.allocated_bytes
    assert sum(one.bytes for one in peak.lines) + peak.lines_rest_bytes == peak.allocated_bytes
    held = {one.owner: one for one in peak.owners}
    waiting = [size for size, _, waits in seen[at].live.values() if waits]
    assert (held["awaiting_free"].bytes if waiting else 0) == sum(waiting)
    assert sum(one.count for one in peak.owners) == len(seen[at].live)
    if most is None:
        for owner, numbers in (("weights", {0}), ("adapters", {1}), ("logits", {4, 5})):
            mine = [size for size, stack, waits in seen[at].live.values() if stack in numbers and not waits]
            if owner != "logits":
                assert (held[owner].bytes if owner in held else 0) == sum(mine)
    series = device.series
    for row, event in enumerate(series.event):
        assert sum(values[row] for values in series.owners.values()) == used[event + 1]
        assert series.reserved_bytes is not None and series.reserved_bytes[row] == seen[event + 1].reserved


@given(st.binary(min_size=1, max_size=40), st.integers(0, 2000), st.integers(1, 2000))
def test_damaged_snapshots_get_one_line(tmp_path_factory, junk, at, cut):
    allocator = Allocator()
    address = allocator.alloc(4096, STACKS[2])
    allocator.free(address)
    allocator.alloc(512, STACKS[5])
    whole = pickle.dumps(allocator.snapshot())
    at %= len(whole)
    path: Path = tmp_path_factory.getbasetemp() / "damaged.pickle"
    path.write_bytes((whole[:at] + junk + whole[at + len(junk) :])[: cut + len(whole) // 2])
    try:
        report = analyse(read_snapshot(path))
    except UnreadableTrace as error:
        assert str(error).count("\n") == 0 and str(path) in str(error)
    else:
        for device in report.devices:
            total = device.peak.allocated_bytes if device.peak.reserved_bytes is None else device.peak.reserved_bytes
            assert sum(one.bytes for one in device.peak.owners) == total


@pytest.mark.parametrize("most", [7, 60, 400])
def test_a_history_that_was_cut_knows_what_was_there_before(most):
    steps = [("alloc", 0, 1 << 20, i % 6) for i in range(30)] + [("free", i, 1, 0) for i in range(20)]
    allocator, states = played(steps, most)
    device = analyse(from_data(allocator.snapshot())).devices[0]
    assert device.before_bytes == sum(one[0] for one in states[len(states) - 1 - len(allocator.events)].live.values())
