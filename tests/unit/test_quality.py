"""What gpuprof says about a bad recording: for each issue a small trace with it, and the most similar one without
it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from helpers.make_trace import TraceBuilder
from helpers.quality_cases import CASES
from helpers.quality_traces import LAUNCHES, Boundary, diagnosed, said, sound, without

import gpuprof
from gpuprof.timeline import quality


def test_nothing_is_said_of_a_sound_trace(tmp_path: Path):
    diagnosis = diagnosed(sound(), tmp_path / "trace.json")
    assert diagnosis.quality.issues == ()
    assert diagnosis.quality.status == "ok"
    assert diagnosis.kernels is not None
    assert diagnosis.kernels.count == LAUNCHES


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_said_and_from_where_on(case: Boundary, tmp_path: Path):
    bad = diagnosed(case.bad(), tmp_path / "bad.json")
    assert said(bad) == case.says
    assert bad.quality.status == case.status
    first = next(iter(case.says))
    message = next(issue.message for issue in bad.quality.issues if issue.id == first)
    assert re.search(case.message, message)
    assert "\n" not in message
    nothing_known = case.status == "unusable" or first in ("truncated", "no_calls", "no_host_events")
    assert (bad.verdict.bound is None) == nothing_known
    fine = diagnosed(case.fine(), tmp_path / "fine.json")
    assert said(fine) == (case.of_the_fine or {})


def test_every_issue_has_a_case():
    source = inspect.getsource(quality)
    ids = set(re.findall(r'QualityIssue\(\s*"(\w+)",', source))
    assert len(ids) >= 17
    of_exports = {"no_ops", "graphs_whole", "other_processes"}  # in test_nsys.py
    assert ids - of_exports == {name for case in CASES.values() for name in case.says}


def test_the_worst_comes_first(tmp_path: Path):
    builder = without(sound(shapes=False), "kernel", 60).op("aten::add", 500, 499)
    diagnosis = diagnosed(builder, tmp_path / "trace.json")
    assert [issue.severity for issue in diagnosis.quality.issues] == ["error", "warning", "info"]
    assert diagnosis.verdict.summary == diagnosis.quality.issues[0].message


def test_a_verdict_needs_no_more_than_warnings(tmp_path: Path):
    diagnosis = diagnosed(without(sound(), "kernel", 3), tmp_path / "trace.json")
    assert diagnosis.quality.status == "degraded"
    assert diagnosis.verdict.bound is not None


def test_a_cut_file_without_gpu_events_is_not_called_a_cpu_recording(tmp_path: Path):
    text = TraceBuilder().step(1, 0, 1000).op("aten::mm", 0, 100).text()
    path = tmp_path / "cut.json"
    path.write_text(text[: text.rindex("]")])
    (issue,) = (i for i in gpuprof.diagnose(path).quality.issues if i.id == "no_gpu_events")
    assert "could be read" in issue.message and "CPU only" not in issue.message
