"""What a run folder says in addition to its trace: the unprofiled step, throughput, memory."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.mean_step.baseline import (
    EQUAL_WORK,
    RareStep,
    StepTime,
    durations,
    rare_step,
    step_time,
    steps_alike,
)
from gpuprof.diagnosis.mean_step.budget import budget, mean_ahead
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.mean_step.new_shapes import first_seen, new_shapes
from gpuprof.diagnosis.mean_step.run_budget import Feed, feed_of, stretch_of
from gpuprof.diagnosis.mean_step.timed_steps import TimedSteps, timed_steps
from gpuprof.diagnosis.result.run_model import Baseline, Exit, Goodput, Run
from gpuprof.diagnosis.run.energy import measured_energy
from gpuprof.diagnosis.run.run_device import memory_of, span_of, telemetry_of
from gpuprof.diagnosis.run.run_work import (
    WORK,
    Timed,
    known_values,
    of_usual_length,
    throughput_of,
    with_samples,
    work_of,
)
from gpuprof.record.launcher.goodput import goodput
from gpuprof.record.steps.free_run_length import AFTERMATH_NS
from gpuprof.runfile import NSYS
from gpuprof.tracefile.run_folder.run import RunFolder, StepColumns
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Steps

FEWEST_AFTER: Assumed[Steps] = 5
"""Fewest steps after the recording that distinguish a lasting change from an outlier."""


@dataclass(frozen=True, slots=True)
class RunFacts:
    """The run as the diagnosis shows it, and the steps that were timed without a profiler."""

    folder: RunFolder
    run: Run
    unprofiled: StepTime | None
    """The step that the trace is compared with."""
    free: StepTime | None
    """The free-running step before the recording."""
    after: StepTime | None
    """The step after the recording."""
    profiled: int
    """Steps meant to be timed without a profiler that had one."""
    unprofiled_steps: int
    """Steps timed without a profiler."""
    budget: Budget | None
    """The budget of the mean step of the free-running stretch."""
    timed: TimedSteps | None
    """The steps that the budget describes."""
    feed: Feed | None
    under_nsys: bool
    """Whether the steps were timed while Nsight Systems waited in the process."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """The timed steps of a folder by stage, with the measure of work by which they are compared."""

    folder: RunFolder
    steps: StepColumns
    free: Timed
    sync: Timed
    after: Timed
    traced: I64
    """Rows of the recorded steps."""
    work: F64 | None
    """Work of every step, by the measure that recorded and unprofiled steps share."""
    target: float | None
    """Mean work of the recorded steps."""

    @property
    def base(self) -> Timed:
        """The better baseline: the free-running one if there is one."""
        return self.free if len(self.free.rows) else self.sync


@dataclass(frozen=True, slots=True)
class _StepTimes:
    """The usual step of each stage, scaled to the work of the recorded steps."""

    free: StepTime | None
    sync: StepTime | None
    after: StepTime | None

    def unprofiled(self, synchronised: bool) -> StepTime | None:
        """The step that recorded steps are compared with. If recorded steps end in a synchronisation, the CPU cannot
        run ahead, so they are compared with synchronised steps."""
        free, sync = self.free, self.sync
        if synchronised and free and sync and sync.steps >= free.steps:
            return sync
        return free or sync


def run_facts(folder: RunFolder, synchronised: bool = False, devices: int = 1) -> RunFacts:
    """Everything about the run of a folder, seen from the rank that is diagnosed.

    `synchronised`: each recorded step ends in a synchronisation, so it is compared with the synchronised baseline.
    `devices`: number of GPUs that the recorded process uses.
    """
    measured = _measured(folder)
    times = _step_times(measured)
    unprofiled = times.unprofiled(synchronised)
    free, sync = measured.free, measured.sync
    rare = _rare(folder, free, sync, measured.work, measured.target)
    stretch = stretch_of(replace(folder, steps=measured.steps), measured.work, rare)
    found_budget = None if stretch is None else budget(stretch)
    # The timed steps may accumulate fewer batches than the recorded ones.
    passes = work_of(measured.steps, measured.base.rows).micro_steps
    return RunFacts(
        folder,
        _run(measured, times, rare, found_budget, _shown_ns(found_budget, unprofiled), devices),
        unprofiled,
        times.free,
        times.after,
        free.profiled + sync.profiled,
        len(free.rows) + len(sync.rows),
        found_budget,
        None if stretch is None or found_budget is None else timed_steps(stretch),
        None if found_budget is None else feed_of(folder, found_budget, passes),
        under_nsys=folder.window == NSYS,
    )


def _measured(folder: RunFolder) -> _Measured:
    steps = with_samples(folder.steps, folder.own)
    free, sync = _timed(folder, "baseline_free"), _timed(folder, "baseline_sync")
    traced = _traced(folder)
    work, target = _equal_work(steps, traced, free.rows if len(free.rows) else sync.rows)
    return _Measured(folder, steps, free, sync, _timed(folder, "after", AFTERMATH_NS), traced, work, target)


def _step_times(measured: _Measured) -> _StepTimes:
    work, target, after = measured.work, measured.target, measured.after
    free, sync = _with_known_shapes(measured.folder, measured.free, measured.sync)
    # Tokens are no longer counted once the recording is over; backward passes are.
    counted = work is not None and len(after.rows) > 0 and bool(np.isfinite(work[after.rows]).all())
    return _StepTimes(
        free=step_time(free.ns, *_at_work(free, sync, work, target)),
        sync=step_time(sync.ns, *_at_work(sync, free, work, target)),
        after=step_time(after.ns, *((work[after.rows], target) if work is not None and counted else (None, None))),
    )


def _run(
    measured: _Measured, times: _StepTimes, rare: RareStep | None, found: Budget | None, shown_ns: float | None,
    devices: int,
) -> Run:  # fmt: skip
    """The run as it is shown. found: the budget of the mean step; shown_ns: the main step time of the report."""
    folder, own, steps, base, after = (
        measured.folder,
        measured.folder.own,
        measured.steps,
        measured.base,
        measured.after,
    )
    # Step lines are thinned out, so the last one may lag behind.
    seen = max(int(steps.step[steps.rank == folder.rank].max(initial=0)), own.steps_seen or 0)
    work = work_of(steps, measured.traced if len(measured.traced) else base.rows)
    tokens = work.tokens if work.real_tokens is None else work.real_tokens
    has_exit = folder.exit_code is not None or folder.exit_signal is not None
    return Run(
        path=folder.path,
        status=folder.status,
        exit=Exit(folder.exit_code, folder.exit_signal) if has_exit else None,
        step_source=own.step_source,
        steps_seen=seen,
        steps_total=own.steps_total,
        remaining_ns=_remaining(folder, seen, after if len(after.rows) >= FEWEST_AFTER else base, found),
        baseline=_baseline(times.free, times.sync, rare),
        after_ns=times.after.ns if times.after else None,
        throughput=throughput_of(steps, base, own.world_size or 1, None if found is None else found.mean_ns),
        work=work,
        model=own.model,
        program=own.program,
        compiler=own.compiler,
        energy=measured_energy(folder, tokens, shown_ns, devices),
        command=folder.command,
        optimizer=own.optimizer,
        loader=own.loader,
        memory=memory_of(steps, folder.rank),
        telemetry=telemetry_of(
            folder.telemetry, folder.throttle_reasons, span_of(steps, measured.free.rows, measured.sync.rows)
        ),
        notes=own.notes,
        startup_ns=_startup(folder),
        goodput=_goodput(folder),
    )


def _shown_ns(found: Budget | None, unprofiled: StepTime | None) -> float | None:
    """The main step time of the report: the mean of free-running steps, or else the usual unprofiled step."""
    if found is not None and (found.source == "free" or unprofiled is None):
        return found.mean_ns
    return None if unprofiled is None else unprofiled.ns


def _with_known_shapes(folder: RunFolder, free: Timed, sync: Timed) -> tuple[Timed, Timed]:
    """The timed steps without the cost of new shapes: the usual step has only shapes that were seen before."""
    rows, ns = np.concatenate([free.rows, sync.rows]), np.concatenate([free.ns, sync.ns])
    first, shapes = first_seen(folder), new_shapes(folder, rows, ns)
    if first is None or shapes is None:
        return free, sync

    def known(timed: Timed) -> Timed:
        ns = shapes.without(timed.ns, first[timed.rows])
        kept = np.isfinite(ns)
        return replace(timed, rows=timed.rows[kept], ns=ns[kept])

    return known(free), known(sync)


def unprofiled_steps(folder: RunFolder, unprofiled_ns: int | None) -> F64:
    """Times of the steps from which an unprofiled step was estimated, in order; empty if it was not estimated from
    steps of this run."""
    free, sync = _with_known_shapes(folder, _timed(folder, "baseline_free"), _timed(folder, "baseline_sync"))
    steps = with_samples(folder.steps, folder.own)
    work, target = _equal_work(steps, _traced(folder), free.rows if len(free.rows) else sync.rows)
    for timed, other in ((free, sync), (sync, free)):
        alike = steps_alike(timed.ns, *_at_work(timed, other, work, target))
        if alike is not None and round(alike.found) == unprofiled_ns:
            return alike.ns
    return np.empty(0, np.float64)


def _at_work(
    timed: Timed, other: Timed, work: F64 | None, target: float | None
) -> tuple[F64 | None, float | None, tuple[F64, F64] | None]:
    """Arguments of `step_time` after the durations: the steps' work, the wanted work, and the other steps."""
    if work is None:
        return None, None, None
    return work[timed.rows], target, (other.ns, work[other.rows])


