"""The slow, plain re-computation that the fast code is compared with: json, Decimal, dicts and loops, no numpy.

It shares no code with gpuprof. Times are ns as Python integers.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections import defaultdict
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

DEVICE_CATEGORIES = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "gpu_memcpy": "copy",
    "Memcpy": "copy",
    "gpu_memset": "copy",
    "Memset": "copy",
}


def load(path: Path) -> list[dict]:
    """Events of a whole, valid file, `ts` and `dur` as integer ns."""
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
    return parse(data)


def parse(data: bytes) -> list[dict]:
    document = json.loads(data.decode("utf-8", "replace"), parse_float=str, strict=False)
    events = document["traceEvents"] if isinstance(document, dict) else document
    for event in events:
        for key in ("ts", "dur"):
            if key in event:
                event[key] = ns(event[key])
    return events


def inflate_what_is_there(path: Path) -> bytes:
    """The text of a gzip file up to where it breaks off."""
    return zlib.decompressobj(31).decompress(path.read_bytes())


def ns(value) -> int:
    """Nanoseconds of a number of µs: an int, or a decimal as text."""
    if isinstance(value, int):
        return value * 1000
    whole, _, fraction = value.partition(".")
    if len(fraction) <= 3 and whole.isdigit() and fraction.isdigit():
        return int(whole) * 1000 + int(fraction.ljust(3, "0"))
    return int((Decimal(value) * 1000).to_integral_value(ROUND_HALF_UP))


def device_work(events: list[dict]) -> dict[int, list[tuple[int, int, str]]]:
    """Device → (start, end, "compute" | "communication" | "copy")."""
    work = defaultdict(list)
    for e in events:
        kind = DEVICE_CATEGORIES.get(e.get("cat", ""))
        if e.get("ph") == "X" and kind:
            args = e.get("args") or {}
            device = args.get("device", e["pid"])
            if kind == "kernel":
                kind = "communication" if "nccl" in e["name"].lower() else "compute"
            work[device].append((e["ts"], e["ts"] + e["dur"], kind))
    return work


def partition(work: list[tuple[int, int, str]], low: int, high: int) -> dict[str, int]:
    """Time of [low, high) by what runs, compute before communication before copy before idle: a sweep."""
    edges = []
    for start, end, kind in work:
        start, end = max(start, low), min(end, high)
        if end > start:
            edges += [(start, 1, kind), (end, -1, kind)]
    edges.sort()
    running: dict[str, int] = dict.fromkeys(("compute", "communication", "copy"), 0)
    totals: dict[str, int] = dict.fromkeys((*running, "idle"), 0)
    at = low
    for t, change, kind in edges:
        state = next((k for k, n in running.items() if n), "idle")
        totals[state] += t - at
        at = t
        running[kind] += change
    totals["idle"] += high - at
    return totals


def idle_intervals(work: list[tuple[int, int, str]], low: int, high: int) -> list[tuple[int, int]]:
    """Maximal parts of [low, high) in which nothing runs."""
    gaps, at = [], low
    for start, end, _ in sorted((max(s, low), min(e, high), k) for s, e, k in work if min(e, high) > max(s, low)):
        if start > at:
            gaps.append((at, start))
        at = max(at, end)
    if high > at:
        gaps.append((at, high))
    return gaps
