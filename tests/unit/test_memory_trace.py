"""Memory events of a trace: sums that fit the allocator's totals, and owners by phase and op."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.make_trace import TraceBuilder

from gpuprof.errors import UnreadableTrace
from gpuprof.memory.load_memory import load_memory

MS = 1_000_000
MAIN = 100


def trace(events: list[tuple[int, int, int]], before: int = 1000, total: int | None = None) -> TraceBuilder:
    """A step of forward, loss, backward and optimizer with memory events (time in ms, address, bytes)."""
    builder = TraceBuilder()
    builder.step(1, 0, 40 * MS)
    builder.op("aten::linear", 1 * MS, 5 * MS)
    builder.op("aten::mm", 2 * MS, 4 * MS)
    builder.op("aten::cross_entropy_loss", 6 * MS, 9 * MS)
    builder.op("autograd::engine::evaluate_function: AddmmBackward0", 11 * MS, 19 * MS)
    builder.op("Optimizer.step#AdamW.step", 21 * MS, 29 * MS, cat="user_annotation")
    builder.launch("gemm", (3 * MS, 3 * MS + 10), (4 * MS, 5 * MS))
    held = before
    for at, address, size in events:
        held += size
        args = {"Total Allocated": total or held, "Total Reserved": 9000, "Device Type": 1, "Device Id": 0,
                "Addr": address, "Bytes": size}  # fmt: skip
        builder.event(ph="i", cat="cpu_instant_event", name="[memory]", pid=1, tid=MAIN, ts=at * MS, s="t", args=args)
    return builder


def test_parts_sum_to_the_allocators_totals(tmp_path: Path):
    events = [(3, 1, 400), (7, 2, 300), (12, 3, 50), (13, 2, -300), (14, 1, -400), (15, 9, -200), (22, 4, 20)]
    report = load_memory(trace(events).write(tmp_path / "a.json"))
    (device,) = report.devices
    peak = device.peak
    assert (peak.allocated_bytes, peak.reserved_bytes, peak.event) == (1750, 9000, 2)
    assert {one.owner: one.bytes for one in peak.owners} == {
        "before_history": 1000, "activations": 400, "logits": 300, "gradients": 50, "unused": 7250,
    }  # fmt: skip
    assert device.before_bytes == 1000
    assert [issue.id for issue in report.issues] == ["no_stacks"]
    assert ("aten::linear", None) in {(line.function, line.line) for line in peak.lines}


def test_lost_events_are_reported(tmp_path: Path):
    report = load_memory(trace([(3, 1, 400), (7, 2, 300)], total=5000).write(tmp_path / "a.json"))
    assert "totals_disagree" in [issue.id for issue in report.issues]


def test_a_trace_without_memory_events_says_how_to_record_them(tmp_path: Path):
    with pytest.raises(UnreadableTrace, match="profile_memory=True"):
        load_memory(trace([]).write(tmp_path / "a.json"))