def _timed(folder: RunFolder, stage: str, skip_ns: int = 0) -> Timed:
    """The steps of a stage, except those that began in its first `skip_ns`."""
    steps, own = folder.steps, folder.own
    rows = steps.rows(stage, folder.rank)
    whole = own.stage(stage)
    stage_ns, stage_steps = (whole.ns, whole.steps) if whole else (None, None)
    ns = durations(steps.ns[rows], steps.device_ns[rows], stage_ns, stage_steps, on_gpu=own.gpu is not None)
    if skip_ns and len(rows):
        begin = steps.unix_ns[rows] - steps.ns[rows]
        late = begin - begin.min() >= skip_ns
        rows, ns = rows[late], ns[late]
    clean = ~steps.profiled[rows]
    return Timed(rows[clean], ns[clean], int(np.count_nonzero(~clean)))


def _traced(folder: RunFolder) -> I64:
    """Rows of the steps in the recorded window."""
    steps = folder.steps
    rows = steps.rows(folder.window, folder.rank)
    window = next((w for w in folder.own.windows if w.window == folder.window), None)
    if not len(rows) and window and window.first_step is not None and window.steps:
        inside = (steps.step >= window.first_step) & (steps.step < window.first_step + window.steps)
        rows = np.flatnonzero(inside & (steps.rank == folder.rank))
    return rows


