"""Two recordings compared: every sum is exact, what changed is named, and a recording does not differ from itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.compared import MS, NOTHING, PAIRS, check_sums, compared, diagnosed, make_facts
from helpers.make_trace import TraceBuilder
from helpers.quick import few
from jsonschema import Draft202012Validator

import gpuprof
from benchmarks import fixed_pairs
from gpuprof.diagnosis.comparison.compare import (
    compare,
    compare_steps,
    compare_work,
)
from gpuprof.diagnosis.comparison.comparison import DOCUMENT as COMPARISON
from gpuprof.diagnosis.comparison.comparison import Significance
from gpuprof.diagnosis.comparison.same_model import other_model
from gpuprof.diagnosis.comparison.significance import (
    significance,
    unprofiled,
)
from gpuprof.diagnosis.detect.pair.cells import busy_shares
from gpuprof.diagnosis.detect.pair.counts import own_work
from gpuprof.diagnosis.detect.pair.side import Side
from gpuprof.diagnosis.mean_step.baseline import step_time
from gpuprof.diagnosis.result.finding_model import Measured
from gpuprof.errors import GpuprofError
from gpuprof.report.words.comparison_words import prediction
from gpuprof.timeline.devices import COMPUTE
from gpuprof.timeline.timeline import build_timeline

TWINS = fixed_pairs.RECORDED_PAIRS
"""One program recorded without and with a change: before, after, and the finding that advises it. Those of the
scenarios are in tests/accuracy."""
NAMES = [f"{before} → {after}" for before, after, _ in TWINS]


# -- the work that the steps launched


def test_what_was_queued_before_is_not_of_the_window(tmp_path):
    """The host runs a step ahead: the GPU does the first step's work, which has no launches here, while the second's is
    launched."""
    builder = TraceBuilder().step(0, 0, 10 * MS)
    for i in range(4):
        builder.gpu("queued", 2 * i * MS, 2 * (i + 1) * MS)
    for i in range(3):
        builder.launch("own", (i * MS, i * MS + 1000), ((8 + 2 * i) * MS, (10 + 2 * i) * MS))
    timeline = build_timeline(gpuprof.load(builder.write(tmp_path / "ahead.json")))
    assert timeline is not None and len(timeline.members) == 7
    names = [timeline.trace.strings[n] for n in timeline.trace.gpu.name[own_work(timeline)].tolist()]
    assert names == ["own"] * 3
    busy = busy_shares(timeline, 0)[COMPUTE]
    assert sum(busy.values()) == 6 * MS


def test_the_steps_of_a_run_are_those_its_step_was_estimated_from():
    run = diagnosed("tests/data/runs/tiny_lora")
    steps = unprofiled(run)
    found_there = step_time(steps, None, None)
    assert found_there is not None and run.steps is not None and found_there.ns == run.steps.unprofiled_ns
    assert run.run is not None and len(steps) == run.run.baseline.free_steps
    assert len(unprofiled(diagnosed("tiny"))) == 0


# -- recorded twins


@pytest.mark.parametrize(("a", "b", "mechanism"), TWINS, ids=NAMES)
def test_the_fix_of_a_twin_comes_first(a, b, mechanism):
    c = compared(a, b)
    check_sums(c)
    assert c.step.outcome == "faster"
    assert c.mechanisms[0].id == mechanism
    assert c.mechanisms[0].found == "a"
    found_there = c.mechanisms[0].predictions
    assert [p.by for p in found_there] == ["a"] and found_there[0].inside
    assert found_there[0].measured_ns == c.step.b_ns


def test_what_a_trial_measured_stands_next_to_what_was_predicted():
    a, b, mechanism = TWINS[0]
    before, after = diagnosed(a), diagnosed(b)
    tried = Measured("confirmed", 7 * MS, 1.0, 1.1, 1.2, "bitwise", "")
    found = [replace(one, measured=tried) if one.id == mechanism else one for one in before.findings]
    c = compare(replace(before, findings=tuple(found)), after)
    (found_there,) = c.mechanisms[0].predictions
    assert found_there.tried_ns == 7 * MS
    assert "; gpuprof try measured 7.0 ms; B " in prediction(found_there)
    assert not list(Draft202012Validator(COMPARISON.schema()).iter_errors(COMPARISON.to_json(c)))
    assert compared(a, b).mechanisms[0].predictions[0].tried_ns is None


@pytest.mark.parametrize(("a", "b", "mechanism"), TWINS, ids=NAMES)
def test_a_fix_taken_back_is_named_too(a, b, mechanism):
    forth, back = compared(a, b), compared(b, a)
    check_sums(back)
    assert back.step.outcome == "slower" and back.step.difference_ns == -forth.step.difference_ns
    assert back.mechanisms[0].id == mechanism and back.mechanisms[0].found == "b"
    assert [p.by for p in back.mechanisms[0].predictions] == ["b"]


TWO_RANKS = ["scenarios/ddp_scaling/recording", "scenarios/fsdp_exposed/recording"]


@pytest.mark.parametrize(
    "name", few(["tiny", "moe_big", "scenarios/input_starved/recording", *TWO_RANKS], ["tiny", TWO_RANKS[1]])
)
def test_a_recording_does_not_differ_from_itself(name):
    c = compared(name, name)
    check_sums(c)
    assert c.step.outcome == "same" and c.step.difference_ns == 0 and c.step.speedup == 1
    assert not c.mechanisms and not c.unexplained_ns and not c.kernels.rows and not c.ops
    assert all(row.difference_ns == 0 for row in (*c.terms, *c.phases))
    assert c.kernels.new == c.kernels.gone == c.kernels.count_ns == c.kernels.duration_ns == 0
    assert "do not differ" in c.summary
    assert all(r.a_pace_ns == r.b_pace_ns and r.a_waiting_ns == r.b_waiting_ns for r in c.ranks or ())


def test_runs_of_several_ranks():
    c = compared(*TWO_RANKS)
    check_sums(c)
    assert c.ranks is not None and [one.rank for one in c.ranks] == [0, 1]
    assert any(note.id == "one_rank" and "rank 0 of both, of 2 ranks" in note.message for note in c.notes)
    assert c.mechanisms[0].id != "throttling", "of other kernels the clock says little"
    assert compared("tiny", "tiny").ranks is None


def test_copies_that_no_longer_block():
    """Two programs of one model, of which one copies teacher logits from pageable memory."""
    c = compared("copies", "mid")
    check_sums(c)
    assert c.mechanisms[0].id == "pageable_copies"


def test_the_same_program_on_two_hosts_differs_by_its_host():
    c = compared("tests/data/hosts/small_batch", "tests/data/runs/tiny_lora")
    check_sums(c)
    assert c.mechanisms[0].id == "host" and abs(c.mechanisms[0].share or 0) > 0.95
    assert any(note.id == "same_program" for note in c.notes)
    assert c.significance is not None and c.significance.of == "unprofiled" and c.significance.significant
    assert (c.a.known, c.b.known) == ("unprofiled", "unprofiled")
    assert c.work is not None and c.work.equal and c.work.measure == "tokens"


@pytest.mark.slow
def test_programs_that_have_nothing_in_common_still_sum():
    for a, b in (("moe_big", "tf32"), ("four_bit", "scenarios/input_starved/recording"), ("optimizer", "host_encoder")):
        check_sums(compared(a, b))
        check_sums(compared(b, a))


@pytest.mark.slow
def test_recordings_of_one_program_with_other_tools(shared: Path, tmp_path: Path):
    folder = shared / "traces" / "h200"
    plain, stacks = (diagnosed(str(folder / f"tiny_lora_small_batch{x}.json.gz")) for x in ("", "_stack"))
    c = compare(plain, stacks)
    check_sums(c)
    assert abs(c.step.ratio - 1) < 0.1 and c.kernels.new == c.kernels.gone == 0
    assert {m.id for m in c.mechanisms} <= {"host", "kernels"}
    nsys = tmp_path / "x.nsys.sqlite.gz"
    nsys.write_bytes((folder / "tiny_lora_small_batch.nsys.sqlite.gz").read_bytes())
    c = compare(plain, gpuprof.diagnose(nsys))
    check_sums(c)
    assert c.kernels.both > 20 and c.ops == ()
    assert any(note.id == "other_tool" for note in c.notes)


@pytest.mark.slow
def test_ranks_of_one_run(shared: Path):
    folder = shared / "traces" / "h200"
    c = compared(*(str(folder / f"ddp_straggler_rank{rank}.json.gz") for rank in (0, 1)))
    check_sums(c)
    assert c.mechanisms[0].id == "exposed_communication"
    assert any(note.id == "other_rank" for note in c.notes)


# -- which step, and which is faster


def test_a_recorded_step_is_never_compared_with_one_without_the_profiler():
    a, b = diagnosed("tiny"), diagnosed("tiny.compile")
    assert b.steps is not None and a.steps is not None
    blind = replace(b, steps=replace(b.steps, estimated_ns=None))
    c = compare(a, blind)
    check_sums(c)
    assert (c.a.known, c.b.known) == ("recorded", "recorded")
    assert (c.step.a_ns, c.step.b_ns) == (a.steps.recorded_ns, b.steps.recorded_ns)
    assert any(note.id == "recorded_steps" for note in c.notes)
    timed = gpuprof.diagnose(PAIRS / "tiny.json.gz", step_ms=60)
    c = compare(timed, b)
    check_sums(c)
    assert (c.a.known, c.b.known) == ("unprofiled", "estimated") and c.step.a_ns == 60 * MS and not c.step.alike
    assert any(note.id == "unlike_steps" for note in c.notes)


def side(step_ns: int, **changes) -> Side:
    return make_facts({("busy", "gemm", "forward"): step_ns}, NOTHING, **changes).side


def test_more_work_in_a_step_is_accounted_for():
    a, b = side(100 * MS, tokens=128.0, samples=1.0), side(120 * MS, tokens=1024.0, samples=8.0)
    work = compare_work(a, b)
    assert work is not None and (work.measure, work.ratio, work.equal) == ("tokens", 8.0, False)
    step = compare_steps(a, b, work, None)
    assert step.outcome == "faster" and step.speedup == pytest.approx(8 / 1.2)
    real = compare_work(replace(a, real_tokens=100.0), replace(b, real_tokens=101.0))
    assert real is not None and real.equal and real.a == 100
    samples = compare_work(replace(a, tokens=None), b)
    assert samples is not None and samples.measure == "samples"
    hinted = compare_work(side(MS, product_flops=1e12), side(MS, product_flops=4e12))
    assert hinted is not None and hinted.measure == "product FLOPs" and not hinted.equal
    assert compare_work(side(MS, product_flops=1e12), side(MS, product_flops=4e12, products=500)) is None
    assert compare_work(side(MS), side(MS)) is None


def test_what_scatter_explains_is_no_difference():
    a, b = diagnosed("tests/data/runs/tiny_lora"), diagnosed("tests/data/hosts/small_batch")
    tested = significance(a, b)
    assert tested is not None and tested.significant
    unsure = replace(tested, p=0.4, significant=False)
    assert compare_steps(side(100), side(120), None, unsure).outcome == "same"
    assert compare_steps(side(100), side(120), None, tested).outcome == "slower"
    likely = replace(tested, p=0.07, significant=False)
    step = compare_steps(side(100), side(126), None, likely)
    assert (step.outcome, step.sure) == ("slower", False)
    assert compare_steps(side(100), side(105), None, likely).outcome == "same", "processes differ by as much"
    contrary = replace(tested, a_median_ns=tested.b_median_ns, b_median_ns=tested.a_median_ns)
    assert compare_steps(side(100), side(120), None, contrary).outcome == "same"
    assert compare_steps(side(1000), side(1050), None, None).outcome == "same", "processes differ by as much"
    assert compare_steps(side(1000), side(1100), None, None).outcome == "slower"


@pytest.mark.parametrize("what", ["quality", "devices", "steps"])
def test_what_cannot_be_compared_is_said(what, tmp_path):
    good = diagnosed("tiny")
    if what == "steps":
        assert good.steps is not None
        bad = replace(good, steps=replace(good.steps, source="none"))
    elif what == "devices":
        bad = replace(good, devices=())
    else:
        builder = TraceBuilder()
        for i in range(4):
            builder.step(i, i * MS, (i + 1) * MS).op("aten::mm", i * MS, i * MS + 1000)
        bad = gpuprof.diagnose(builder.write(tmp_path / "cpu.json"))
    for pair in ((good, bad), (bad, good)):
        with pytest.raises(GpuprofError, match=r"[AB]"):
            compare(*pair)


def test_means_far_apart_are_no_scatter():
    """One of three steps compiles: the ranks show no difference, the means do."""
    tested = replace(make_significance(), p=0.5, significant=False)
    step = compare_steps(side(5000), side(214), None, tested)
    assert (step.outcome, step.sure) == ("faster", False)
    assert compare_steps(side(150), side(100), None, tested).outcome == "same"
    contrary = replace(tested, a_median_ns=10, b_median_ns=20, significant=True)
    assert compare_steps(side(5000), side(214), None, contrary).outcome == "faster"


def make_significance() -> Significance:
    return Significance("unprofiled", 3, 8, 20, 10, 0.5, False, True, None)


# -- whether it is one program

LLAMA = {"class": "LlamaForCausalLM", "parameters": 1_000_000_000, "dtypes": {"bfloat16": 1}}


@pytest.mark.parametrize(
    ("other", "differ"),
    [
        ({}, False),
        ({"class": "ClassificationTask", "parameters": 23_528_522}, True),
        ({"class": "Task"}, False),  # as many parameters: the model in a user's own wrapper
        ({"class": "LlamaForSequenceClassification", "parameters": 999_000_000}, True),
        ({"parameters": 1_190_000_000}, False),
        ({"parameters": 1_210_000_000}, True),
        ({"parameters": 1_240_000_000, "lora": {"parameters": 240_000_000}}, False),
        ({"parameters": 500_000_000, "wrapper": "FullyShardedDataParallel"}, False),
        ({"parameters": 500_000_000, "quantization": {"method": "gptq"}}, False),
        ({"parameters": 500_000_000, "dtypes": {"uint8": 1}}, False),
        ({"parameters": None}, False),
        ({"class": "T5", "parameters": None}, True),
    ],
)
def test_models_of_another_class_or_size_are_other_programs(other: dict[str, object], differ: bool):
    facts = make_facts({("busy", "gemm", "forward"): MS}, NOTHING)
    for known in ({}, {"hidden_size": 2048, "layers": 16}):
        pair = ({**LLAMA, **known}, {**LLAMA, **known, **other})
        assert (other_model(facts, facts, pair) is not None) == differ
        assert (other_model(facts, facts, (pair[1], pair[0])) is not None) == differ


@pytest.mark.slow
def test_unlike_recordings_are_different_programs():
    c = compared("scenarios/recompiles/recording", "scenarios/timm_resnet50/recording")
    check_sums(c)
    assert "different programs (LlamaForCausalLM of 175,118,336 parameters in A" in c.summary
    assert c.step.outcome != "same" and not any(one.predictions for one in c.mechanisms)
    layers = compared("scenarios/programs/fp8_narrow/recording", "scenarios/programs/fp8_wide/recording")
    assert "different programs (Sequential of 103,821,312" in layers.summary


@pytest.mark.slow
def test_other_kernels_are_not_called_the_same():
    c = compared("scenarios/cases/moe_lora_delta/recording", "scenarios/cases/moe_lora_delta/fixed")
    (note,) = (note.message for note in c.notes if note.id in ("same_program", "other_kernels"))
    assert note.startswith("The programs differ: they launch other kernels (2 new, 2 gone, 1,637 → 1,673 a step)")


# -- JSON

VALIDATOR = Draft202012Validator(COMPARISON.schema())


def test_the_schema_is_one():
    Draft202012Validator.check_schema(COMPARISON.schema())
    document = COMPARISON.to_json(compared("tiny", "tiny.compile"))
    assert list(document) == [key for key in COMPARISON.schema()["properties"] if key in document]
    assert set(COMPARISON.schema()["required"]) <= set(document)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        *[(a, b) for a, b, _ in TWINS],
        ("tiny", "tiny"),
        ("scenarios/small_batch/recording", "scenarios/input_starved/recording"),
    ],
)
def test_every_comparison_is_valid(a, b):
    text = COMPARISON.dumps(compared(a, b))
    assert text.isascii()
    document = json.loads(text)
    assert [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(document)] == []
    assert document["step"]["difference_ns"] == sum(term["difference_ns"] for term in document["terms"])


# -- the API


def test_the_api_takes_paths_traces_and_diagnoses():
    path = PAIRS / "tiny.graphs.json.gz"
    c = gpuprof.compare(path, diagnosed("tiny.graphs"), top=3)
    assert isinstance(c, gpuprof.Comparison) and c.step.difference_ns == 0
    assert c.diagnoses is not None and c.diagnoses[1] is diagnosed("tiny.graphs")
    c = gpuprof.compare(gpuprof.load(path), [PAIRS / "tiny.compile.json.gz"], top=3)
    check_sums(c)
    assert len(c.kernels.rows) == 3 and len(c.ops) == 3
