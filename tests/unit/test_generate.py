"""Generated traces are what they claim to be: the same in every layout, nested, in order, and linked."""

from __future__ import annotations

import json
from collections import defaultdict
from decimal import Decimal
from itertools import pairwise
from pathlib import Path

import pytest

pytest.importorskip("numpy")
from benchmarks.generate import generate, recorded, size, written
from benchmarks.layouts import LAYOUTS

NBYTES = 4_000_000
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver"}
GPU = {"kernel", "gpu_memcpy", "gpu_memset"}


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """The same run in each layout, parsed, with times as exact decimals."""
    step, steps = recorded(NBYTES, None, LAYOUTS["kineto"], seed=1)
    parsed = {}
    for name, layout in LAYOUTS.items():
        path = tmp_path_factory.mktemp("traces") / f"{name}.json"
        with path.open("w") as out:
            written(out, "same", layout, step, steps, seed=1)
        parsed[name] = json.loads(path.read_text(), parse_float=Decimal)
    return parsed


def spans(trace: dict, categories: set[str]) -> dict[tuple, list[tuple[int, int]]]:
    """Start and end in ns of each event, by pid and tid."""
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event.get("cat") in categories and event["ph"] == "X":
            start = int(event["ts"] * 1000)
            found[event["pid"], event["tid"]].append((start, start + int(event["dur"] * 1000)))
    return found


@pytest.mark.parametrize("layout", sorted(set(LAYOUTS) - {"kineto"}))
def test_layouts_say_the_same(traces: dict[str, dict], layout: str):
    def comparable(trace: dict) -> tuple[dict, list[str]]:
        events = sorted(json.dumps(event, sort_keys=True, default=str) for event in trace["traceEvents"])
        return {key: value for key, value in trace.items() if key != "traceEvents"}, events

    assert comparable(traces[layout]) == comparable(traces["kineto"])


def test_host_events_nest(traces: dict[str, dict]):
    threads = spans(traces["kineto"], HOST)
    assert len(threads) == 2
    for events in threads.values():
        open_until = []
        for start, end in sorted(events, key=lambda event: (event[0], -event[1])):
            assert start < end
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1]
            open_until.append(end)


def test_gpu_work_of_a_stream_does_not_overlap(traces: dict[str, dict]):
    streams = spans(traces["kineto"], GPU)
    assert len(streams) == 2
    for events in streams.values():
        in_order = sorted(events)
        assert all(before[1] < after[0] for before, after in pairwise(in_order))


def test_gpu_work_is_linked_to_its_launch_and_op(traces: dict[str, dict]):
    events = traces["kineto"]["traceEvents"]
    by_category = defaultdict(list)
    for event in events:
        by_category[event.get("cat")].append(event)
    calls = {e["args"]["correlation"]: e for e in by_category["cuda_runtime"] + by_category["cuda_driver"]}
    ops = {event["args"]["External id"]: event for event in by_category["cpu_op"]}
    assert len(calls) == len(by_category["cuda_runtime"]) + len(by_category["cuda_driver"])
    assert len(ops) == len(by_category["cpu_op"])
    for event in by_category["kernel"] + by_category["gpu_memcpy"] + by_category["gpu_memset"]:
        call = calls[event["args"]["correlation"]]
        op = ops[event["args"]["External id"]]
        assert op["ts"] < call["ts"] < event["ts"]
        assert call["ts"] + call["dur"] < op["ts"] + op["dur"]


def test_flows_come_in_pairs(traces: dict[str, dict]):
    ends = defaultdict(list)
    for event in traces["kineto"]["traceEvents"]:
        if event["ph"] in "sf" and event["cat"] == "fwdbwd":
            ends[event["id"]].append((event["ph"], event["ts"]))
    assert ends
    for pair in ends.values():
        assert sorted(phase for phase, _ in pair) == ["f", "s"]
        assert max(pair, key=lambda end: end[1])[0] == "f"


def test_the_same_options_give_the_same_bytes(tmp_path: Path):
    first, second = tmp_path / "a.json.gz", tmp_path / "b" / "a.json.gz"
    second.parent.mkdir()
    for path in (first, second):
        generate(path, NBYTES)
    assert first.read_bytes() == second.read_bytes()


@pytest.mark.parametrize("nbytes", [5_000_000, pytest.param(20_000_000, marks=pytest.mark.slow)])
def test_size_is_about_what_was_asked_for(tmp_path: Path, nbytes: int):
    generate(tmp_path / "a.json", nbytes)
    assert (tmp_path / "a.json").stat().st_size == pytest.approx(nbytes, rel=0.1)


def test_sizes_are_read_with_their_units():
    assert [size("250MB"), size("1.5g"), size("4096")] == [250_000_000, 1_500_000_000, 4096]
