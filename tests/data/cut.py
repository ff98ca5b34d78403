"""Cuts whole steps out of a Kineto trace, keeping the text of every event as it was written.

    python tests/data/cut.py IN.json.gz OUT.json.gz --steps 1 [--drop cpu_instant_event]

Kept: host events that begin inside the chosen ProfilerSteps, the GPU work that they launched (by correlation), arrows
with both ends kept, and all metadata. This is how the recordings beside this file were made.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
from pathlib import Path

EVENT = re.compile(r"\n  \{\n.*?\n  \}(?=,\n|\n)", re.DOTALL)
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function", "cpu_instant_event"}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--first", type=int, default=0, help="index of the first step to keep")
    parser.add_argument("--steps", type=int, default=1)
    parser.add_argument("--drop", action="append", default=[], help="category to leave out")
    args = parser.parse_args()
    with gzip.open(args.source, "rt", encoding="utf-8") as file:
        text = file.read()
    start = text.index('"traceEvents": [') + len('"traceEvents": [')
    end = text.rindex("\n  ]")
    events = [(m[0], json.loads(m[0], strict=False)) for m in EVENT.finditer(text, start, end + 1)]
    kept = choose(events, args.first, args.steps, set(args.drop))
    body = text[:start] + ",".join(kept) + text[end:]
    with Path(args.target).open("wb") as raw, gzip.GzipFile("", "wb", 9, raw, mtime=0) as file:
        file.write(body.encode())
    print(f"{len(kept):,} of {len(events):,} events")


def choose(events: list[tuple[str, dict]], first: int, count: int, drop: set[str]) -> list[str]:
    """The text of the events that belong to the chosen steps."""
    steps = sorted(
        (e["ts"], e["ts"] + e["dur"])
        for _, e in events
        if e.get("cat") == "user_annotation" and e["name"].startswith("ProfilerStep")
    )[first : first + count]
    low, high = steps[0][0], steps[-1][1]

    def inside(event: dict) -> bool:
        return low <= event["ts"] < high

    launched = {
        e["args"]["correlation"] for _, e in events if e.get("cat") in ("cuda_runtime", "cuda_driver") and inside(e)
    }
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
            return inside(event) or opened
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
        text
        for text, e in chosen
        if e.get("ph") not in ("s", "f") or arrows.get((e["cat"], e["id"], "f" if e["ph"] == "s" else "s"))
    ]


if __name__ == "__main__":
    main()
