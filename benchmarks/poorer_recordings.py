"""Copies of recordings with a known truth from which evidence is left out, as poorer recorders leave it out.

What limits the program stays what it was, so these say whether confidence falls where a verdict may be wrong.
"""

from __future__ import annotations

import gzip
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from benchmarks.accuracy import Case, pairs

Events = list[dict]
CALLS = ("cuda_runtime", "cuda_driver")
WORK = ("kernel", "gpu_memcpy", "gpu_memset")
STEP = "ProfilerStep"
KEPT = 0.5
"""Share of the kernels that is kept if some are lost, and of the CPU's time if a recording ends early."""


def without_shapes(events: Events) -> Events:
    """As without record_shapes."""
    return [
        e | {"args": {k: v for k, v in e["args"].items() if not k.startswith(("Input", "Concrete"))}}
        if e.get("cat") == "cpu_op" else e
        for e in events
    ]  # fmt: skip


def without_ops(events: Events) -> Events:
    """As with CUDA activities only."""
    return [e for e in events if e.get("cat") not in ("cpu_op", "fwdbwd")]


def without_launches(events: Events) -> Events:
    """Work that cannot be linked to what launched it."""
    return [e for e in events if e.get("cat") not in (*CALLS, "ac2g")]


def without_steps(events: Events) -> Events:
    """As without profiler.step()."""
    return [e for e in events if not str(e.get("name", "")).startswith(STEP)]


def early_end(events: Events) -> Events:
    """A host whose events end half-way, while the steps and the GPU's work go on."""
    timed = [e for e in events if "ts" in e and e.get("ph") == "X"]
    low, high = min(e["ts"] for e in timed), max(e["ts"] + e.get("dur", 0) for e in timed)
    end = low + KEPT * (high - low)
    host = ("cpu_op", *CALLS)
    return [e for e in events if e.get("cat") not in host or e["ts"] < end]


def half_the_kernels(events: Events) -> Events:
    """As where buffers overflowed."""
    rng = random.Random(1)
    return [e for e in events if e.get("cat") not in WORK or rng.random() < KEPT]


LEFT_OUT: tuple[Callable[[Events], Events], ...] = (
    without_shapes, without_ops, without_launches, without_steps, early_end, half_the_kernels,
)  # fmt: skip


def poorer() -> Iterator[Case]:
    """Each recording of tests/data/pairs with a known verdict, once without each kind of evidence."""
    with tempfile.TemporaryDirectory() as folder:
        for case in pairs():
            if case.verdict is None:
                continue
            with gzip.open(case.path, "rt", encoding="utf-8") as file:
                document = json.load(file)
            for change in LEFT_OUT:
                path = Path(folder) / "trace.json"
                path.write_text(json.dumps(document | {"traceEvents": change(document["traceEvents"])}))
                yield replace(case, name=f"{case.name}.{change.__name__}", path=path)
