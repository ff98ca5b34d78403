"""From a recording that was read to its diagnosis: the facts are in an `Analysis`, the conclusions are drawn here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.asked import NOTHING_ASKED, Asked
from gpuprof.diagnosis.conclusion import by_replay, by_shares, no_gpu_work
from gpuprof.diagnosis.plain_diagnosis import without_steps
from gpuprof.diagnosis.recorded.quality import judged, of_start_up
from gpuprof.diagnosis.recorded_facts import RecordingQuestion
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.run.run_issues import no_trace
from gpuprof.errors import GpuprofError
from gpuprof.runfile import samples_file
from gpuprof.timeline.startup import MOST_START_UP, MUCH_START_UP
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import Trace

if TYPE_CHECKING:
    from gpuprof.projection.projection import Projection


def diagnose(
    trace: Trace | None,
    *,
    run: RunFolder | None = None,
    named: Trace | None = None,
    failure: str = "",
    asked: Asked = NOTHING_ASKED,
    advise: bool = True,
    ranks: int = 1,
    of_all_ns: float | None = None,
) -> Diagnosis:
    """Where a step's time goes, according to the recording.

    `run`: the run that the trace belongs to, whose unprofiled steps it is compared with; `trace` may then be None.
    `failure`: why it is None, or why the run's other recording was not read. `named`: the same program recorded by
    torch.profiler, whose ops are added to a `trace` from Nsight Systems. `advise`: look for fixes, too. `ranks`: number
    of recorded ranks. `of_all_ns`: the step of all these ranks replayed together.
    Raises GpuprofError for options that do not fit the trace.
    """
    if asked.step_ms is not None and not (0.001 <= asked.step_ms < 1e9):
        raise GpuprofError(f"--step-ms {asked.step_ms:g} is not a step time in milliseconds")
    if trace is None and run is None:
        raise GpuprofError("there is neither a trace nor a run to diagnose")
    question = RecordingQuestion(trace, run, named, failure, asked, ranks, of_all_ns, _project)
    analysis = Analysis(question)
    if trace is None:
        return _with_memory(_without_trace(analysis), analysis)
    if analysis.recorded is None:
        return without_steps(analysis, analysis.quality)
    found = _concluded(analysis, advise)
    if found.start_up is not None and analysis.device_times and found.start_up.share >= MOST_START_UP:
        found = replace(
            found, verdict=of_start_up(found.verdict, analysis.whole.start_up, analysis.unit), sensitivities=None
        )
    return _with_memory(_with_host(found, analysis), analysis) if advise or not analysis.device_times else found


def _concluded(analysis: Analysis, advise: bool) -> Diagnosis:
    """By replay, or if that fails, by where the steps' time went."""
    if not analysis.device_times:
        return no_gpu_work(analysis, advise)
    if not analysis.is_replayed:
        return by_shares(analysis)
    timeline = analysis.whole
    repeats = timeline.steps.source != "none" and timeline.start_up.share < MUCH_START_UP
    return by_replay(analysis, advise and repeats)


def _without_trace(analysis: Analysis) -> Diagnosis:
    """A run that was too short, died before its window, or failed to record: what its steps show."""
    facts, run = analysis.run_facts, analysis.folder
    assert facts is not None
    assert run is not None
    said = ("no_baseline", "baseline_work", "run_ended")  # implied by the first issue, or useless without a trace
    others = (issue for issue in analysis.run_issues if issue.id not in said)
    quality = judged((no_trace(run, facts.run, analysis.question.failure), *others))
    return without_steps(analysis, quality)


def _with_host(diagnosis: Diagnosis, analysis: Analysis) -> Diagnosis:
    """The diagnosis with the Python functions of the run's unprofiled steps; unchanged if none were sampled."""
    run = analysis.folder
    if run is None or not Path(run.path, samples_file(run.rank)).exists():
        return diagnosis
    from gpuprof.diagnosis.sampled.gap_frames import with_frames
    from gpuprof.diagnosis.sampled.sampled_functions import host_of
    from gpuprof.tracefile.run_folder.samples import read_samples

    samples = read_samples(Path(run.path), run.rank)
    if samples is None:
        return diagnosis
    case, gaps = analysis_of(diagnosis), diagnosis.gaps
    if case is not None and gaps is not None:
        gaps = with_frames(gaps, samples, case)
    return replace(diagnosis, host=host_of(samples, case, diagnosis.step_ns), gaps=gaps)


def _with_memory(diagnosis: Diagnosis, analysis: Analysis) -> Diagnosis:
    """The diagnosis with its memory; unchanged if none can have been recorded."""
    run, timeline = analysis.folder, analysis.recorded
    trace = None if timeline is None else timeline.trace
    if run is None and (trace is None or not len(trace.memory)):
        return diagnosis
    from gpuprof.diagnosis.memory.memory_section import with_memory

    return with_memory(diagnosis, run, trace, timeline)


def _project(diagnosis: Diagnosis, to: Sequence[str], **options: Any) -> Projection:
    """The diagnosed step on other GPUs, for the diagnosis's tables."""
    from gpuprof.diagnosis.projection_input.recorded_subject import subject_of
    from gpuprof.projection.project import project
    from gpuprof.projection.question import question

    asked = question(to, **options)
    return project(subject_of(diagnosis, None), asked)
