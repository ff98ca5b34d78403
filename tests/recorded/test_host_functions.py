"""Functions planted in the CPU time of recorded runs: what they cost, and the step without them."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers import diagnosed as recordings
from helpers.make_samples import planted_samples, step_without, time_of, write_samples
from helpers.paths import ROOT
from helpers.present import present
from helpers.quick import few
from jsonschema import Draft202012Validator

import gpuprof
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.detect.cpu.own_lines import own_lines
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.sampled.host_places import host_work
from gpuprof.diagnosis.sampled.sampled_functions import explain_line
from gpuprof.diagnosis.written.diagnosis_json import schema, to_json
from gpuprof.errors import GpuprofError
from gpuprof.record.entry.scalars import in_words, scalars
from gpuprof.report.terminal.terminal import plain
from gpuprof.report.words import fixes
from gpuprof.report.words.explained import explanation
from gpuprof.timeline.phases import PHASES
from gpuprof.tracefile.run_folder.samples import read_samples
from gpuprof.tracefile.trace import Mask

RUNS = ROOT / "tests" / "data" / "runs"


@cache
def case_of(run: str) -> Analysis:
    return present(analysis_of(recordings.diagnosed(RUNS / run)))


def planted_in(case: Analysis) -> dict[str, Mask]:
    """What is planted: work like a walk over the modules (one stretch of the forward pass), small functions between
    ops, work of the optimizer, and work that is recomputed or in a backward hook."""
    graph, work = case.graph, host_work(case.graph)
    phase = np.array(PHASES)[graph.phase]
    main = graph.lane == case.timeline.main_thread
    forward = np.flatnonzero(work & main & (phase == "forward"))
    stretch = np.zeros(len(graph), bool)
    stretch[forward[: len(forward) // 2]] = True
    bare = work & (graph.scope < 0) & (graph.call < 0)
    spread = np.zeros(len(graph), bool)
    spread[np.flatnonzero(work)[::3]] = True
    found = {
        "walk": stretch & ~spread,
        "spread": spread,
        "between": bare & ~spread & ~stretch,
        "optimizer": work & (phase == "optimizer") & ~spread,
        "hook": work & np.isin(phase, ["backward", "recompute"]) & ~spread & ~bare,
    }
    return {name: nodes for name, nodes in found.items() if time_of(case, nodes) > 0.02 * case.step_ns}


Sampled = Callable[[str], tuple[Diagnosis, dict[str, Mask]]]


@pytest.fixture(scope="module")
def sampled(tmp_path_factory: pytest.TempPathFactory) -> Sampled:
    """The diagnosis of a copy of a run with samples of planted functions."""

    @cache
    def diagnosis_of(run: str) -> tuple[Diagnosis, dict[str, Mask]]:
        case = case_of(run)
        planted = planted_in(case)
        folder = tmp_path_factory.mktemp("sampled") / run
        shutil.copytree(RUNS / run, folder)
        write_samples(planted_samples(case, planted), folder)
        return gpuprof.diagnose(folder), planted

    return diagnosis_of


@pytest.mark.parametrize("run", few(["tiny_lora", "dense8b_lora", "trainer_lora"], ["tiny_lora"]))
def test_a_planted_function_has_its_time_and_its_price(run: str, sampled: Sampled):
    diagnosis, planted = sampled(run)
    case, host = analysis_of(diagnosis), diagnosis.host
    assert case is not None and host is not None and diagnosis.step_ns is not None
    assert host.samples >= 1500
    found = {one.function: one for one in host.functions}
    assert len(planted) >= 3
    for name, nodes in planted.items():
        one, true_ns, true_step = found[name], time_of(case, nodes), step_without(case, nodes)
        # 99.9 % of the interval's own width: one of about ten functions may lie outside the 80 % interval.
        half = (one.ns.high - one.ns.low) / 2 * (3.3 / 1.28)
        assert abs(one.ns.expected - true_ns) <= half, name
        if true_ns >= 0.2 * case.step_ns:
            assert one.ns.expected == pytest.approx(true_ns, rel=0.1), name
        assert one.step_ns is not None, (name, one.why_unknown)
        gain, true_gain = diagnosis.step_ns - one.step_ns.expected, case.mean_ns - true_step
        assert abs(gain - true_gain) <= max(0.2 * true_gain, 0.015 * case.mean_ns), name


def test_work_of_the_cpu_has_the_lines_of_the_users_code(sampled: Sampled):
    diagnosis, planted = sampled("tiny_lora")
    case = analysis_of(diagnosis)
    assert case is not None
    names = list(planted)
    for name in ("walk", "optimizer"):
        at = names.index(name) + 1
        assert own_lines(case, planted[name])[0] == f"train.py:{10 * at + 1} {name}"
    assert own_lines(case, case.graph.on_gpu) == ()
    first = diagnosis.findings[0]
    assert "host" in first.acts_on and first.evidence[0].lines
    (said,) = fixes.own_lines(first)
    assert said in plain(diagnosis, 120, verbose=False) and said.startswith("in train.py:")


def test_what_is_hidden_behind_the_gpu_gains_nothing(sampled: Sampled):
    diagnosis, _ = sampled("dense8b_lora")
    assert diagnosis.host is not None and diagnosis.step_ns is not None
    hidden = [one for one in diagnosis.host.functions if one.function in ("optimizer", "hook", "between")]
    assert hidden
    for one in hidden:
        assert one.step_ns is not None and one.step_ns.expected >= 0.995 * diagnosis.step_ns
        assert one.gpu_waits is not None and one.gpu_waits < 0.1


def test_the_json_the_terminal_and_the_trackers_have_it(sampled: Sampled):
    diagnosis, _ = sampled("tiny_lora")
    document = to_json(diagnosis)
    Draft202012Validator(schema()).validate(document)
    text = plain(diagnosis, 100, verbose=False)
    assert " functions " in text and "train.py:" in text and " without it" in text
    gain_ms = scalars(json.loads(json.dumps(document)))["gpuprof/function_gain_ms"]
    assert gain_ms > 5
    assert diagnosis.host is not None
    costly = min(diagnosis.host.functions, key=lambda one: one.step_ns.expected if one.step_ns else math.inf)
    assert f"Python: {costly.place} {costly.function} (without it {gain_ms:.3g} ms less)." in in_words(document)
    assert "Python: " not in in_words(document | {"host": None})


def test_a_line_is_explained(sampled: Sampled):
    diagnosis, planted = sampled("tiny_lora")
    folder, case = diagnosis.folder, analysis_of(diagnosis)
    assert folder is not None and case is not None
    found = explain_line(folder.path, folder.rank, case, diagnosis.step_ns, "train.py", 11)
    assert found is not None and found.function == next(iter(planted))
    near = explain_line(folder.path, folder.rank, case, diagnosis.step_ns, "project/train.py", 13)
    assert near is not None and near.function == found.function, "the function that the line is in"
    assert explain_line(folder.path, folder.rank, case, diagnosis.step_ns, "other.py", 11) is None
    assert explain_line(folder.path, folder.rank, case, diagnosis.step_ns, "train.py", 9999) is None


def test_a_line_without_samples_is_said_to_be_another(sampled: Sampled):
    diagnosis, planted = sampled("tiny_lora")
    at, near = (explanation(f"train.py:{line}", (), lambda: ("run", diagnosis)).lines for line in (11, 13))
    assert next(iter(planted)) in at[0]
    assert at[1].startswith("this line: "), "the list gives the whole function's time at its most sampled line"
    of_function = at[1].replace("this line", "the function")
    assert near == ("No sample at line 13; the sampled function that begins before it:", at[0], of_function, *at[2:])
    with pytest.raises(GpuprofError, match=r"train\.py:9999 is in none of the .* nor in a sampled function"):
        explanation("train.py:9999", (), lambda: ("run", diagnosis))


def test_steps_of_other_parts_have_no_price(tmp_path: Path):
    case = case_of("tiny_lora")
    document = planted_samples(case, planted_in(case))
    document["marks"] = []
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "tiny_lora", folder)
    write_samples(document, folder)
    diagnosis = gpuprof.diagnose(folder)
    assert diagnosis.host is not None
    assert {one.step_ns for one in diagnosis.host.functions} == {None}
    assert all(one.why_unknown for one in diagnosis.host.functions)


@pytest.mark.slow
def test_a_damaged_file_is_passed_over(tmp_path: Path):
    text = json.dumps(planted_samples(case_of("tiny_lora"), {}))
    for cut in (0, 10, 500, 5000):
        (tmp_path / "samples.rank0.json").write_text(text[:cut])
        assert read_samples(tmp_path, 0) is None
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "tiny_lora", folder)
    (folder / "samples.rank0.json").write_text(text[:5000])
    assert gpuprof.diagnose(folder).host is None


def test_waiting_for_workers_has_no_price(tmp_path: Path):
    case = case_of("tiny_lora")
    planted = planted_in(case)
    document = planted_samples(case, planted)
    first = document["functions"].index(next(one for one in document["functions"] if one[2] == "walk"))  # type: ignore[attr-defined]
    document["functions"][first] = [  # type: ignore[index]
        "library", "torch/utils/data/dataloader.py", "_MultiProcessingDataLoaderIter._try_get_data", 1,
    ]  # fmt: skip
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "tiny_lora", folder)
    write_samples(document, folder)
    host = gpuprof.diagnose(folder).host
    assert host is not None
    waiting = [one for one in host.functions if one.function.endswith("_try_get_data")]
    assert [one.why_unknown for one in waiting] == ["it waits for the workers of the DataLoader"]


def test_a_gap_has_the_function_that_the_cpu_was_in(tmp_path: Path):
    case = case_of("tiny_lora")
    planted = {"all_of_it": host_work(case.graph)}
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "tiny_lora", folder)
    write_samples(planted_samples(case, planted, steps=60), folder)
    gaps = gpuprof.diagnose(folder).gaps
    assert gaps is not None
    named = [gap.frame for gap in gaps.largest]
    assert named.count("train.py(11): all_of_it") > 0.5 * len(named)
    assert set(named) <= {"train.py(11): all_of_it", "train.py(1): main", None}
    document = planted_samples(case, planted, steps=60)
    document["marks"] = []  # the sampled steps have other parts
    write_samples(document, folder)
    other = gpuprof.diagnose(folder).gaps
    assert other is not None and {gap.frame for gap in other.largest} == {None}


@pytest.mark.slow
def test_a_line_that_only_runs_the_backward_pass_comes_last(tmp_path: Path):
    case = case_of("tiny_lora")
    document = planted_samples(case, planted_in(case))
    engine = ["library", "torch/autograd/graph.py", "_engine_run_backward", 800]
    first = document["functions"].index(next(one for one in document["functions"] if one[2] == "walk"))  # type: ignore[attr-defined]
    document["functions"][first] = engine  # type: ignore[index]
    nodes = [(0, 0, 0), *document["nodes"]]  # type: ignore[misc]
    nodes = [[caller + 1 if caller >= 0 else -1, function, line] for caller, function, line in nodes]
    nodes[0] = [-1, 0, 99]  # the line of main that starts it
    document["nodes"] = [[0 if function == first else caller, function, line] for caller, function, line in nodes]
    document["samples"] = [[at, node + 1, -1] for at, node, _ in document["samples"]]  # type: ignore[attr-defined]
    folder = tmp_path / "run"
    shutil.copytree(RUNS / "tiny_lora", folder)
    write_samples(document, folder)
    diagnosis = gpuprof.diagnose(folder)
    assert diagnosis.host is not None
    runs = [one.runs for one in diagnosis.host.functions]
    assert runs.count("backward") == 1 and runs[-1] == "backward"
    last = diagnosis.host.functions[-1]
    assert min(one.ns.expected for one in diagnosis.host.functions) < last.ns.expected
    Draft202012Validator(schema()).validate(to_json(diagnosis))
    text = plain(diagnosis, 100, verbose=False)
    assert "backward pass" not in text.partition(" functions ")[2].splitlines()[0]
