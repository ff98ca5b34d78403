"""The budget of a run's mean step, from the steps that it timed free-running, and the loader that feeds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.diagnosis.baseline import LONG, RareStep, durations, step_time
from gpuprof.diagnosis.budget import Stretch
from gpuprof.diagnosis.budget_model import Budget
from gpuprof.diagnosis.new_shapes import first_seen, new_shapes
from gpuprof.replay.loader_queue import Loader
from gpuprof.replay.mean_step import NEAR
from gpuprof.tracefile.model import F64, I64
from gpuprof.tracefile.run import RunFolder

LUMPS = ("save", "evaluation", "logging", "garbage_collection", "compile")
FEWEST_MADE = 4
"""Batches whose making was measured, at least, for a mean of them."""


@dataclass(frozen=True, slots=True)
class Feed:
    """What feeds the training."""

    loader: Loader
    cpu_ns: float
    """Processor time for a batch."""
    cpus: float | None
    """Processors that the run may use."""
    batches: float
    """Batches in a step."""
    measured: bool
    """Whether the time for a batch was measured in the workers; else it follows from how often the training waited."""


def stretch_of(folder: RunFolder, work: F64 | None, rare: RareStep | None = None) -> Stretch | None:
    """The run's free-running stretch, steps in their order; None where it was not timed as a whole.

    `work`: of every step of the run, as far as it is known; `rare`: what comes back at a fixed distance among them.
    """
    steps, own = folder.steps, folder.own
    rows = steps.rows("baseline_free", folder.rank)
    stage = own.stage("baseline_free")
    if stage is None or not stage.ns or stage.steps != len(rows) or not len(rows) or steps.profiled[rows].any():
        return None
    rows = rows[np.argsort(steps.step[rows], kind="stable")]
    on_gpu = own.gpu is not None
    ns = durations(steps.ns[rows], steps.device_ns[rows], stage.ns, stage.steps, on_gpu=on_gpu)
    usual, expected = _expected(ns, None if work is None else work[rows])
    if usual is None:
        return None
    measured = {"input": _known(steps.data_ns[rows])}
    measured |= {kind: _known(getattr(steps, f"{kind}_ns")[rows]) for kind in LUMPS}
    if not any(measured[kind].any() for kind in LUMPS):
        measured["periodic"] = _periodic(rare, ns, ns - expected - measured["input"])
    shapes = new_shapes(folder, *_timed(folder, rows, ns))
    if shapes is not None:
        others = np.sum(list(measured.values()), axis=0)
        first = first_seen(folder)
        room = (ns - expected - others).clip(0, shapes.extra_ns)
        measured["new_shapes"] = np.where(first[rows] if first is not None else False, room, 0.0)
    return Stretch(
        wall_ns=stage.ns,
        step_ns=ns,
        expected_ns=expected,
        usual_ns=usual,
        measured_ns={cause: column for cause, column in measured.items() if column.any()},
        recurring=frozenset({"new_shapes"} if shapes is not None and shapes.recurs else ()),
        workers=workers_of(folder),
        total_steps=own.steps_total,
        number=steps.step[rows],
    )


def _expected(ns: F64, work: F64 | None) -> tuple[int | None, F64]:
    """The usual step at the mean work of the steps, and what each of them would take for its own work."""
    if work is not None and np.isfinite(work).all():
        target = float(work.mean())
        whole = step_time(ns, work, target)
        if whole is not None:
            each = [step_time(ns, work, one) for one in work.tolist()]
            return whole.ns, np.array([whole.ns if one is None else one.ns for one in each], np.float64)
    whole = step_time(ns, None, None)
    return (None, ns) if whole is None else (whole.ns, np.full(len(ns), float(whole.ns)))


def _periodic(rare: RareStep | None, ns: F64, excess: F64) -> F64:
    """What steps that come back at a fixed distance take more than others: of runs that did not measure what it is."""
    if rare is None:
        return np.zeros(len(ns))
    return np.where(ns > LONG * rare.usual_ns, excess.clip(0), 0.0)


def _known(values: I64) -> F64:
    return values.clip(0).astype(np.float64)


def _timed(folder: RunFolder, rows: I64, ns: F64) -> tuple[I64, F64]:
    """All steps that were timed without a profiler: the free-running ones, and those that each ended in a
    synchronisation."""
    more = folder.steps.rows("baseline_sync", folder.rank)
    more = more[~folder.steps.profiled[more]]
    return np.concatenate([rows, more]), np.concatenate([ns, folder.steps.ns[more].astype(np.float64)])


def workers_of(folder: RunFolder) -> int:
    count = (folder.own.loader or {}).get("num_workers")
    return count if isinstance(count, int) and count > 0 else 0


def feed_of(folder: RunFolder, found: Budget, micro_steps: float | None) -> Feed | None:
    """The workers that feed the training, where their pace is known: measured, or because the training waited for it.

    Workers that keep up show nothing of their pace unless it was measured.
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
    starved = waited > NEAR * found.mean_ns
    lumps = sum(one.mean_ns or 0 for one in found.excess if one.cause != "input")
    paced = workers * max(found.mean_ns - lumps, 1) / batches
    if number >= FEWEST_MADE and made.get("batch_ns"):
        batch_ns, cpu_ns, spread = float(made["batch_ns"]), float(made.get("batch_cpu_ns") or 0), made.get("spread")
        # What the training waited for is the best measure of what it got.
        batch_ns, measured = (paced if starved else batch_ns), True
        cpu_ns = min(cpu_ns, batch_ns)
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
