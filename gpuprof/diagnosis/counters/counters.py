"""Compares Nsight Compute's counters with the limits that the roofline gives for the same kernels.

A kernel of the table is matched by name and launch size. Nsight Compute and the profiler write the same name in
different ways, so parameter types and blanks are ignored.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.costs.split import LATENCY, NO_BOUND, PARTS
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.counters.largest_kernels import own_name
from gpuprof.diagnosis.result.counters_model import CountedKernel, Counters, Limiter
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.errors import GpuprofError
from gpuprof.tracefile.nsight_compute import DRAM, DURATION, ISSUE, SM, TENSOR, Counted
from gpuprof.tracefile.trace import KERNEL
from gpuprof.units import Convention, Rows

MOST_SHOWN: Convention[Rows] = 10
_CLAIM: dict[Limiter, str] = {"tensor": "compute", "issue": "compute", "memory": "memory", "latency": "latency"}
"""The roofline's limit for a kernel with that limiter: the roofline counts FLOPs on tensor cores and elsewhere."""
_CLASS = re.compile(r"\b[A-Z][a-z]\w*")


def with_counters(diagnosis: Diagnosis, counted: Sequence[Counted]) -> Diagnosis:
    """The diagnosis with the counters of its kernels. Raises GpuprofError if none of these kernels is in the recording,
    or if kernels' limits are unknown."""
    case = None if diagnosis.sensitivities is None else analysis_of(diagnosis)
    if case is None or case.roofline is None:
        raise GpuprofError("--ncu: what limits kernels is not known of this recording, so counters cannot be compared")
    found = _compared(case, counted)
    if not found.largest:
        raise GpuprofError("--ncu: no kernel of the table is in this recording; count kernels of the same program")
    return replace(diagnosis, counters=found)


def _compared(case: Analysis, counted: Sequence[Counted]) -> Counters:
    """Counters and roofline limits of the kernels that are in both the recording and the table."""
    assert case.roofline is not None
    gpu, rows = case.trace.gpu, case.timeline.members
    rows = rows[gpu.kind[rows] == KERNEL]
    took = (gpu.end_ns - gpu.start_ns)[rows].clip(0)
    metrics: dict[tuple[object, ...], list[Counted]] = {}
    by_function: dict[tuple[object, ...], list[Counted]] = {}
    for one in counted:
        if DRAM in one.metrics and (TENSOR in one.metrics or SM in one.metrics):
            metrics.setdefault((_plain(one.name), *one.grid, *one.block), []).append(one)
            by_function.setdefault((own_name(one.name), *one.grid, *one.block), []).append(one)
    plain = {name: _plain(case.trace.strings[name]) for name in np.unique(gpu.name[rows]).tolist()}
    launch = [getattr(gpu, f"{what}_{axis}") for what in ("grid", "block") for axis in "xyz"]
    groups: dict[tuple[object, ...], list[int]] = {}
    for at, row in enumerate(rows.tolist()):
        groups.setdefault((plain[int(gpu.name[row])], *(int(column[row]) for column in launch)), []).append(at)
    bound = case.roofline.split.bound[rows]
    lines, agreeing, claimed_ns, matched = [], 0, 0, 0
    for key, places in groups.items():
        # A mangled name has no arguments to compare.
        mine = metrics.get(key) or (by_function.get(key) if " " not in str(key[0]) else None)
        if not mine:
            continue
        line = _line(case, mine, rows[places], took[places], bound[places])
        ns = int(took[places].sum())
        matched += ns
        if line.agrees is not None:
            claimed_ns += ns
            agreeing += ns if line.agrees else 0
        lines.append(line)
    lines.sort(key=lambda one: -one.ns)
    return Counters(
        kernels=len(counted),
        matched_share=matched / max(int(took.sum()), 1),
        agreeing_share=agreeing / claimed_ns if claimed_ns else None,
        largest=tuple(lines[:MOST_SHOWN]),
    )


def _line(
    case: Analysis, counted: list[Counted], rows: np.ndarray, took: np.ndarray, bound: np.ndarray
) -> CountedKernel:
    mean = {name: _mean(counted, name) for name in (TENSOR, DRAM, SM, ISSUE, DURATION)}
    shares = np.array([int(took[bound == code].sum()) for code in range(LATENCY + 1)])
    claimed = PARTS[int(shares.argmax())] if 2 * shares.sum() > took.sum() and (bound != NO_BOUND).any() else None
    limiter = _limiter(mean, claimed)
    took_counted = mean[DURATION]
    return CountedKernel(
        name=case.trace.strings[int(case.trace.gpu.name[rows[0]])],
        ns=round(int(took.sum()) / case.steps),
        count=len(rows),
        claimed=claimed,
        counted=limiter,
        agrees=None if claimed is None else claimed == _CLAIM[limiter],
        tensor_percent=mean[TENSOR],
        dram_percent=mean[DRAM] or 0.0,
        sm_percent=mean[SM],
        issue_percent=mean[ISSUE],
        counted_ns=None if took_counted is None else round(took_counted),
    )


def _mean(counted: list[Counted], name: str) -> float | None:
    values = [one.metrics[name] for one in counted if name in one.metrics]
    return float(np.mean(values)) if values else None


def _limiter(mean: dict[str, float | None], claimed: str | None) -> Limiter:
    """The busiest of tensor pipes, memory and issue slots; latency if that is claimed and none is used much.

    Without a tensor pipe counter, the busiest part of the SMs is used instead.
    """
    used: dict[Limiter, float] = {
        "tensor": (mean[SM] if mean[TENSOR] is None else mean[TENSOR]) or 0.0,
        "memory": mean[DRAM] or 0.0,
        "issue": mean[ISSUE] or 0.0,
    }
    largest = max(used, key=lambda each: used[each])
    return "latency" if claimed == "latency" and used[largest] < calibrated.COUNTER_USED.value else largest


def _plain(name: str) -> str:
    """A kernel's own name with the classes among its parameters: `vectorized_elementwise_kernel FillFunctor`.
    Namespaces, plain types and lambda numbers depend on which tool writes the name."""
    rest = name.replace("<unnamed>", "").partition("<")[2]
    return " ".join((own_name(name), *sorted(set(_CLASS.findall(rest)))))
