"""The iteration of a diagnosis: the budget of its run, what was recorded of its phases, and what would shorten it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuprof.diagnosis.iteration_model import Iteration, RecordedPhase, Unrecorded
from gpuprof.diagnosis.iterations.budget import iteration_budget
from gpuprof.diagnosis.iterations.changes import Trainer, changes
from gpuprof.diagnosis.quality import judged
from gpuprof.timeline.intervals import clip, join
from gpuprof.timeline.iteration_phases import phase_spans, times_in_window, unrecorded
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.run import RunFolder
from gpuprof.tracefile.source import Issue

if TYPE_CHECKING:
    from gpuprof.diagnosis.diagnosis import Diagnosis


def with_iteration(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis with its iteration, where the training generates what it trains on."""
    folder = diagnosis.folder
    found = None if folder is None or not folder.phased else iteration_budget(folder)
    if found is None or folder is None:
        return diagnosis
    timeline = diagnosis.tables.timeline if diagnosis.steps is not None else None
    found = found if timeline is None else with_recorded(found, timeline, folder)
    noted = left_out(found)
    quality = diagnosis.quality if noted is None else judged((*diagnosis.quality.issues, noted))
    return replace(diagnosis, quality=quality, iteration=replace(found, changes=changes(found, trainer_of(folder))))


def left_out(iteration: Iteration) -> Issue | None:
    """What the reader of the verdict must know of a decode loop that was recorded in part."""
    found = iteration.unrecorded
    if found is None:
        return None
    share = 100 * found.ns / max(found.ns + sum(one.ns for one in iteration.recorded), 1)
    text = (
        f"{share:.0f} % of the recorded iteration are decode steps that were left out; they count as time of the CPU in"
        " the verdict, in gaps and in predictions. The iteration's phases are of whole iterations."
    )
    return Issue("decode_not_recorded", "info", text)


def trainer_of(folder: RunFolder) -> Trainer:
    """What the run says of the trainer and its arguments."""
    program = folder.own.program
    if program is None:
        return Trainer(frozenset(), None)
    return Trainer(frozenset(program.fields), program.trainer.name if program.trainer else None)


def with_recorded(iteration: Iteration, timeline: Timeline, folder: RunFolder) -> Iteration:
    """The iteration with what the recorded window shows of its phases."""
    low, high = window = timeline.window
    left_out = unrecorded(timeline.trace)
    busy = join(*(device.busy for device in timeline.devices))
    times = times_in_window(phase_spans(timeline.trace), left_out, busy, window)
    iterations = max(len(timeline.steps.start_ns) / iteration.steps, 1e-9)
    hidden = clip(left_out, low, high).total
    forwards = sum(window.unrecorded for window in folder.own.windows if window.window == "trace")
    return replace(
        iteration,
        recorded=tuple(
            RecordedPhase(phase, round(ns / iterations), round(working / iterations))
            for phase, (ns, working) in times.items()
        ),
        unrecorded=Unrecorded(round(hidden / iterations), forwards / iterations) if hidden else None,
    )
