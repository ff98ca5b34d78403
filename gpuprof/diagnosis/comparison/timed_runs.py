"""Compares two runs without a GPU by their timed steps, split into batches, the training itself and the rest."""

from __future__ import annotations

from collections.abc import Iterator

from gpuprof.diagnosis.comparison.comparison import ComparedWork, Mechanism, PhaseShare, PredictionCheck, Step
from gpuprof.diagnosis.comparison.predictions import predictions
from gpuprof.diagnosis.detect.pair.cells import Cells
from gpuprof.diagnosis.detect.pair.counts import Counts, OpTable
from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.diagnosis.detect.pair.kernel_table import KernelTable
from gpuprof.diagnosis.detect.pair.side import Side
from gpuprof.diagnosis.findings import with_role
from gpuprof.diagnosis.result.cpu_step import CpuStep, prepares_batches
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.sentences import duration
from gpuprof.errors import GpuprofError
from gpuprof.timeline.unit import Unit

INPUT, OWN, OTHER = ("idle", "input", "data"), ("busy", "training", "other"), ("idle", "periodic", "other")
"""Cells of such a step."""
LOADER_WORKERS = with_role("loader_workers")


def are_timed_only(a: Diagnosis, b: Diagnosis) -> bool:
    """Whether both are runs without a GPU whose steps were timed. Raises GpuprofError if only one is."""
    if (a.cpu_step is None) == (b.cpu_step is None):
        return a.cpu_step is not None
    cpu, other = ("A", b) if a.cpu_step is not None else ("B", a)
    if not other.devices:
        return False  # the other one cannot be compared with anything
    raise GpuprofError(
        f"{cpu} ran on the CPU and {'B' if cpu == 'A' else 'A'} on a GPU: their steps cannot be compared"
    )


def timed_facts(diagnosis: Diagnosis, unit: Unit) -> Facts:
    """The facts of a run without a GPU: nothing is counted, and its step is the timed mean."""
    step, run, where = diagnosis.cpu_step, diagnosis.run, diagnosis.environment
    assert step is not None
    per_s = run.throughput if run else None
    ranks = where.world_size or 1
    side = Side(
        path=diagnosis.source.path,
        kind=diagnosis.source.kind,
        quality=diagnosis.quality.status,
        bound=diagnosis.verdict.bound,
        cause=diagnosis.verdict.cause,
        gpu=None,
        rank=where.rank,
        world_size=where.world_size,
        device=0,
        steps=diagnosis.steps.count if diagnosis.steps else 0,
        step_ns=step.mean_ns,
        known="unprofiled",
        recorded_ns=diagnosis.steps.recorded_ns if diagnosis.steps else step.mean_ns,
        tokens=run.work.tokens if run else None,
        real_tokens=run.work.real_tokens if run else None,
        samples=run.work.samples if run else None,
        product_flops=None,
        products=0.0,
        kernels=0.0,
        launches=0.0,
        syncs=0.0,
        peak_bytes=None,
        token_ns=1e9 * ranks / per_s.tokens_per_s if per_s and per_s.tokens_per_s else None,
        sample_ns=1e9 * ranks / per_s.samples_per_s if per_s and per_s.samples_per_s else None,
    )
    return Facts(
        side=side,
        cells=_cells(step),
        counts=Counts({}, {}, 0, 0, 0, 0, 0, 0, 0, 0, None),
        kernels=KernelTable(1, {}, {}),
        ops=OpTable({}, {}),
        findings=(*diagnosis.findings, *diagnosis.worth_trying),
        warnings=tuple(issue for issue in diagnosis.quality.issues if issue.severity == "warning"),
        unit=unit,
    )


def _cells(step: CpuStep) -> Cells:
    return {cell: ns for cell, ns in ((INPUT, step.input_ns), (OWN, step.own_ns), (OTHER, step.other_ns)) if ns}


def timed_mechanisms(
    a: Diagnosis, b: Diagnosis, one: Facts, other: Facts, step: Step, work: ComparedWork | None
) -> Iterator[Mechanism]:
    """The parts of the difference, largest first, with what either run's diagnosis predicted for more workers."""
    rows = [
        (LOADER_WORKERS, "batches", _input_text(a, b), INPUT),
        ("host", "the training itself", _moved("passes, optimizer and the Python of a step", one, other, OWN), OWN),
        ("host", "in some steps only", _moved("saving, evaluation, logging and pauses", one, other, OTHER), OTHER),
    ]
    found = [(*row[:3], row[3], other.cells.get(row[3], 0) - one.cells.get(row[3], 0)) for row in rows]
    sign = -1 if step.difference_ns < 0 else 1
    for name, title, text, cell, ns in sorted(found, key=lambda row: -sign * row[4]):
        if not ns:
            continue
        foretold: tuple[PredictionCheck, ...] = ()
        if name == LOADER_WORKERS and _workers(a) != _workers(b):
            foretold = tuple(predictions(name, one, other, work))
        yield Mechanism(
            id=name,
            title=title,
            text=text,
            difference_ns=ns,
            share=ns / step.difference_ns if step.difference_ns else None,
            phases=(PhaseShare(cell[2], ns),),
            found="a" if one.finding(name) else "b" if other.finding(name) else "none",
            predictions=foretold,
        )


def _moved(what: str, one: Facts, other: Facts, cell: tuple[str, str, str]) -> str:
    return f"{what} take {duration(one.cells.get(cell, 0))} in A and {duration(other.cells.get(cell, 0))} in B"


def _input_text(a: Diagnosis, b: Diagnosis) -> str:
    assert a.cpu_step is not None
    assert b.cpu_step is not None
    workers = "" if _workers(a) == _workers(b) else f" ({_workers(a)} → {_workers(b)} input workers)"
    both = prepares_batches(a.run) and prepares_batches(b.run)
    does = "preparing batches" if both else "waiting for batches"
    return f"{does} takes {duration(a.cpu_step.input_ns)} in A and {duration(b.cpu_step.input_ns)} in B{workers}"


def _workers(diagnosis: Diagnosis) -> int:
    loader = diagnosis.run.loader if diagnosis.run else None
    return int((loader or {}).get("num_workers") or 0)