def _equal_work(steps: StepColumns, traced: I64, baseline: I64) -> tuple[F64 | None, float | None]:
    """The work of every step by the best measure that recorded and unprofiled steps share, and the recorded mean."""
    for name in WORK:
        work = known_values(getattr(steps, name))
        if len(traced) and np.isfinite(work[traced]).all() and np.isfinite(work[baseline]).any():
            return work, float(work[traced].mean())
    passes = known_values(steps.micro_steps)
    timed = passes[np.concatenate([traced, baseline])]
    if len(traced) and len(baseline) and np.isfinite(timed).all() and timed.min() < timed.max():
        return passes, float(passes[traced].mean())
    return None, None


def _rare(folder: RunFolder, free: Timed, sync: Timed, work: F64 | None, target: float | None) -> RareStep | None:
    """The long step that recurs among unprofiled steps with the work of the recorded ones."""
    rows, ns = np.concatenate([free.rows, sync.rows]), np.concatenate([free.ns, sync.ns])
    if work is not None and target:
        same = np.abs(work[rows] - target) <= EQUAL_WORK * target
        rows, ns = rows[same], ns[same]
    order = np.argsort(folder.steps.step[rows], kind="stable")
    rows, ns = rows[order], ns[order]
    return rare_step(folder.steps.step[rows], ns, folder.steps.data_ns[rows].clip(0).astype(np.float64))


def _baseline(free: StepTime | None, sync: StepTime | None, rare: RareStep | None) -> Baseline:
    timed_either = free or sync
    return Baseline(
        free_ns=free.ns if free else None,
        free_low_ns=free.low_ns if free else None,
        free_high_ns=free.high_ns if free else None,
        free_steps=free.steps if free else 0,
        synchronised_ns=sync.ns if sync else None,
        synchronised_steps=sync.steps if sync else 0,
        equal_work=timed_either.equal_work if timed_either else None,
        fitted=bool(timed_either and timed_either.fitted),
        rare=rare,
    )


def _remaining(folder: RunFolder, seen: int, timed: Timed, found: Budget | None) -> int | None:
    """Time for the remaining steps, ns: at the mean step, or at that of the steps timed last if these are lastingly
    slower or nothing else is known."""
    total = folder.own.steps_total
    if total is None:
        return None
    if seen >= total or (folder.status == "finished" and not folder.exit_code):
        return 0
    usual = of_usual_length(timed)
    last = float(timed.ns[usual].mean()) if usual.any() else None
    if found is not None and (last is None or last <= (1 + calibrated.STILL_SLOW.value) * found.mean_ns):
        return mean_ahead(found, total - seen) * (total - seen)
    return None if last is None else round(last * (total - seen))


def _goodput(folder: RunFolder) -> Goodput | None:
    """Time that the whole run loses outside usual steps."""
    found = goodput(Path(folder.path), folder.rank)
    if found is None:
        return None
    return Goodput(found.wall_ns, found.steps, found.usual_ns, found.productive_ns, found.share, found.lost_ns)


def _startup(folder: RunFolder) -> int | None:
    """Time from the program's start to its first step, ns."""
    steps = folder.steps
    first = np.flatnonzero((steps.rank == folder.rank) & (steps.step == 1) & (steps.unix_ns > 0))
    if folder.started_ns is None or not len(first):
        return None
    begun = int((steps.unix_ns - steps.ns)[first[0]])
    return begun - folder.started_ns if begun >= folder.started_ns else None
