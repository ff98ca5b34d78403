"""The iteration of a diagnosis: its budget from the run, its phases in the recording, and what would shorten it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.diagnosis.iterations.budget import iteration_budget
from gpuprof.diagnosis.iterations.changes import changes
from gpuprof.diagnosis.iterations.trainer import Trainer
from gpuprof.diagnosis.projection_input.memory_input import BYTES_OF_FORMAT, weight_bytes
from gpuprof.diagnosis.recorded.quality import judged, of_timed_iterations
from gpuprof.diagnosis.result.iteration_model import CacheCopies, Iteration, RecordedPhase, Unrecorded
from gpuprof.record.phases.phase_names import BACKWARD, FORWARD, GENERATION, OPTIMIZER
from gpuprof.timeline.gpu.cache_appends import cache_appends
from gpuprof.timeline.intervals import clip, join
from gpuprof.timeline.iteration_phases import phase_spans, times_in_window, unrecorded
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.source import Issue
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.result.diagnosis import Diagnosis

SAME_ITERATION: Assumed[Share] = 0.2
"""Largest difference between timed iterations and the mean step, as a share, to count as the same."""


def with_iteration(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with its iteration, if the training generates what it trains on."""
    folder = diagnosis.folder
    found = None if folder is None or not folder.phased else iteration_budget(folder)
    if found is None or folder is None:
        return diagnosis
    budget = diagnosis.budget
    if found.steps == 1 and budget is not None and budget.source == "free":
        found = of_mean_step(found, budget.mean_ns)
    timeline = diagnosis.tables.timeline if diagnosis.steps is not None else None
    found = found if timeline is None else with_recorded(found, timeline, folder)
    noted = left_out(found)
    quality = of_timed_iterations(diagnosis.quality)
    said = () if quality.status != "unusable" and diagnosis.verdict.bound is None else diagnosis.verdict.sentences
    return replace(
        diagnosis,
        quality=quality if noted is None else judged((*quality.issues, noted)),
        verdict=replace(diagnosis.verdict, sentences=said),
        iteration=replace(found, changes=changes(found, trainer_of(folder), bool(diagnosis.environment.gpus))),
    )


def of_mean_step(iteration: Iteration, mean_ns: int) -> Iteration:
    """An iteration of one step, scaled to the mean step, for which more steps were timed: the phases keep their shares
    and sum to it exactly. An iteration far from the mean step is returned unchanged."""
    was = iteration.mean_ns
    if was <= 0 or abs(mean_ns - was) > SAME_ITERATION * was:
        return iteration
    until = [0, *accumulate(one.ns for one in iteration.phases)]
    at = [round(ns * mean_ns / was) for ns in until]
    phases = tuple(
        replace(
            one,
            ns=at[i + 1] - at[i],
            low_ns=min(round(one.low_ns * mean_ns / was), at[i + 1] - at[i]),
            high_ns=max(round(one.high_ns * mean_ns / was), at[i + 1] - at[i]),
        )
        for i, one in enumerate(iteration.phases)
    )
    trains = sum(one.ns for one in phases if one.phase in (FORWARD, BACKWARD, OPTIMIZER))
    return replace(iteration, mean_ns=mean_ns, phases=phases, training_ns=trains)


def left_out(iteration: Iteration) -> Issue | None:
    """The issue about a decode loop that was only recorded in part."""
    found = iteration.unrecorded
    if found is None:
        return None
    share = 100 * found.ns / max(found.ns + sum(one.ns for one in iteration.recorded), 1)
    text = (
        f"{share:.0f} % of the recorded iteration are decode steps that were left out; they count as CPU time in the"
        " verdict, in gaps and in predictions. The iteration's phases come from whole iterations."
    )
    return Issue("decode_not_recorded", "info", text)


def trainer_of(folder: RunFolder) -> Trainer:
    """The trainer and its arguments, from the run."""
    program = folder.own.program
    if program is None:
        return Trainer(frozenset(), None, cpus=folder.cpus)
    model = folder.own.model or {}
    return Trainer(
        frozenset(program.fields),
        program.trainer.name if program.trainer else None,
        program.arguments.name if program.arguments else None,
        program.settings,
        _weight_bytes(model),
        _share(model),
        folder.cpus,
        _is_mixed(model, program.autocast),
    )


def _is_mixed(model: Mapping[str, Any], autocast: str | None) -> bool:
    """Whether weights are float32 and the passes compute in a smaller dtype."""
    dtypes = model.get("dtypes")
    return isinstance(dtypes, dict) and "float32" in dtypes and autocast in ("bfloat16", "float16")


def _weight_bytes(model: Mapping[str, Any]) -> int | None:
    """Size of the model's parameters, bytes; None if a dtype's size is unknown."""
    types = model.get("dtypes") or {}
    return None if not types or types.keys() - BYTES_OF_FORMAT.keys() else round(weight_bytes(model))


def _share(model: Mapping[str, Any]) -> float | None:
    """Share of the parameters that are trained."""
    whole, trained = model.get("parameters"), model.get("trainable")
    if not isinstance(whole, int) or not isinstance(trained, int) or whole <= 0:
        return None
    return trained / whole


def with_recorded(iteration: Iteration, timeline: Timeline, folder: RunFolder) -> Iteration:
    """The iteration with its phases in the recorded window."""
    low, high = window = timeline.window
    left_out = unrecorded(timeline.trace)
    busy = join(*(device.busy for device in timeline.devices))
    times = times_in_window(phase_spans(timeline.trace), left_out, busy, window)
    iterations = max(len(timeline.steps.start_ns) / iteration.steps, 1e-9)
    hidden = clip(left_out, low, high).total
    forwards = sum(window.unrecorded for window in folder.own.windows if window.window == "trace")
    found = replace(
        iteration,
        recorded=tuple(
            RecordedPhase(phase, round(ns / iterations), round(working / iterations))
            for phase, (ns, working) in times.items()
        ),
        unrecorded=Unrecorded(round(hidden / iterations), forwards / iterations) if hidden else None,
    )
    return replace(found, cache_copies=_cache_copies(found, timeline, iterations))


def _cache_copies(iteration: Iteration, timeline: Timeline, iterations: float) -> CacheCopies | None:
    """Cost of copying the key-value cache in the mean iteration, extrapolated from the recorded decode steps: the
    number of copies by the number of steps, their time by its share of the recorded generation. iterations: number
    recorded."""
    trace, generated = timeline.trace, next((one.ns for one in iteration.recorded if one.phase == GENERATION), 0)
    rows = cache_appends(trace, timeline.window)
    if iteration.generation is None or not generated or not rows.any():
        return None
    ops, gpu, all_ = trace.ops, trace.gpu, iteration.generation.forwards
    seen = all_ - (iteration.unrecorded.forwards if iteration.unrecorded is not None else 0.0)
    count = float(rows.sum()) / iterations * (all_ / seen if seen > 0 else 1.0)
    mine = np.isin(timeline.links.op, np.flatnonzero(rows))
    scale = iteration.ns_of(GENERATION) / generated / iterations
    cpu_ns = float((ops.end_ns[rows] - ops.start_ns[rows]).sum())
    gpu_ns = float((gpu.end_ns[mine] - gpu.start_ns[mine]).sum())
    return CacheCopies(round(count), round(scale * cpu_ns), round(scale * gpu_ns))
