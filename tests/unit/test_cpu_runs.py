"""Trainings without a GPU: their timed steps have a verdict, the loader's fix, a report, and a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.make_run import LOADER, MS, RunBuilder, three_steps
from helpers.make_trace import TraceBuilder
from helpers.present import present
from helpers.valid_json import is_valid

import gpuprof
from gpuprof.cli import main
from gpuprof.diagnosis.comparison.comparison import DOCUMENT as COMPARISON
from gpuprof.diagnosis.recorded.quality import _ON_CPU, no_verdict, of_timed_iterations
from gpuprof.diagnosis.result.diagnosis import Diagnosis, Issue, Quality
from gpuprof.diagnosis.result.iteration_model import Iteration, PhaseBudget
from gpuprof.diagnosis.verdict.headline import headline
from gpuprof.diagnosis.written.diagnosis_json import to_json
from gpuprof.diagnosis.written.load_diagnosis import load_diagnosis
from gpuprof.errors import GpuprofError
from gpuprof.report.page.budget_rows import budget_rows
from gpuprof.report.page.comparison import render as comparison_page
from gpuprof.report.page.html import render as page
from gpuprof.report.terminal.comparison_terminal import render as comparison_text
from gpuprof.report.terminal.terminal import plain
from gpuprof.report.words.words import next_step, step_time

STEP_MS = 50.0


def recording(folder: Path, data_ms: float, ops_ms: float) -> Path:
    """Three recorded steps of 50 ms: the loader's range, then ops of the forward pass, then Python."""
    builder = TraceBuilder(gpus=0)
    for i in range(3):
        at = round(i * STEP_MS * MS)
        builder.step(i, at, at + round(STEP_MS * MS))
        if data_ms:
            until = at + round(data_ms * MS)
            builder.annotation("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 1000, until)
        builder.op("aten::mm", at + round(data_ms * MS) + 1000, at + round((data_ms + ops_ms) * MS))
    return builder.write(folder / "cpu.json")


def run(
    folder: Path, *, data_ms: float, ops_ms: float, workers: int = 0, cpus: int = 8, model: dict | None = None
) -> Path:
    """A run on the CPU whose steps take 50 ms, of which `data_ms` prepare their batches."""
    folder.mkdir(parents=True, exist_ok=True)
    trace = recording(folder, data_ms, ops_ms)
    builder = RunBuilder().stage("baseline_free", [STEP_MS] * 12, device_ns=None, data_ns=round(data_ms * MS))
    builder.stage("trace", [STEP_MS] * 3, device_ns=None)
    made = {"batches": 12, "batch_ns": max(data_ms, 0.1) * MS, "batch_cpu_ns": 0.1 * MS, "spread": 0.05}
    builder.rank |= {"gpu": None, "loader": LOADER | {"num_workers": workers, "made": made}}
    builder.rank |= {"torch": "2.13.0+cpu", "cuda": None} | ({"model": model} if model else {})
    builder.manifest["host"] |= {"cpus": cpus}
    return builder.write(folder / "run", trace)


@pytest.fixture(scope="module")
def fed_by_itself(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return run(tmp_path_factory.mktemp("itself"), data_ms=40, ops_ms=6)


@pytest.fixture(scope="module")
def starved(fed_by_itself: Path) -> Diagnosis:
    return is_valid(gpuprof.diagnose(fed_by_itself))


def test_batches_that_take_most_of_the_step_are_the_verdict_and_have_the_fix_that_try_applies(starved: Diagnosis):
    step = present(starved.cpu_step)
    assert (step.input_ns, step.own_ns, step.other_ns) == (40 * MS, 10 * MS, 0)
    assert present(step.ops_ns) == pytest.approx(6 * MS, rel=0.01), "of 10 ms outside the input, 6 in ops"
    assert (starved.verdict.bound, headline(starved)) == ("input", "PREPARING BATCHES 80 %")
    assert starved.quality.status != "unusable"
    (fix,) = starved.findings
    assert fix.id == "input_workers" and present(fix.patch).name == "input_workers"
    # Four workers deliver a batch every 10 ms; the step takes at least the training's own 10 ms.
    assert 10 * MS <= fix.step_ns.expected < 20 * MS and fix.speedup.low > 2
    assert next_step(starved) == "gpuprof explain input_workers"


@pytest.mark.parametrize(
    ("data_ms", "ops_ms", "said", "cause"),
    [(5, 40, "COMPUTING on the CPU 80 %", None), (5, 10, "RUNNING PYTHON between the ops 70 %", "python")],
)
def test_otherwise_it_is_the_ops_or_the_python_between_them(
    tmp_path: Path, data_ms: float, ops_ms: float, said: str, cause: str | None
):
    found = is_valid(gpuprof.diagnose(run(tmp_path, data_ms=data_ms, ops_ms=ops_ms)))
    assert (found.verdict.bound, found.verdict.cause, headline(found)) == ("host", cause, said)


def test_no_workers_are_advised_where_batches_take_no_time(tmp_path: Path):
    found = gpuprof.diagnose(run(tmp_path, data_ms=0, ops_ms=40))
    assert not found.findings and not found.worth_trying


def test_the_terminal_promises_nothing_that_is_not_there(starved: Diagnosis):
    for verbose in (False, True):
        text = plain(starved, 80, verbose=verbose)
        assert "kernel" not in text.replace("there are no kernels to show", "").lower(), text
        assert "GPU waits" not in text and "on a machine with a GPU" not in text


def test_iterations_that_were_timed_are_an_answer_without_a_gpu(starved: Diagnosis):
    """For a training on its own generations it is no error that too few steps were timed."""
    lacking = Quality("unusable", (Issue("no_gpu_events", "error", _ON_CPU), Issue("noise", "warning", "busy")))
    quality = of_timed_iterations(lacking)
    assert [one.severity for one in quality.issues] == ["warning", "info"] and quality.status == "degraded"
    phases = (PhaseBudget("generation", 700, 600, 800), PhaseBudget("forward", 300, 200, 400))
    found = replace(
        starved, cpu_step=None, quality=quality, verdict=no_verdict(quality),
        iteration=Iteration(1, 3, 1000, phases, 0, (), None, (), None, ()),
    )  # fmt: skip
    assert headline(found) == "GENERATING SAMPLES 70 % of the iteration"
    assert step_time(found) == "1.0 µs an iteration", "the only time that is said"
    assert headline(replace(found, iteration=None)) == "NO GPU"


def test_the_commands_end_well(fed_by_itself: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["diagnose", str(fed_by_itself)]) == 0
    assert main(["report", str(fed_by_itself), "-o", str(tmp_path / "r.html")]) == 0
    assert "cannot be diagnosed" not in capsys.readouterr().err
    assert main(["project", str(fed_by_itself), "--to", "H100 SXM5 80GB"]) == 2
    assert "ran on the CPU" in capsys.readouterr().err
    assert main(["memory", str(fed_by_itself)]) == 2
    assert "ran on the CPU: no GPU memory to show" in capsys.readouterr().err


def test_the_page_agrees_with_itself(starved: Diagnosis):
    html = page(starved)
    assert "None waits noticeably" not in html and "<th>launches</th>" not in html
    rows = {row.label: row.share for row in budget_rows(starved)}
    assert rows == {"preparing batches": "80 %", "PyTorch's ops": "12 %", "Python between them": "8 %", "mean step": ""}


def test_it_is_the_same_from_its_json(starved: Diagnosis):
    again = load_diagnosis(json.loads(json.dumps(to_json(starved))))
    assert again == starved and headline(again) == headline(starved)


# -- two recordings


def test_two_runs_are_compared_by_their_timed_steps(tmp_path: Path, starved: Diagnosis):
    with_workers = gpuprof.diagnose(run(tmp_path, data_ms=2, ops_ms=6, workers=4))
    found = gpuprof.compare(starved, with_workers)
    assert found.step.a_ns == found.step.b_ns == 50 * MS, "the same step, made up of other things"
    moved = {(term.kind, term.name): term.difference_ns for term in found.terms}
    assert moved == {("idle", "input"): -38 * MS, ("busy", "training"): 38 * MS}
    first = next(one for one in found.mechanisms if one.id == "input_workers")
    assert "0 → 4 input workers" in first.text and first.predictions
    assert "kernels 0" not in text_of(found) and "CPU ops" not in text_of(found)
    assert "kernels and copies" not in comparison_page(found) and "GPU works" not in comparison_page(found)
    assert COMPARISON.to_json(found)["unexplained_ns"] == 0


def text_of(found: gpuprof.Comparison) -> str:
    from rich.console import Console

    console = Console(width=80, color_system=None)
    with console.capture() as shown:
        console.print(comparison_text(found, 80))
    return shown.get()


@pytest.mark.parametrize("metric", ["kernels", "syncs", "busy_time", "idle_time"])
def test_a_gate_on_the_work_of_a_gpu_does_not_pass_without_one(fed_by_itself: Path, metric: str):
    same = str(fed_by_itself)
    assert main(["compare", same, same, "--fail-on", f"{metric}:5%"]) == 2
    assert main(["compare", same, same, "--fail-on", "step_time:5%"]) == 0


def test_one_with_a_gpu_is_not_compared_with_one_without(tmp_path: Path, starved: Diagnosis):
    on_gpu = gpuprof.diagnose(three_steps(tmp_path / "steps.json"))
    with pytest.raises(GpuprofError, match="B ran on the CPU and A on a GPU"):
        gpuprof.compare(on_gpu, starved)


def test_two_programs_without_a_gpu_are_not_a_change_of_one(tmp_path: Path):
    one, other = (
        gpuprof.diagnose(run(tmp_path / name, data_ms=2, ops_ms=6, model={"class": name, "parameters": count}))
        for name, count in (("GPT2LMHeadModel", 124_000_000), ("LlamaForCausalLM", 1_100_000_000))
    )
    found = gpuprof.compare(one, other)
    assert "different programs (GPT2LMHeadModel of 124,000,000" in found.summary
    assert [note.id for note in found.notes].count("other_program") == 1
    assert found.step.outcome == "other"
    assert not any(mechanism.predictions for mechanism in found.mechanisms)
    assert "different programs" not in gpuprof.compare(one, one).summary
