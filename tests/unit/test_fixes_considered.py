"""Fixes that are considered and not advised, with the reason; and what a fix costs before it gains."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from helpers.case import run_of
from helpers.make_diagnosis import host_bound
from helpers.program import MS, SHORT, US, Program
from helpers.replay_oracle import LOADER

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.compiled.compile_time import compile_ns
from gpuprof.diagnosis.detect.declared.proposal import SURE_GAIN, Page, Proposal
from gpuprof.diagnosis.findings import ABSENT, FINDINGS
from gpuprof.diagnosis.fixes import predict
from gpuprof.diagnosis.fixes.chance import time_left
from gpuprof.diagnosis.fixes.predict import Fixes, fixes
from gpuprof.diagnosis.fixes.predicted_step import Prediction
from gpuprof.diagnosis.fixes.small_change import small_change
from gpuprof.diagnosis.result.fix import Fix
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.bound import Bound
from gpuprof.replay.transform import scale, scaled
from gpuprof.report.words.fixes import why_first, why_not_the_cause
from gpuprof.value_range import Range


def launching(tmp_path: Path, **run) -> Analysis:
    """A launch-bound step that torch.compile would shorten."""
    program = Program()

    def body() -> None:
        for _ in range(120):
            program.op("aten::mm", "nvjet_hsh_128x64", SHORT, [[128, 512], [512, 512]], ["float", "float"])
            for _ in range(8):
                program.elementwise()
        program.backward(program.small_mm, 60)

    for _ in range(4):
        program.step(body)
    return program.case(tmp_path, replace(run_of(), **run) if run else None)


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Analysis:
    return launching(tmp_path_factory.mktemp("launching"))


@pytest.fixture(scope="module")
def found(case: Analysis) -> Fixes:
    return fixes(case)


def test_everything_is_either_advised_or_considered_once(found: Fixes):
    advised, considered = {one.id for one in found.findings}, [one.id for one in found.considered]
    assert not found.failed
    assert "compile" in advised
    assert len(considered) == len(set(considered)) and not advised & set(considered)
    known = {page.id for page, _ in FINDINGS}
    assert set(ABSENT) <= known and set(considered) <= known
    assert all(one.reason and one.title for one in found.considered)


def test_what_may_gain_nothing_is_not_advised(found: Fixes):
    for one in found.findings:
        assert one.speedup.low >= SURE_GAIN, one.id


@pytest.mark.parametrize("bound", ["host", "input"])
def test_what_is_expected_to_gain_most_comes_first_whatever_the_verdict_names(bound: Bound, tmp_path: Path):
    """The main process prepares batches for 14 ms, then there are many launches."""
    program = Program()

    def body() -> None:
        start = program.now
        program.python(14 * MS)
        program.trace.op(LOADER, start, program.now)
        for _ in range(120):
            program.op("aten::mm", "nvjet_hsh_128x64", 60 * US, [[128, 512], [512, 512]], ["float", "float"])
            for _ in range(8):
                program.elementwise()
        program.backward(program.small_mm, 60)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    found = {
        one.id: time_left(one.speedup)
        for one in fixes(case, bound).findings
        if one.changes is None and one.overlaps is None
    }
    assert next(iter(found)) == "cuda_graphs" and found["cuda_graphs"] < found["input_workers"]
    assert list(found.values()) == pytest.approx(sorted(found.values()), abs=0.01)


def test_what_a_fix_would_change_is_said_as_a_fact_and_not_as_noise_of_the_step(tmp_path: Path):
    """A few µs of fp32 matrix multiplications, and one wait for the GPU a step, of a step of milliseconds."""
    program = Program()

    def body() -> None:
        program.mm(64, 64, 64, gpu=3 * US, type="float", kernel="ampere_sgemm_128x64_tn")
        for _ in range(200):
            program.small_mm(gpu=20 * US)
        program.item()

    for _ in range(4):
        program.step(body)
    reasons = {one.id: one.reason for one in fixes(program.case(tmp_path)).considered}
    assert reasons["tf32"] == "fp32 matrix multiplications without tensor cores take 3.0 µs a step"
    assert reasons["pageable_copies"] == "nothing is copied to the GPU from pageable memory"
    assert reasons["syncs"].startswith("the CPU waits once a step for the GPU, which adds ")


def test_an_unsure_fix_is_ruled_out_for_its_probability(case: Analysis, monkeypatch: pytest.MonkeyPatch):
    unsure = Proposal("unsure", (), Fix(), partial(scale, host=0.8), odds=0.4)
    monkeypatch.setattr(predict, "FINDINGS", ((Page("one", "", "", "", "", ""), lambda case: [unsure]),))
    (why,) = fixes(case).considered
    assert why.reason == "shortens a step by 2 % with a probability of 0.40 only"


@pytest.mark.parametrize(("left", "advised"), [pytest.param(100_000, True, marks=pytest.mark.slow), (300, False)])
def test_compiling_has_to_be_earned_back(left: int, advised: bool, case: Analysis, tmp_path: Path):
    run = {"steps_total": left + 10, "steps_seen": 10, "remaining_ns": round(left * case.mean_ns), "status": "killed"}
    found = fixes(launching(tmp_path / "run", **run))
    compiled = [one for one in found.findings if one.id == "compile"]
    assert bool(compiled) == advised
    if advised:
        (one,) = compiled
        assert one.once_ns is not None and one.remaining_ns is not None
        expected = run["remaining_ns"] * one.step_ns.expected / case.mean_ns + one.once_ns.expected
        assert one.remaining_ns.expected == pytest.approx(expected, rel=1e-6)
    else:
        (why,) = (one for one in found.considered if one.id == "compile")
        assert "earned back after" in why.reason and f"{left} are left" in why.reason


def test_starting_again_counts_while_the_training_runs(case: Analysis, tmp_path: Path):
    run = {
        "steps_total": 100_010,
        "steps_seen": 10,
        "remaining_ns": round(1e5 * case.mean_ns),
        "startup_ns": 30 * 10**9,
    }
    still, over = (fixes(launching(tmp_path / s, **run, status=s)).findings for s in ("running", "killed"))
    for a, b in zip(still, over, strict=True):
        assert a.remaining_ns and b.remaining_ns
        assert a.remaining_ns.expected - b.remaining_ns.expected == 30 * 10**9


def test_the_time_to_compile_grows_with_the_kernels_and_with_other_lengths():
    """In seconds, measured on an H200's host: Llama with 4, 12 and 24 layers, BERT, ResNet-50."""
    measured = {544: 20.9, 1520: 32.7, 2984: 47.5, 704: 40.1, 721: 39.6}
    inside = 0
    for kernels, seconds in measured.items():
        low, _, high = compile_ns(kernels, False)
        inside += low <= seconds * 1e9 <= high
    assert inside >= 4
    for kernels, seconds in {544: 20.9 + 23.2, 1520: 32.7 + 60.2, 2984: 47.5 + 101.8}.items():
        low, _, high = compile_ns(kernels, True)
        assert low <= seconds * 1e9 <= high


