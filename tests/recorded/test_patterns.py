"""Patterns of files that other tools wrote, as generated traces: what each diagnosis says, and that it is
consistent."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers import patterns
from helpers.diagnosis_invariants import adds_up
from helpers.make_trace import TraceBuilder
from rich.console import Console, Group

import gpuprof
from gpuprof import Diagnosis
from gpuprof.report.page.comparison import render as render_comparison
from gpuprof.report.page.html import render
from gpuprof.report.terminal import comparison_terminal
from gpuprof.report.terminal import projection as projection_report
from gpuprof.report.terminal.terminal import plain
from gpuprof.report.words import comparison_words, words


def diagnosed(made: TraceBuilder, folder: Path) -> Diagnosis:
    return gpuprof.diagnose(made.write(folder / "trace.json"))


def issues(diagnosis: Diagnosis) -> set[str]:
    return {issue.id for issue in diagnosis.quality.issues if issue.severity != "info"}


@pytest.mark.parametrize("pattern", patterns.PATTERNS, ids=lambda pattern: pattern.__name__)
def test_what_is_said_holds_together(pattern: Callable[[], TraceBuilder], tmp_path: Path):
    diagnosis = diagnosed(pattern(), tmp_path)
    adds_up(diagnosis)
    assert render(diagnosis)


def test_a_graph_capture_has_no_verdict(tmp_path: Path):
    found = diagnosed(patterns.graph_capture(), tmp_path)
    assert found.quality.status == "unusable"
    assert issues(found) >= {"graph_capture"} and "gpu_events_lost" not in issues(found)
    assert found.verdict.summary.startswith("This records the capture of a CUDA graph: 200 of 220 launches")


def test_headline_and_text_are_of_one_step(tmp_path: Path):
    found = diagnosed(patterns.unequal_steps(), tmp_path)
    assert words.step_time(found) == "12 ms an iteration, as recorded"
    assert words.usual_step(found) == "usually 10 ms"
    assert "of the iteration" in plain(found, 100)


def test_the_profiler_makes_no_step_shorter(tmp_path: Path):
    found = diagnosed(patterns.ahead(), tmp_path)
    assert found.steps is not None and found.steps.estimated_ns is not None
    assert found.steps.estimated_ns > 1.1 * found.steps.recorded_ns
    assert words.step_time(found) == "about 12 ms an iteration"
    assert found.kernels is not None and found.kernels.after_ns > 0
    assert "of it after the last step ended on the CPU" in plain(found, 160)


def test_a_larger_batch_gains_no_more_than_its_work(tmp_path: Path):
    found = {one.id: one for one in diagnosed(patterns.small_batch(), tmp_path).findings}
    batch = found["larger_batch"]
    assert batch.work > 1
    assert batch.speedup.high <= batch.work
    assert batch.speedup.low < batch.speedup.expected <= batch.speedup.high


def test_work_of_another_century_is_not_believed(tmp_path: Path):
    found = diagnosed(patterns.far_kernel(), tmp_path)
    assert (found.quality.status, found.verdict.bound) == ("unusable", None)
    assert issues(found) >= {"impossible_times"}


def test_more_flops_than_the_device_can_do_are_said(tmp_path: Path):
    found = diagnosed(patterns.beyond_peak(), tmp_path)
    assert found.roofline is not None and found.roofline.mfu is not None and found.roofline.mfu > 1
    assert issues(found) >= {"beyond_peak"}
    assert "beyond_peak" not in issues(diagnosed(patterns.small_batch(), tmp_path))


@pytest.mark.parametrize(
    ("pattern", "issue"), [(patterns.one_kernel, "little_gpu_work"), (patterns.silent_end, "silent_end")]
)
def test_no_verdict_without_a_step_worth_the_name(pattern: Callable[[], TraceBuilder], issue: str, tmp_path: Path):
    found = diagnosed(pattern(), tmp_path)
    assert (found.quality.status, found.verdict.bound, found.findings) == ("unusable", None, ())
    assert issues(found) >= {issue}


def test_an_inference_engine_is_known_by_its_kernels_and_its_gpu(tmp_path: Path):
    found = diagnosed(patterns.inference_engine(), tmp_path)
    assert found.environment.gpus[0].name == "Instinct MI300X"
    assert found.kernels is not None
    names = {one.category for one in found.kernels.by_category}
    assert names == {"norm", "gemm", "attention", "grouped_gemm", "gather/scatter/index", "elementwise"}


def test_an_engine_that_waits_unrecorded_is_judged_by_what_its_gpu_does(tmp_path: Path):
    """If the 14 ms after its last event were taken for Python code, it would be host-bound."""
    found = diagnosed(patterns.silent_decode(), tmp_path)
    assert (found.verdict.bound, found.unit) == ("memory", "iteration")
    assert found.sensitivities is not None
    assert found.sensitivities.memory is not None and found.sensitivities.memory > 0.8
    assert found.sensitivities.host < 0.2
    assert found.verdict.confidence is not None and 0.5 <= found.verdict.confidence < 0.7
    assert any("last event is at 14 % of the window" in text for text in found.verdict.doubts)


def test_silence_of_cpu_and_gpu_leaves_no_sure_verdict(tmp_path: Path):
    """The longer nothing is recorded at the end, the less sure the verdict; with most of the window silent there is
    none."""
    found = [diagnosed(patterns.early_end(ms), tmp_path) for ms in (0, 1, 2, 4, 8)]
    sure = [one.verdict.confidence or 0 for one in found]
    assert all(one.verdict.bound == "host" for one in found)
    assert sure == sorted(set(sure), reverse=True)
    assert sure[0] > 0.95 and sure[1] < 0.95 and sure[2] < 0.85 and sure[-1] < 0.5
    assert not found[0].verdict.doubts
    for one, percent in zip(found[1:], (90, 85, 76, 63), strict=True):
        assert any(f"last event is at {percent} % of the window" in text for text in one.verdict.doubts)
    assert words.label(found[-1]) == "UNCLEAR: HOST"
    longest = diagnosed(patterns.early_end(25), tmp_path)
    assert (longest.quality.status, longest.verdict.bound) == ("unusable", None)
    assert issues(longest) == {"silent_end"}
    assert "Nothing was recorded in the last 25.55 of 40.00 ms" in longest.verdict.summary


def test_an_unclear_verdict_says_what_would_decide(tmp_path: Path):
    found = diagnosed(patterns.unequal_steps(), tmp_path)
    assert found.verdict.unclear and words.label(found).startswith("UNCLEAR: ")
    assert found.verdict.doubts
    for doubt in found.verdict.doubts:
        assert doubt in found.verdict.summary
        assert not re.search(r"\bsteps?\b", doubt)


def test_a_recording_without_steps_has_none_in_its_text(tmp_path: Path):
    made = patterns.small_batch()
    made.events = [e for e in made.events if not e["name"].startswith("ProfilerStep")]
    found = diagnosed(made, tmp_path)
    assert found.steps is not None and found.steps.source == "none"
    assert found.verdict.summary.startswith("The GPU works 2 % of the recording. ")
    assert "step" not in found.verdict.summary


def test_comparisons_and_projections_speak_of_iterations(tmp_path: Path):
    path, other = (tmp_path / name for name in ("a.json", "b.json"))
    patterns.inference_engine().write(path)
    patterns.silent_decode().write(other)
    comparison = gpuprof.compare(path, other)
    assert comparison.unit == "iteration"
    projection = gpuprof.project(other, ["H100 SXM5 80GB", "L20"])
    assert projection.unit == "iteration"
    screens = (shown(comparison_terminal.render(comparison)), shown(projection_report.render(projection)))
    for screen in screens:
        assert "an iteration" in screen
        assert not re.search(r"(?<!:)\b[Ss]teps?\b", re.sub(r"ProfilerStep\S*|--step\S*", "", screen)), screen
    page = render_comparison(comparison)
    assert "Phases of the iteration" in page and "Phases of the step" not in page


@pytest.mark.parametrize(("side", "other"), [(512, True), (64, False)])
def test_different_programs_are_not_one_with_a_change(side: int, other: bool, tmp_path: Path):
    """What a diagnosis predicts for one model is not measured by the step of another."""
    paths = [patterns.of_weights(size, kernels).write(tmp_path / f"{size}_{kernels}.json")
             for size, kernels in ((64, 100), (side, 30))]  # fmt: skip
    found = gpuprof.compare(*paths)
    assert (comparison_words.outcome(found) == "DIFFERENT PROGRAMS") == other
    assert ("other_program" in {note.id for note in found.notes}) == other
    assert sum(one.difference_ns for one in found.mechanisms) + found.unexplained_ns == found.step.difference_ns
    if other:
        assert "of the 3 shapes of weights in one, none is in the other" in found.summary
        assert not [one for mechanism in found.mechanisms for one in mechanism.predictions]
        assert "predicted" not in shown(comparison_terminal.render(found))


def shown(screen: Group) -> str:
    console = Console(width=160, file=io.StringIO())
    with console.capture() as capture:
        console.print(screen)
    return capture.get()
