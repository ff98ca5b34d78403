"""Cuts whole steps out of a Kineto trace, keeping the text of every event as it was written.

    python tests/data/cut.py IN.json.gz OUT.json.gz --steps 1 [--drop cpu_instant_event]

Kept: host events that begin inside the chosen ProfilerSteps, the GPU work that they launched (by correlation), arrows
with both ends kept, and all metadata. This is how the recordings next to this file were made; those in runs/ by
`cut_run.py`, which uses it.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from bisect import bisect_left
from collections import defaultdict
from pathlib import Path

EVENT = re.compile(r"\n  \{\n.*?\n  \}(?=,\n|\n)", re.DOTALL)
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function", "cpu_instant_event"}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"}
CALLS = {"cuda_runtime", "cuda_driver"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--first", type=int, default=0, help="index of the first step to keep")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--drop", action="append", default=[], help="category to leave out")
    args = parser.parse_args()
    head, events, tail = read(args.source)
    kept = [text for text, _ in choose(events, args.first, args.steps, set(args.drop))]
    write(args.target, head + ",".join(kept) + tail)
    print(f"{len(kept):,} of {len(events):,} events")


def read(source: str | Path) -> tuple[str, list[tuple[str, dict]], str]:
    """What stands before the events, the text and the value of each, and what stands behind them."""
    with gzip.open(source, "rt", encoding="utf-8") as file:
        text = file.read()
    start = text.index('"traceEvents": [') + len('"traceEvents": [')
    end = text.rindex("\n  ]")
    events = [(m[0], json.loads(m[0], strict=False)) for m in EVENT.finditer(text, start, end + 1)]
    return text[:start], events, text[end:]


def write(target: str | Path, text: str) -> None:
    """The same bytes whenever it is done again."""
    with Path(target).open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(text.encode())


def choose(
    events: list[tuple[str, dict]], first: int, count: int, drop: set[str], running: bool = False
) -> list[tuple[str, dict]]:
    """The events that belong to the chosen steps.

    `running`: also the GPU work of earlier steps that still runs in them, with its launch and the ops around that.
    """
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for _, e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep")
    )[first : first + count]
    low, high = steps[0][0], steps[-1][1]

    def inside(event: dict) -> bool:
        return low <= event["ts"] < high

    launched = {e["args"]["correlation"] for _, e in events if e.get("cat") in CALLS and inside(e)}
    earlier: dict[tuple, list[float]] = defaultdict(list)
    if running:
        still = {
            e["args"]["correlation"]
            for _, e in events
            if e.get("cat") in DEVICE and e["ts"] < high and e["ts"] + e["dur"] > low
        } - launched
        for _, e in events:
            if e.get("cat") in CALLS and e["args"]["correlation"] in still:
                earlier[e["pid"], e["tid"]].append(e["ts"])
        launched |= still
        for times in earlier.values():
            times.sort()

    def around_earlier(event: dict) -> bool:
        return not event["name"].startswith("ProfilerStep") and holds(earlier[event["pid"], event["tid"]], event)

    device_starts = {
        (e["pid"], e["tid"], e["ts"])
        for _, e in events
        if e.get("cat") in DEVICE and e["args"]["correlation"] in launched
    }
    arrows: dict[tuple, int] = {}

    def keep(event: dict) -> bool:
        category = event.get("cat")
        if category in drop:
            return False
        if event.get("ph") in ("s", "f"):
            return inside(event) or (event["pid"], event["tid"], event["ts"]) in device_starts
        if category in HOST or category == "overhead":
            # Frames that were open when the step began belong to its stacks.
            opened = category == "python_function" and event["ts"] < low < event["ts"] + event["dur"]
            return inside(event) or opened or around_earlier(event)
        if category in DEVICE:
            return event["args"]["correlation"] in launched
        if category == "gpu_user_annotation":
            return inside(event)
        return True

    chosen = [(text, e) for text, e in events if keep(e)]
    for _, e in chosen:
        if e.get("ph") in ("s", "f"):
            arrows[e["cat"], e["id"], e["ph"]] = 1
    return [
        (text, e)
        for text, e in chosen
        if e.get("ph") not in ("s", "f") or arrows.get((e["cat"], e["id"], "f" if e["ph"] == "s" else "s"))
    ]


def holds(times: list[float], event: dict) -> bool:
    """Whether one of the times, which are in order, lies in an event."""
    k = bisect_left(times, event["ts"])
    return k < len(times) and times[k] <= event["ts"] + event["dur"]


if __name__ == "__main__":
    main()