def test_a_fix_that_failed_when_tried_is_listed_as_failed_and_not_advised(case: Analysis, found: Fixes):
    assert "cuda_graphs" in {one.id for one in found.findings}
    after = fixes(case, None, {"cuda_graphs": "output of CUDAGraphs that has been overwritten"})
    assert "cuda_graphs" not in {one.id for one in after.findings}
    assert after.combined is None or "cuda_graphs" not in after.combined.ids
    (failed,) = (one for one in after.considered if one.id == "cuda_graphs")
    assert failed.reason == "failed in gpuprof try: output of CUDAGraphs that has been overwritten"
    assert failed.speedup is not None


def test_a_first_fix_of_something_else_than_the_verdict_names_says_why(found: Fixes):
    """CUDA graphs gain more than workers on a step that the verdict calls input-bound; fix 2 concerns the input."""
    first, other = found.findings[0], replace(found.findings[0], id="input_workers", acts_on=("input",))
    assert first.acts_on[0] == "host"
    diagnosis = host_bound()
    agreed = replace(diagnosis, findings=(first, other), worth_trying=())
    assert why_first(agreed) == ""
    differs = replace(agreed, verdict=replace(diagnosis.verdict, bound="input"))
    assert "number 2 acts on input, and is expected to gain less" in why_first(differs)
    assert "no fix is known" in why_first(replace(differs, findings=(first,)))
    changing = replace(other, changes="twice the samples")
    assert "number 2 acts on input, but changes the training" in why_first(replace(differs, findings=(first, changing)))
    assert why_first(differs, brief=True) == "2 acts on what the verdict names, 1 is expected to gain more"


