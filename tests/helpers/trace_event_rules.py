"""The rules of Chrome's trace format, event by event: an oracle that shares no code with the writer."""

from __future__ import annotations

import gc
import gzip
import json
from bisect import bisect_right
from collections import defaultdict
from decimal import Decimal
from pathlib import Path
from typing import Any

PHASES = {"X", "M", "s", "f", "C"}
METADATA = {"process_name", "process_sort_index", "thread_name", "thread_sort_index"}


def read(path: Path) -> dict[str, Any]:
    """The document, with exact decimal numbers; anything that is not valid JSON is refused."""

    def refuse(text: str) -> None:
        raise AssertionError(f"{text} is no JSON")

    text = gzip.decompress(path.read_bytes()).decode("utf-8")
    assert text.isascii()
    gc.disable()  # it would look through millions of new objects again and again, half of the time
    try:
        return json.loads(text, parse_float=Decimal, parse_constant=refuse)
    finally:
        gc.enable()


def nanoseconds(micros: Decimal | int) -> int:
    ns = Decimal(micros) * 1000
    assert ns == int(ns), micros
    return int(ns)


def check(document: dict[str, Any]) -> None:
    """Raises AssertionError for anything that a viewer would reject or misread."""
    events = document["traceEvents"]
    assert {e["ph"] for e in events} <= PHASES
    named: set[tuple[int, int]] = set()
    processes: set[int] = set()
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    arrows: dict[int, dict[str, dict]] = defaultdict(dict)
    for event in events:
        assert type(event["pid"]) is int and type(event["tid"]) is int, event
        assert isinstance(event["name"], str), event
        if event["ph"] == "M":
            assert event["name"] in METADATA, event
            if event["name"] == "thread_name":
                named.add((event["pid"], event["tid"]))
            elif event["name"] == "process_name":
                processes.add(event["pid"])
            continue
        start = nanoseconds(event["ts"])
        if event["ph"] == "X":
            length = nanoseconds(event["dur"])
            assert length >= 0, event
            assert isinstance(event["args"], dict), event
            tracks[event["pid"], event["tid"]].append((start, start + length))
        elif event["ph"] == "C":
            assert event["args"] and all(isinstance(v, (int, Decimal)) for v in event["args"].values()), event
        else:
            assert event["ph"] not in arrows[event["id"]], f"two ends of one kind: {event}"
            arrows[event["id"]][event["ph"]] = event
    assert set(tracks) <= named
    assert {pid for pid, _ in tracks} <= processes
    assert len({tid for _, tid in named}) == len(named), "a tid stands for two threads"
    for track, spans in tracks.items():
        check_track(spans, str(track))
    for ends in arrows.values():
        check_arrow(ends, tracks)


def check_track(spans: list[tuple[int, int]], track: str = "") -> None:
    """Spans in the order of the file: no child before its parent, each in the other or apart."""
    open_ends: list[int] = []
    before = None
    for start, end in spans:
        assert before is None or start >= before, f"{track}: {start} after {before}"
        before = start
        while open_ends and open_ends[-1] <= start:
            open_ends.pop()
        assert not open_ends or end <= open_ends[-1], f"{track}: [{start}, {end}) reaches past {open_ends[-1]}"
        open_ends.append(end)


def check_arrow(ends: dict[str, dict], tracks: dict[tuple[int, int], list[tuple[int, int]]]) -> None:
    """Both ends there, in the order of time, each inside a span of its track."""
    assert set(ends) == {"s", "f"}, ends
    begin, end = ends["s"], ends["f"]
    assert end["bp"] == "e" and begin["cat"] == end["cat"] and begin["name"] == end["name"]
    assert begin["ts"] <= end["ts"]
    for event in (begin, end):
        at, spans = nanoseconds(event["ts"]), tracks[event["pid"], event["tid"]]
        k = bisect_right(spans, at, key=lambda span: span[0])
        near = spans[max(k - 2000, 0) : k]
        assert any(low <= at < high for low, high in reversed(near)), event
