"""Recordings that are compared with each other."""

from __future__ import annotations

import functools
from dataclasses import replace

from gpuprof.diagnosis.comparison.compare import compare
from gpuprof.diagnosis.comparison.comparison import Comparison
from gpuprof.diagnosis.detect.pair.cells import Cells
from gpuprof.diagnosis.detect.pair.counts import Counts, OpTable
from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.diagnosis.detect.pair.kernel_table import KernelTable
from gpuprof.diagnosis.detect.pair.side import Side
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.value_range import Range
from helpers import diagnosed as recordings
from helpers.paths import ROOT

MS = 1_000_000


PAIRS = ROOT / "tests" / "data" / "pairs"


RUNS = ROOT / "tests" / "data" / "runs"


NOTHING = Counts({}, {}, 0, 0, 0, 0, 0, 0, 0, 0, None)
"""Counts of a step in which nothing was counted."""


def diagnosed(name: str) -> Diagnosis:
    path = PAIRS / f"{name}.json.gz"
    return recordings.diagnosed(path if path.exists() else ROOT / name)  # a path from the root, or a whole one


@functools.cache
def compared(a: str, b: str) -> Comparison:
    return compare(diagnosed(a), diagnosed(b))


def check_sums(c: Comparison) -> None:
    """Everything that is said to sum to something does, to the nanosecond."""
    step = c.step
    assert step.difference_ns == step.b_ns - step.a_ns
    for rows in (c.terms, c.phases):
        assert sum(row.a_ns for row in rows) == step.a_ns
        assert sum(row.b_ns for row in rows) == step.b_ns
        assert sum(row.difference_ns for row in rows) == step.difference_ns
        assert all(row.a_ns >= 0 and row.b_ns >= 0 for row in rows)
    for term in c.terms:
        assert sum(part.difference_ns for part in term.phases) == term.difference_ns
        assert sum(part.a_ns for part in term.phases) == term.a_ns
    assert sum(one.difference_ns for one in c.mechanisms) + c.unexplained_ns == step.difference_ns
    for one in c.mechanisms:
        assert sum(part.difference_ns for part in one.phases) == one.difference_ns
    k = c.kernels
    assert k.count_ns + k.duration_ns == k.difference_ns == k.b_ns - k.a_ns
    assert sum(row.difference_ns for row in k.rows) + k.rest_ns == k.difference_ns
    assert all(row.count_ns + row.duration_ns == row.difference_ns for row in k.rows)


def make_facts(cells: Cells, counts: Counts, findings: tuple[str, ...] = (), **changes) -> Facts:
    """One side of a comparison: cells of its step, what was counted, and the findings that advise something."""
    step = sum(cells.values())
    side = Side(
        path="x.json", kind="kineto", quality="ok", bound="host", cause="launch", gpu="NVIDIA H200", rank=None,
        world_size=None, device=0, steps=1, step_ns=step, known="estimated", recorded_ns=step, tokens=None,
        real_tokens=None, samples=None, product_flops=None, products=100,
        kernels=counts.total, launches=counts.launches, syncs=counts.syncs, peak_bytes=None,
    )  # fmt: skip
    found_there = tuple(
        Finding(name, name, "high", (), "do it", Range(1.0, 2.0, 3.0), Range(1.0, 1.5, 2.0)) for name in findings
    )
    table = KernelTable(1, {}, {})
    return Facts(replace(side, **changes), cells, counts, table, OpTable({}, {}), found_there)
