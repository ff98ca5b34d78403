"""The budget of a run's mean step, from the steps that it timed free-running, and the loader that feeds it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from gpuprof.calibration import loader as loader_calibrated
from gpuprof.calibration import thresholds as calibrated
from gpuprof.diagnosis.mean_step.baseline import FEWEST_PERIODIC, RareStep, durations, step_time
from gpuprof.diagnosis.mean_step.budget import LEAST_CAUSE_SHARE, FreeStretch
from gpuprof.diagnosis.mean_step.budget_model import LONG_STEP, Budget
from gpuprof.diagnosis.mean_step.new_shapes import NewShapes, first_seen, new_shapes
from gpuprof.diagnosis.mean_step.recurring import FullCollections, Recurring, full_collections, recurring, worker_starts
from gpuprof.diagnosis.mean_step.unseen_lengths import unseen_lengths
from gpuprof.record.base.quantiles import Z80
from gpuprof.record.steps.free_run_length import AFTERMATH_NS
from gpuprof.replay.loader_queue import Loader
from gpuprof.replay.mean_step import SAME_PACE
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import ABSENT, F64, I64
from gpuprof.units import Assumed, Batches, Count, Published, Ratio

LUMPS = ("save", "evaluation", "logging", "garbage_collection", "compile")
FEWEST_MADE: Assumed[Batches] = 4
"""Fewest measured batches whose mean is used."""
STANDARD_ERRORS: Assumed[Count] = 3
"""Standard errors by which the median of later steps may differ from that of earlier ones."""
SIGMA_PER_DEVIATION: Published[Ratio] = 1.4826
"""Standard deviation of a normal distribution over its median absolute deviation."""
_NO_STEPS: tuple[I64, F64] = np.empty(0, np.int64), np.empty(0, np.float64)


@dataclass(frozen=True, slots=True)
class Feed:
    """The loader that feeds the training."""

    loader: Loader
    cpu_ns: float
    """CPU time for a batch, ns."""
    cpus: float | None
    """CPU cores that the run may use."""
    batches: float
    """Batches per step."""
    measured: bool
    """Whether the time for a batch was measured in the workers; otherwise it is inferred from how often training
    waited."""


def stretch_of(folder: RunFolder, work: F64 | None, rare: RareStep | None = None) -> FreeStretch | None:
    """The run's free-running stretch, steps in order; None if it was not timed as a whole.

    `work`: of every step of the run, if known; `rare`: the long step that recurs at a fixed distance.
    """
    steps, own = folder.steps, folder.own
    found = _whole_stage(folder, "baseline_free")
    if found is None:
        return None
    rows, ns, wall_ns = found
    for more_rows, more_ns in (_run_out(folder, rows, ns), _continued(folder, ns)):
        rows, ns, wall_ns = np.concatenate([rows, more_rows]), np.concatenate([ns, more_ns]), wall_ns + more_ns.sum()
    shapes, first = new_shapes(folder, *_timed(folder, rows, ns)), first_seen(folder)
    seen_before = ns if shapes is None or first is None else shapes.without(ns, first[rows])
    usual, expected = _expected(seen_before, None if work is None else work[rows])
    if usual is None:
        return None
    measured = {"input": _known(steps.data_ns[rows])}
    measured |= {kind: _known(getattr(steps, f"{kind}_ns")[rows]) for kind in LUMPS}
    starts = worker_starts(folder)
    often = recurring(folder, rows, work, starts)
    again: dict[str, Recurring | FullCollections] = {**often}
    collections = full_collections(folder)
    if collections is not None:
        full = measured["garbage_collection"] > collections.noticed_ns
        if np.count_nonzero(full) < FEWEST_PERIODIC:
            again["garbage_collection"] = collections
            measured["garbage_collection"][~full] = 0.0
    if starts is not None:
        again["worker_starts"] = starts
        first = starts.at(steps.step[rows])
        measured["input"][first] = np.minimum(measured["input"], np.median(measured["input"]))[first]
        lumps = np.sum([measured[kind] for kind in LUMPS], axis=0)
        measured["worker_starts"] = np.where(first, ns - expected - lumps, 0.0).clip(0)
    if "periodic" in often:
        known = np.sum(list(measured.values()), axis=0)
        measured["periodic"] = np.where(often["periodic"].at(steps.step[rows]), ns - expected - known, 0.0).clip(0)
    elif starts is None and not any(measured[kind].any() for kind in LUMPS):
        measured["periodic"] = _periodic(rare, ns, ns - expected - measured["input"])
    if shapes is not None:
        others = np.sum(list(measured.values()), axis=0)
        room = shapes.due(ns, ns - expected - others)
        measured["new_shapes"] = np.where(first[rows] if first is not None else False, room, 0.0)
    left_over = ns - expected - np.sum(list(measured.values()), axis=0)
    measured["allocator"] = _allocating(steps.device_allocations[rows], left_over)
    return FreeStretch(
        wall_ns=round(wall_ns),
        step_ns=ns,
        expected_ns=expected,
        usual_ns=usual,
        measured_ns={cause: column for cause, column in measured.items() if column.any()},
        every={**own.intervals, **{cause: one.every for cause, one in again.items()}},
        events_ns={kind: _elsewhere(folder, kind, rows) for kind in own.intervals}
        | {cause: one.events_ns for cause, one in again.items()},
        recorded=_recorded(folder, measured, usual, starts),
        ahead_ns=_ahead(folder, shapes),
        recurring=frozenset({"new_shapes"} if shapes is not None and shapes.recurs else ()),
        workers=workers_of(folder),
        total_steps=own.steps_total,
        number=steps.step[rows],
    )


def _whole_stage(folder: RunFolder, name: str) -> tuple[I64, F64, float] | None:
    """(rows of a stage's steps in order, time of each, time of the whole stage), ns; None if the stage was not timed as
    a whole, or if a profiler was active in it."""
    steps, stage = folder.steps, folder.own.stage(name)
    if stage is None or not stage.ns or not stage.steps or stage.first_step is None:
        return None
    rows = steps.rows(name, folder.rank)
    # Some steps after the last stage have lines, too.
    rows = rows[steps.step[rows] < stage.first_step + stage.steps]
    if stage.steps != len(rows) or steps.profiled[rows].any():
        return None
    rows = rows[np.argsort(steps.step[rows], kind="stable")]
    ns = durations(steps.ns[rows], steps.device_ns[rows], stage.ns, stage.steps, on_gpu=folder.own.gpu is not None)
    return (rows, ns, float(stage.ns)) if np.isfinite(ns).any() else None


def _continued(folder: RunFolder, before_ns: F64) -> tuple[I64, F64]:
    """The steps after the recorded windows that extend the free-running stretch: the recording's own costs are over,
    batches that workers prepared during the pause are used up, and the recorder still measures what delays a step."""
    found = _whole_stage(folder, "after")
    if found is None:
        return _NO_STEPS
    rows, ns, _ = found
    steps = folder.steps
    begun = steps.unix_ns[rows] - steps.ns[rows]
    counted = (begun - begun.min() >= AFTERMATH_NS) & (np.arange(len(rows)) >= _prepared(folder))
    # Without its hooks the recorder sees neither calls of the model nor what a step waited for.
    counted &= np.isfinite(ns) & (steps.new_shapes[rows] != ABSENT)
    rows, ns = rows[counted], ns[counted]
    return (rows, ns) if len(rows) and _as_long(ns, before_ns) else _NO_STEPS


def _run_out(folder: RunFolder, before: I64, before_ns: F64) -> tuple[I64, F64]:
    """The steps in which Python was sampled, if they wait longer for batches than the free-running ones `before`: a
    short stretch takes batches that slow workers had prepared before it, and says nothing of their pace.

    Sampling and what follows a recording slow a step a little, so these steps count only in that case, and only if
    they are as long as the others apart from the wait."""
    found = _whole_stage(folder, "sampling") if workers_of(folder) else None
    if found is None:
        return _NO_STEPS
    rows, ns, _ = found
    counted = np.isfinite(ns) & (np.arange(len(rows)) >= _prepared(folder))
    rows, ns = rows[counted], ns[counted]
    if len(rows) <= len(before):
        return _NO_STEPS
    waits, earlier = (_known(folder.steps.data_ns[each]) for each in (rows, before))
    longer = float(waits.mean() - earlier.mean()) > SAME_PACE * float(np.nanmedian(before_ns))
    return (rows, ns) if longer and _as_long(ns - waits, before_ns - earlier) else _NO_STEPS


def _as_long(ns: F64, before_ns: F64) -> bool:
    """Whether later steps are as long as the steps before the recording."""
    usual = float(np.nanmedian(before_ns))
    sigma = SIGMA_PER_DEVIATION * float(np.nanmedian(np.abs(before_ns - usual)))
    scatter = STANDARD_ERRORS * sigma / np.sqrt(len(before_ns))
    return abs(float(np.median(ns)) - usual) <= max(calibrated.STILL_SLOW.value * usual, scatter)


def _prepared(folder: RunFolder) -> int:
    """Most batches that workers prepared during a pause."""
    return workers_of(folder) * max(_whole((folder.own.loader or {}).get("prefetch_factor")), 1)


def _allocating(calls: I64, left_over: F64) -> F64:
    """CPU wall time of each step that is explained by calls of cudaMalloc and cudaFree, ns. calls: count since the
    program started, ABSENT if not read; calls between two readings are attributed to the longest step in between."""
    found = np.zeros(len(calls))
    asked = np.flatnonzero(calls != ABSENT)
    for before, at in pairwise(asked.tolist()):
        number = int(calls[at] - calls[before])
        if number > 0:
            longest = before + 1 + int(np.argmax(left_over[before + 1 : at + 1]))
            found[longest] = min(max(left_over[longest], 0.0), number * calibrated.ALLOCATION_NS.value)
    return found


def _elsewhere(folder: RunFolder, kind: str, rows: I64) -> F64:
    """CPU wall time of each event of a kind in unprofiled steps outside the stretch, ns."""
    steps = folder.steps
    others = (steps.rank == folder.rank) & ~steps.profiled
    others[rows] = False
    values = getattr(steps, f"{kind}_ns")[others]
    return values[values > 0].astype(np.float64)


def _recorded(folder: RunFolder, measured: dict[str, F64], usual_ns: int, starts: Recurring | None) -> dict[str, int]:
    """Cause → number of recorded steps that had it, for causes that are also measured in recorded steps."""
    steps = folder.steps
    rows = steps.rows(folder.window, folder.rank)
    if not len(rows):
        return {}
    columns = {kind: _known(getattr(steps, f"{kind}_ns")[rows]) for kind in LUMPS if kind in measured}
    usually_waits = float(np.median(measured["input"])) if "input" in measured else 0.0
    columns["input"] = _known(steps.data_ns[rows]) - usually_waits
    found = {cause: int(np.count_nonzero(ns >= LEAST_CAUSE_SHARE * usual_ns)) for cause, ns in columns.items()}
    if starts is not None:
        found["worker_starts"] = int(np.count_nonzero(starts.at(steps.step[rows])))
    return found


def _ahead(folder: RunFolder, shapes: NewShapes | None) -> dict[str, int]:
    """Cost of new lengths in the remaining steps, if each step is one call of the model and the training's end is
    known."""
    steps, own = folder.steps, folder.own
    if shapes is None or own.steps_total is None or (steps.micro_steps > 1).any():
        return {}
    known = (steps.rank == folder.rank) & (steps.tokens > 0) & (steps.samples > 0)
    seen = int(steps.step[known].max(initial=0))
    lengths = steps.tokens[known] // steps.samples[known]
    expected = unseen_lengths(lengths, max(own.steps_total - seen, 0))
    return {} if expected is None else {"new_shapes": round(expected * shapes.mean_ns)}


def _expected(ns: F64, work: F64 | None) -> tuple[int | None, F64]:
    """(usual step at the steps' mean work, expected time of each step for its own work), ns."""
    if work is not None and np.isfinite(work).all():
        target = float(work.mean())
        whole = step_time(ns, work, target)
        if whole is not None:
            each = [step_time(ns, work, one) for one in work.tolist()]
            return whole.ns, np.array([whole.ns if one is None else one.ns for one in each], np.float64)
    whole = step_time(ns, None, None)
    return (None, ns) if whole is None else (whole.ns, np.full(len(ns), float(whole.ns)))


def _periodic(rare: RareStep | None, ns: F64, excess: F64) -> F64:
    """Excess of the steps that recur at a fixed distance, for runs that did not measure the cause, ns."""
    if rare is None:
        return np.zeros(len(ns))
    return np.where(ns > LONG_STEP * rare.usual_ns, excess.clip(0), 0.0)


def _known(values: I64) -> F64:
    return values.clip(0).astype(np.float64)


def _timed(folder: RunFolder, rows: I64, ns: F64) -> tuple[I64, F64]:
    """All steps timed without a profiler: the free-running ones, and those that each ended in a synchronisation."""
    more = folder.steps.rows("baseline_sync", folder.rank)
    more = more[~folder.steps.profiled[more]]
    return np.concatenate([rows, more]), np.concatenate([ns, folder.steps.ns[more].astype(np.float64)])


def _whole(value: object) -> int:
    return value if isinstance(value, int) else 0


def workers_of(folder: RunFolder) -> int:
    count = (folder.own.loader or {}).get("num_workers")
    return count if isinstance(count, int) and count > 0 else 0


def _pace(made_ns: float, error: float, paced_ns: float, found: Budget) -> float:
    """A worker's time for a batch if the training waits for its workers, ns: from the time measured in the workers and
    from the rate at which the training got batches, weighted by their certainty.

    made_ns, error: mean time of the measured batches, and its standard error as a share of it. paced_ns: the time per
    batch at which workers deliver exactly as fast as the mean step takes batches. A mean over few steps may contain the
    start of an epoch, where every batch is waited for. Workers are no slower than paced_ns.
    """
    made = (Z80 * error) ** 2 + math.log(loader_calibrated.SPREAD.value) ** 2
    paced = math.log(max(found.high, 1) / max(found.mean_ns, 1)) ** 2
    weight = paced / (made + paced)
    return min(made_ns**weight * paced_ns ** (1 - weight), paced_ns)


def feed_of(folder: RunFolder, found: Budget, micro_steps: float | None) -> Feed | None:
    """The workers that feed the training; None unless their pace was measured, or the training waited for them.

    The pace of workers that keep up is unknown unless it was measured.
    """
    workers = workers_of(folder)
    facts = folder.own.loader or {}
    if workers < 1:
        return None
    batches = max(micro_steps or 1.0, 1.0)
    said = facts.get("made")
    made: dict[str, Any] = said if isinstance(said, dict) else {}
    number = made.get("batches") or 0
    waited = sum(one.mean_ns or 0 for one in found.excess if one.cause == "input")
    starved = waited > SAME_PACE * found.mean_ns
    lumps = sum(one.mean_ns or 0 for one in found.excess if one.cause != "input")
    paced = workers * max(found.mean_ns - lumps, 1) / batches
    if number >= FEWEST_MADE and made.get("batch_ns"):
        batch_ns, cpu_ns, spread = float(made["batch_ns"]), float(made.get("batch_cpu_ns") or 0), made.get("spread")
        if starved:
            batch_ns = _pace(batch_ns, float(spread or 0.0) / number**0.5, paced, found)
        cpu_ns, measured = min(cpu_ns, batch_ns), True
    elif starved:
        batch_ns, cpu_ns, spread, measured = paced, paced, None, False
    else:
        return None
    prefetch = facts.get("prefetch_factor")
    loader = Loader(
        batch_ns=batch_ns,
        workers=workers,
        prefetch=prefetch if isinstance(prefetch, int) and prefetch > 0 else 2,
        spread=0.0 if starved or not isinstance(spread, (int, float)) else min(float(spread), 1.0),
    )
    return Feed(loader, cpu_ns, folder.cpus, batches, measured)