def test_a_first_fix_that_leaves_the_named_cause_alone_says_which_fix_acts_on_it(found: Fixes):
    """Planning kernels sets the verdict, and a fix of other work gains more."""
    first, other = found.findings[0], replace(found.findings[0], id="planning")
    diagnosis = host_bound()
    planning = replace(diagnosis.verdict, cause="planning")
    differs = replace(diagnosis, verdict=planning, findings=(first, other), worth_trying=())
    assert "names planning kernels" in why_not_the_cause(differs)
    assert "number 2 acts on planning kernels, and is expected to gain less" in why_not_the_cause(differs)
    assert why_not_the_cause(replace(differs, findings=(other, first))) == ""
    assert why_not_the_cause(replace(differs, findings=(first,))) == "", "no fix is known to act on it"
    assert why_not_the_cause(replace(differs, verdict=diagnosis.verdict)) == ""


@pytest.mark.parametrize(
    ("factor", "gain", "said"),
    [
        (1.2, 1 / 3.7, ", which makes it 3.7 times as long"),
        (0.999, 1.0, ", which changes it by less than 1 %"),
        (1.2, 1 / 1.2, ", which lengthens it by 20 %"),
        (0.999, 1 / 1.2, ", which changes it by less than 1 %"),
        (0.999, 1.25, ", which shortens it by 20 %"),
    ],
)
def test_what_a_fix_would_change_in_words(factor: float, gain: float, said: str, case: Analysis):
    """What only takes time off makes no step longer, whichever of the recorded ones then is the usual one."""
    proposal = Proposal("little", (), Fix(), partial(scaled, nodes=case.graph.on_gpu, factor=factor))
    assert small_change(case, proposal, Range(gain, gain, gain)).endswith(said)


def test_a_wait_that_goes_with_a_fix_is_said(case: Analysis):
    """The GPU saves little, and yet the step gets 20 % shorter."""
    little = Proposal("little", (), Fix(), partial(scaled, nodes=case.graph.on_gpu, factor=0.999))
    saved_ns = 0.001 * case.graph.duration_ns[case.graph.on_gpu].sum() / case.steps
    text = small_change(case, little, Range(1.25, 1.25, 1.25))
    assert f" of GPU time and a wait of {duration(0.2 * case.shown_ns - saved_ns)} off a step" in text
    saving = replace(little, lumps={"save": 0.0})
    assert "a wait" not in small_change(case, saving, Range(1.25, 1.25, 1.25)), "saving goes, no wait"


@pytest.mark.parametrize(("low", "risky"), [(0.6, True), (1.0, False)])
def test_an_expected_gain_that_its_risk_outweighs_is_named_with_the_risk(low: float, risky: bool, case: Analysis):
    """Half of a fix's outcomes gain 8 %, the others cost far more: on average it is not worth trying."""
    proposal = Proposal("little", (), Fix(), partial(scaled, nodes=case.graph.on_gpu, factor=0.999))
    step = Range(1, 1, 1)
    one = predict._Predicted("compile", proposal, Prediction(step, Range(low, 1.08, 1.1 if risky else 1.5)))
    assert (one.list is None) == risky
    text = predict._why_not(case, one)
    assert text.endswith("shortens it by 7.4 %, but at worst makes it 1.7 times as long") == risky, text
