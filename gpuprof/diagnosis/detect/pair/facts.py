"""The facts of one recording that a comparison uses: its step in cells, its counts, and its findings."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.costs.arguments import argument_shapes
from gpuprof.diagnosis.detect.pair.cells import Cells, added, cells, device_step, excess
from gpuprof.diagnosis.detect.pair.counts import Counts, OpTable, count, op_table
from gpuprof.diagnosis.detect.pair.kernel_table import KernelTable, kernel_table
from gpuprof.diagnosis.detect.pair.side import Known, Side
from gpuprof.diagnosis.result.diagnosis import Diagnosis, Issue, Steps
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.diagnosis.result.run_model import Energy
from gpuprof.errors import GpuprofError
from gpuprof.timeline.phases import BACKWARD
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.tracefile.trace import NO_TEXT

MULTIPLIES = frozenset({"aten::mm", "aten::addmm", "aten::linear", "aten::convolution"})
"""Ops whose second tensor is a weight, in the forward pass."""


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts of one recording."""

    side: Side
    cells: Cells
    """Sum to `side.step_ns`."""
    counts: Counts
    kernels: KernelTable
    ops: OpTable
    findings: tuple[Finding, ...] = ()
    stepless: bool = False
    """Whether no steps were found, so that the whole recording is treated as one."""
    warnings: tuple[Issue, ...] = ()
    """Problems of the recording that do not prevent its use."""
    clock_mhz: float | None = None
    """Median SM clock while the unprofiled steps ran."""
    weights: frozenset[tuple[int, ...]] = frozenset()
    """Shapes of the weights that it multiplies by; empty if shapes were not recorded."""
    unit: Unit = STEP
    """What to call the steps of both recordings."""
    energy: Energy | None = None
    """Energy of an unprofiled step; None if it was not measured."""

    def finding(self, name: str) -> Finding | None:
        """The finding with this id that gains most, if there is one."""
        return next((finding for finding in self.findings if finding.id == name), None)


def best_known(steps: Steps) -> Known:
    """The best way in which a recording's step is known."""
    if steps.unprofiled_ns is not None:
        return "unprofiled"
    return "recorded" if steps.estimated_ns is None else "estimated"


def step_ns(steps: Steps, known: Known) -> int:
    """The step time that is known in this way, ns; `known` must not be better than `best_known`."""
    if known == "unprofiled" and steps.unprofiled_ns is not None:
        return steps.unprofiled_ns
    if known == "estimated" and steps.estimated_ns is not None:
        return steps.estimated_ns
    return steps.recorded_ns


def usable(diagnosis: Diagnosis, name: str) -> Steps:
    """The steps of a diagnosis that can be compared. Raises GpuprofError, one line, if there are none."""
    path = diagnosis.source.path
    if diagnosis.quality.status == "unusable":
        why = next((i.message for i in diagnosis.quality.issues if i.severity == "error"), "")
        raise GpuprofError(f"{name}, {path}, cannot be compared: {why}")
    if diagnosis.steps is None or diagnosis.window is None or not diagnosis.devices:
        raise GpuprofError(f"{name}, {path}, cannot be compared: no GPU work was recorded in it")
    return diagnosis.steps


def facts(diagnosis: Diagnosis, name: str, known: Known, unit: Unit = STEP) -> Facts:
    """The facts of a diagnosis, with its step as it is `known`; `unit`: what the steps of both are called.

    Raises GpuprofError if there is nothing to compare.
    """
    steps = usable(diagnosis, name)
    device = device_step(diagnosis, known)
    if device is None:
        raise GpuprofError(f"{name}, {diagnosis.source.path}, cannot be compared: no GPU work was recorded in it")
    tables = diagnosis.tables
    timeline, roof = tables.timeline, tables.roofline
    usual = step_ns(steps, known)
    more = excess(diagnosis.budget) if known == "unprofiled" else {}
    step = usual + sum(more.values())
    counts = count(timeline, roof)
    return Facts(
        side=_side(diagnosis, steps, counts, device.device, step, known),
        cells=added(cells(device, usual, timeline, tables.columns), more),
        counts=counts,
        kernels=kernel_table(timeline),
        ops=op_table(timeline),
        findings=diagnosis.findings,
        stepless=steps.source == "none",
        warnings=tuple(issue for issue in diagnosis.quality.issues if issue.severity == "warning"),
        clock_mhz=_clock(diagnosis),
        weights=_multiplied_weights(timeline),
        unit=unit,
        energy=diagnosis.run.energy if diagnosis.run else None,
    )


def _side(diagnosis: Diagnosis, steps: Steps, counts: Counts, device: int, step: int, known: Known) -> Side:
    run, where = diagnosis.run, diagnosis.environment
    return Side(
        path=diagnosis.source.path,
        kind=diagnosis.source.kind,
        quality=diagnosis.quality.status,
        bound=diagnosis.verdict.bound,
        cause=diagnosis.verdict.cause,
        gpu=next((gpu.name for gpu in where.gpus if gpu.device == device), None),
        rank=where.rank,
        world_size=where.world_size,
        device=device,
        steps=steps.count,
        step_ns=step,
        known=known,
        recorded_ns=steps.recorded_ns,
        tokens=run.work.tokens if run else None,
        real_tokens=run.work.real_tokens if run else None,
        samples=run.work.samples if run else None,
        product_flops=counts.product_flops,
        products=counts.count(("gemm",), ("forward", "backward")),
        kernels=counts.total,
        launches=counts.launches,
        syncs=counts.syncs,
        peak_bytes=run.memory.peak_bytes if run else None,
        token_ns=_each_ns(run.throughput.tokens_per_s if run else None, where.world_size),
        sample_ns=_each_ns(run.throughput.samples_per_s if run else None, where.world_size),
    )


def _each_ns(per_s: float | None, ranks: int | None) -> float | None:
    """Time of one token or sample on one rank, ns, from the rate of all ranks."""
    return 1e9 * (ranks or 1) / per_s if per_s else None


def _clock(diagnosis: Diagnosis) -> float | None:
    """The SM clock of the slowest GPU, MHz; None without telemetry."""
    telemetry = diagnosis.run.telemetry if diagnosis.run else None
    clocks = [gpu.sm_mhz for gpu in telemetry.gpus if gpu.sm_mhz] if telemetry else []
    return min(clocks, default=None)


def _multiplied_weights(timeline: Timeline) -> frozenset[tuple[int, ...]]:
    """Shapes of the weights that the program multiplies by, as far as recorded shapes show them; each sorted, so that
    transposed weights count as equal."""
    trace, ops = timeline.trace, timeline.trace.ops
    low, high = timeline.window
    rows = trace.rows_named(ops.name, MULTIPLIES.__contains__) & (timeline.host.op != BACKWARD)
    rows &= (ops.start_ns >= low) & (ops.start_ns < high) & (ops.dims != NO_TEXT)
    found = set()
    for text in np.unique(ops.dims[rows]).tolist():
        tensors = [shape for shape in argument_shapes(trace.text(text)) if shape is not None and len(shape) >= 2]
        if len(tensors) >= 2:
            found.add(tuple(sorted(tensors[1])))
    return frozenset(found)
