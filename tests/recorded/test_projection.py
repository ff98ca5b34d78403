"""Projections: the same GPU gives the recorded step, other GPUs follow from their figures, and every output matches its
schema."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from functools import lru_cache

import numpy as np
import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from helpers.quick import few
from helpers.traces import shared_trace
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

import gpuprof
from gpuprof.calibration import noise as noise_calibrated
from gpuprof.costs.hardware import Gpu, find, load_gpus
from gpuprof.costs.measured_rates import Measurement
from gpuprof.costs.split import MEMORY
from gpuprof.diagnosis.projection_input.recorded_subject import subject_of
from gpuprof.errors import GpuprofError
from gpuprof.projection.changes.batch import grown
from gpuprof.projection.changes.other_cpu import another_host, measured_factor
from gpuprof.projection.changes.other_gpu import scaled_kernels
from gpuprof.projection.cost import cost, mean_power_w, price_of
from gpuprof.projection.data_parallel import scaling
from gpuprof.projection.gpu_names import gpu_named, variant_note
from gpuprof.projection.project import project
from gpuprof.projection.projected_step import ProjectedStep, combined
from gpuprof.projection.projection import DOCUMENT as PROJECTION
from gpuprof.projection.projection import Price
from gpuprof.projection.projection_sentence import summarize
from gpuprof.projection.question import OPTIONS, parse_prices, question
from gpuprof.projection.subject import Subject
from gpuprof.projection.sustained_rates import POWER_CONSTANT, power_limited_flops, reach
from gpuprof.replay.graph import DEVICE
from gpuprof.replay.simulate import ROUNDS, simulate
from gpuprof.replay.transform import scale
from gpuprof.value_range import Range

RUNS = ROOT / "tests" / "data" / "runs"
VALIDATOR = Draft202012Validator(PROJECTION.schema())


def gpu(name: str) -> Gpu:
    found = find(name)
    assert found is not None
    return found


@lru_cache(maxsize=5)
def subject(name: str) -> Subject:
    """Of a committed run."""
    return subject_of(diagnosed(RUNS / name))


def step(name: str, to: Gpu, share: float = 1.0, **asked: object) -> float:
    elsewhere = ProjectedStep(subject(name), question([to.name], **asked))  # type: ignore[arg-type]
    return elsewhere.step_ns(reach(to), share)


@pytest.fixture(autouse=True)
def _no_saved_measurements(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


# -- the whole


@pytest.mark.parametrize(
    "name",
    few(["dense8b_lora", "tiny_lora", "trl_sft", "unsloth_qlora", "trainer_lora"], ["dense8b_lora", "tiny_lora"]),
)
def test_the_same_gpu_and_host_is_the_recorded_step(name):
    """The step is exactly the recorded one."""
    s = subject(name)
    assert step(name, s.gpu) == s.mean.now_ns() == s.step_ns.expected
    assert s.step_ns.expected == pytest.approx(diagnosed(RUNS / name).step_ns, rel=1e-3)
    graph = ProjectedStep(s, question([s.gpu.name])).graph(reach(s.gpu), 1.0)
    assert np.array_equal(graph.duration_ns, s.graph.duration_ns)
    assert np.array_equal(graph.edges.lag_ns, s.graph.edges.lag_ns)


@pytest.mark.parametrize(
    "path",
    [
        *(RUNS / name for name in ("dense8b_lora", "tiny_lora", "trl_sft", "unsloth_qlora", "trainer_lora")),
        *(ROOT / "scenarios" / name / "recording" for name in ("starved_workers", "input_starved", "periodic_saving")),
        *((ROOT / "tests" / "data" / name) for name in ("tiny_lora_dataloader.json.gz", "unsloth_llama1b.json.gz")),
    ],
    ids=lambda path: path.parent.name if path.name == "recording" else path.name,
)
def test_on_the_recorded_gpu_the_same_binds_as_in_the_diagnosis(path):
    diagnosis = diagnosed(path)
    found = gpuprof.project(diagnosis, [diagnosis.environment.gpus[0].name]).gpus[0]
    assert found.bound == diagnosis.verdict.bound
    assert found.speedup.expected == pytest.approx(1)
    assert found.step_ns.expected == pytest.approx(diagnosis.step_ns, rel=0.01)


def test_workers_that_starve_a_training_starve_a_faster_gpu_too():
    diagnosis = diagnosed(ROOT / "scenarios" / "starved_workers" / "recording")
    found = gpuprof.project(diagnosis, ["B200", "B300"]).gpus
    assert [one.bound for one in found] == ["input", "input"]
    assert all(one.speedup.expected < 1.1 for one in found)


def test_how_well_the_mean_step_was_timed_says_nothing_of_a_gain():
    """On the recorded GPU the gain is 1 within the noise between processes, however few ends of epochs were seen."""
    diagnosis = diagnosed(ROOT / "scenarios" / "starved_workers" / "recording")
    found = gpuprof.project(diagnosis, [diagnosis.environment.gpus[0].name]).gpus[0]
    assert found.step_ns.high > 2 * found.step_ns.expected
    noise = 1 + noise_calibrated.GPU_PROCESS.value
    assert dataclasses.astuple(found.speedup) == pytest.approx((1 / noise, 1, noise))


def test_what_the_profiler_cost_cancels_where_the_cpu_binds_on_both_gpus():
    found = gpuprof.project(diagnosed(ROOT / "tests" / "data" / "unsloth_llama1b.json.gz"), ["H100 SXM", "L4"])
    on = {one.bound: (_width(one.step_ns), _width(one.speedup)) for one in found.gpus}
    assert on["host"][1] < 0.7 * on["host"][0]
    assert on["memory"][1] > 1.2 * on["memory"][0], "the recorded step is not known, and the L4's does not follow it"


def _width(one: Range) -> float:
    return math.log(one.high / one.low)


def test_usual_steps_are_compared_with_the_usual_step():
    """New shapes make the recorded mean step longer; an H100 must not seem faster because their cost there is
    unknown."""
    diagnosis = diagnosed(ROOT / "scenarios" / "trl_sft" / "recording")
    found = gpuprof.project(diagnosis, ["H100 SXM", "H200"], explain=("H200", "H100 SXM"))
    on = {one.gpu: one for one in found.gpus}
    assert on["H100 SXM5 80GB"].step_ns.expected < 0.8 * on["H200 SXM"].step_ns.expected
    assert on["H100 SXM5 80GB"].speedup.expected < on["H200 SXM"].speedup.expected == pytest.approx(1)
    assert found.explanation
    assert found.explanation.factor.expected == pytest.approx(1 / on["H100 SXM5 80GB"].speedup.expected)
    assert any("Usual steps" in text for text in found.assumptions)
    alone = gpuprof.project(diagnosis, ["H200"])
    assert not any("Usual steps" in text for text in alone.assumptions)


@pytest.mark.parametrize("name", few(["dense8b_lora", "tiny_lora"], ["tiny_lora"]))
def test_every_output_is_valid(name):
    found = gpuprof.project(
        diagnosed(RUNS / name), ["H100 SXM", "RTX 4090", "L4", "T4"], ranks=(2, 8), epoch_samples=10_000,
        host_factor=0.8, explain=("RTX 4090", "L4"), prices={"l4": 0.5},
    )  # fmt: skip
    document = json.loads(json.dumps(PROJECTION.to_json(found), allow_nan=False))
    assert [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(document)] == []
    assert document["schema"] == "gpuprof.projection/1"
    assert {one["gpu"] for one in document["gpus"]} == {"H100 SXM5 80GB", "RTX 4090", "L4", "T4"}
    speedups = [one["speedup"]["expected"] for one in document["gpus"]]
    assert speedups == sorted(speedups, reverse=True)
    for one in document["gpus"]:
        assert one["step_ns"]["low"] <= one["step_ns"]["expected"] <= one["step_ns"]["high"]
        assert [s["gpus"] for s in one["scaling"]] == [2, 8]
        known = document["recorded"]["work"]["samples"] is not None  # of a run without a DataLoader they are not
        assert (one["cost"]["kwh_per_epoch"] or 0) > 0 if known else one["cost"]["kwh_per_epoch"] is None
    reasons = document["explanation"]["reasons"]
    assert [reason["id"] for reason in reasons] == [
        "host_floor", "capacity", "host_speed", "compute", "bandwidth", "rest"
    ]  # fmt: skip
    whole = math.prod(reason["factor"] for reason in reasons if reason["factor"] is not None)
    assert whole == pytest.approx(document["explanation"]["factor"]["expected"]), "the factors multiply to the whole"


def test_the_schema_is_one_and_refuses_what_is_not():
    Draft202012Validator.check_schema(PROJECTION.schema())
    document = PROJECTION.to_json(gpuprof.project(diagnosed(RUNS / "tiny_lora"), ["H100 SXM"]))
    document["gpus"][0]["bound"] = "cpu"
    assert list(VALIDATOR.iter_errors(document))
    document["gpus"][0]["bound"] = "host"
    document["extra"] = 1
    assert list(VALIDATOR.iter_errors(document))


# -- other GPUs


@settings(max_examples=12, deadline=None)
@given(st.floats(1.0, 4.0), st.floats(1.0, 4.0), st.sampled_from(["dense8b_lora", "tiny_lora"]))
def test_a_better_gpu_is_never_slower(compute, memory, name):
    base = gpu("A100 SXM4 80GB")
    better = dataclasses.replace(
        base, measured_flops=(base.measured_flops or 0) * compute, memory_bytes_per_s=base.memory_bytes_per_s * memory,
        dense_flops={dtype: rate * compute for dtype, rate in base.dense_flops.items()},
    )  # fmt: skip
    elsewhere = ProjectedStep(subject(name), question([base.name]))
    assert elsewhere.step_ns(reach(better), 1.0) <= elsewhere.step_ns(reach(base), 1.0) * (1 + 1e-9)


def test_half_the_bandwidth_slows_down_most_what_used_most_of_it():
    s = subject("dense8b_lora")
    here = reach(s.gpu)
    half = dataclasses.replace(here, memory_bytes_per_s=here.memory_bytes_per_s / 2)
    timeline, roofline = s.graph.timeline, s.roofline
    work = grown(timeline, roofline, 1.0, None)
    factor = scaled_kernels(timeline, roofline, here, half, work).factor
    moves = (roofline.split.bound == MEMORY) & (work.memory_ns > work.compute_ns)
    used = roofline.split.efficiency
    assert (factor[moves] >= 1).all()
    assert (factor[moves] <= 2 + 1e-9).all()
    assert factor[moves & (used > 0.9)].mean() > 1.7
    assert factor[moves & (used < 0.4)].mean() < 1.3


def test_half_a_gpu_takes_twice_as_long_where_the_gpu_binds():
    """For the kernels of a large model everything but launch latency doubles."""
    s = subject("dense8b_lora")
    here = reach(s.gpu)
    half = dataclasses.replace(
        here, flops={dtype: rate / 2 for dtype, rate in here.flops.items()},
        memory_bytes_per_s=here.memory_bytes_per_s / 2,
        gpu=dataclasses.replace(here.gpu, boost_mhz=(here.gpu.boost_mhz or 0) / 2),
    )  # fmt: skip
    elsewhere = ProjectedStep(s, question([s.gpu.name]))
    before, after = (elsewhere.graph(one, 1.0) for one in (here, half))
    kernels = before.resource == DEVICE
    ratio = after.duration_ns[kernels].sum() / before.duration_ns[kernels].sum()
    assert 1.9 < ratio <= 2.0
    assert simulate(after, ROUNDS).step_ns / simulate(before, ROUNDS).step_ns == pytest.approx(ratio, rel=0.05)


def test_a_format_that_a_gpu_lacks_is_computed_in_another():
    t4 = reach(gpu("T4"))
    assert t4.rate("bf16") == t4.flops["fp32"]
    assert t4.rate("fp16") == 24e12
    assert reach(gpu("A100 SXM4 80GB")).rate("fp8") == 271.2e12


# -- what GPUs sustain


def test_the_power_model_meets_what_it_was_calibrated_on_and_is_never_above_the_stated_rate():
    for name, within in (("A100 SXM4 80GB", 0.01), ("H100 SXM5 80GB", 0.05), ("H200 SXM", 0.05), ("B200 SXM", 0.09)):
        one = gpu(name)
        assert power_limited_flops(one) == pytest.approx(one.measured_flops, rel=within)
    for one in load_gpus():
        found = power_limited_flops(one)
        assert found is None or 0 < found <= (one.half_flops or 0)


def test_constants_are_those_of_the_four_ceilings():
    """k is computed again from the measured rates."""

    def constant(flops: float, dense: float, mhz: float, watts: float) -> float:
        return flops / ((dense / (mhz * 1e6)) ** (2 / 3) * watts ** (1 / 3))

    hopper = constant(794.5e12, 989.4e12, 1830, 700), constant(795.8e12, 989.4e12, 1830, 700)
    four = math.exp(np.mean(np.log([*hopper, constant(1745e12, 2250e12, 1850, 1000)])))
    assert POWER_CONSTANT["4 nm"] == pytest.approx(four, rel=0.002)
    assert POWER_CONSTANT["7 nm"] == pytest.approx(constant(271.2e12, 312e12, 1410, 400), rel=0.002)
    assert POWER_CONSTANT["12 nm"] == pytest.approx(constant(95e12, 125e12, 1530, 300), rel=0.002)


def test_measured_goes_before_the_table_and_that_before_the_model():
    h100, l4 = gpu("H100 SXM5 80GB"), gpu("L4")
    own = Measurement("NVIDIA L4", 24 * 2**30, {"bf16": 61e12}, 2.6e11, 2e10, 6e3, 30.0, "2026-01-01", "2.11")
    assert (reach(l4, own).half_source, reach(l4, own).rate("bf16")) == ("measured", 61e12)
    assert (reach(h100).half_source, reach(h100).rate("bf16")) == ("table", 794.5e12)
    assert reach(l4).half_source == "power"
    assert reach(l4).half_spread > reach(h100).half_spread > reach(l4, own).half_spread


# -- the host


def test_nothing_gets_most_done_that_gets_less_done():
    found = gpuprof.project(diagnosed(RUNS / "tiny_lora"), ["H100 SXM"]).gpus[0]
    half, third = (dataclasses.replace(found, speedup=Range(f, f, f), bound="memory") for f in (0.5, 1 / 3))
    assert summarize([half]).startswith("H100 SXM5 80GB does 0.50× the recorded work per time, limited by memory")
    assert summarize([half, third]).startswith(
        "None of them gets as much done as the recorded GPU; H100 SXM5 80GB comes"
    )
    twice = dataclasses.replace(half, speedup=Range(2, 2, 2))
    assert summarize([twice, third]).startswith("H100 SXM5 80GB gets most done: 2.00× the recorded work per time")


def test_what_binds_there_may_be_unknown():
    found = gpuprof.project(diagnosed(RUNS / "tiny_lora"), ["H100 SXM"])
    unknown = dataclasses.replace(found, gpus=(dataclasses.replace(found.gpus[0], bound=None),))
    document = PROJECTION.to_json(unknown)
    assert document["gpus"][0]["bound"] is None
    assert not list(VALIDATOR.iter_errors(document))
    assert "limited by" in summarize(list(found.gpus))
    assert "limited by" not in summarize(list(unknown.gpus))


def test_a_slower_host_makes_a_host_bound_step_longer_in_proportion():
    s = subject("tiny_lora")
    one, two = (simulate(another_host(s.graph, factor), ROUNDS).step_ns for factor in (1.0, 2.0))
    assert 1.9 < two / one <= 2.0
    kernels_gone = scale(s.graph, device=0.0)
    floors = [simulate(another_host(kernels_gone, factor), ROUNDS).step_ns for factor in (1.0, 2.0)]
    assert floors[1] / floors[0] == pytest.approx(2.0, rel=0.02)


def test_the_host_does_not_matter_where_the_gpu_binds():
    s = subject("dense8b_lora")
    assert step("dense8b_lora", s.gpu, host_factor=0.5) == pytest.approx(s.step_ns.expected, rel=0.03)


def test_the_host_factor_of_two_measurements():
    here = Measurement("a", 1, {"bf16": 1.0}, 1.0, 1.0, 5_000.0, 40.0, "", "")
    there = dataclasses.replace(here, launch_ns=10_000.0, host_loop_ns=20.0)
    assert measured_factor(here, there) == pytest.approx(1.0)
    assert measured_factor(here, dataclasses.replace(here, launch_ns=10_000.0, host_loop_ns=80.0)) == pytest.approx(2.0)
    assert measured_factor(here, here) == 1.0


# -- batch, depth


def test_more_tokens_take_longer_and_fewer_less():
    s = subject("dense8b_lora")
    steps = [step("dense8b_lora", s.gpu, batch=batch) for batch in (1, 2, 4, 8)]
    assert steps == sorted(steps)
    assert steps[1] == pytest.approx(s.step_ns.expected)
    assert 1.8 < steps[3] / steps[2] < 2.1, "this model fills the chip"


def test_twice_the_layers_take_twice_as_long_but_for_what_is_done_once():
    s = subject("dense8b_lora")
    assert s.layers is not None
    assert s.layers.count == 32
    base, double = (step("dense8b_lora", s.gpu, layers=layers) for layers in (32, 64))
    assert base == pytest.approx(s.step_ns.expected)
    inside = s.graph.on_gpu & s.layers.nodes
    share = s.graph.duration_ns[inside].sum() / s.graph.duration_ns[s.graph.on_gpu].sum()
    assert share > 0.85
    assert double / base == pytest.approx(1 + share, rel=0.03)


# -- cost, ranks: sums done by hand


def test_energy_and_money():
    assert mean_power_w(gpu("H200 SXM"), 100.0, {"compute": 100.0}) == pytest.approx(700)
    assert mean_power_w(gpu("H200 SXM"), 100.0, {"compute": 50.0}) == pytest.approx(700 * (0.5 + 0.17 * 0.5))
    half = mean_power_w(gpu("H200 SXM"), 100.0, {"compute": 50.0}, measured=0.8)
    assert half == pytest.approx(0.8 * 700 * (0.5 + 0.17 * 0.5)), "as far from the estimate as on the recorded GPU"
    assert mean_power_w(gpu("H200 SXM"), 100.0, {"compute": 90.0}, measured=1.5) == 700, "no more than its limit"
    found = cost(360.0, 3.6e12, 10, 1_000_000, Price(2.0, "", "given"), 100)
    assert found.kwh_per_million_tokens == pytest.approx(0.36)
    assert (found.usd_per_million_tokens, found.usd_per_epoch) == (pytest.approx(2.0), pytest.approx(20.0))
    assert cost(None, 1e9, None, None, None, 100).usd_per_epoch is None


def test_prices():
    listed = price_of(gpu("H100 SXM5 80GB"), {})
    assert listed is not None
    assert (listed.usd_per_hour, listed.date) == (2.69, "2026-03-10")
    max_q = price_of(gpu("RTX PRO 6000 Blackwell Max-Q"), {})
    assert max_q is not None
    assert max_q.usd_per_hour == 0.89
    assert price_of(gpu("MI300X"), {}) is None
    assert price_of(gpu("MI300X"), {"MI300X": 2.5}) == Price(2.5, "", "given")
    assert parse_prices(["L4=0.5", "1.25"], ["H100 SXM"]) == {"L4": 0.5, "H100 SXM": 1.25}


def test_several_gpus():
    one = scaling(gpu("H100 SXM5 80GB"), 1, 1e9, 6e8, 1e8)
    assert (one.efficiency, one.exposed_ns) == (1.0, 0.0)
    steps = [scaling(gpu(name), 8, 1e9, 6e8, 2e10) for name in ("H100 SXM5 80GB", "RTX 4090")]
    assert steps[0].efficiency > steps[1].efficiency, "NVLink beats PCIe"
    assert steps[1].exposed_ns <= steps[1].collective_ns
    # 20 GB over a ring of 8: 2 · 7/8 · 20 GB at 450 GB/s · 0.75.
    assert steps[0].collective_ns == pytest.approx(35e9 / (450e9 * 0.75) * 1e9, rel=0.3)


def test_independent_ends_add_as_squares():
    low, high = combined(100.0, [90.0, 120.0, 100.0])
    assert (low, high) == (pytest.approx(90.0), pytest.approx(120.0))
    low, high = combined(100.0, [], 1.1)
    assert (low, high) == (pytest.approx(100 / 1.1), pytest.approx(110.0))


# -- names and mistakes


@pytest.mark.parametrize(
    ("text", "name"),
    [("h100 sxm", "H100 SXM5 80GB"), ("rtx pro 6000 max-q", "RTX PRO 6000 Blackwell Max-Q"),
     ("NVIDIA H200", "H200 SXM"), ("L4", "L4"), ("b200", "B200 SXM"), ("4090", "RTX 4090"),
     ("a100 sxm 80", "A100 SXM4 80GB"), ("A100 80GB", "A100 SXM4 80GB"), ("h100sxm", "H100 SXM5 80GB"),
     ("RTX4090", "RTX 4090"), ("H100", "H100 SXM5 80GB"), ("a100", "A100 SXM4 80GB"),
     ("a100 pcie", "A100 PCIe 80GB"), ("RTX PRO 6000", "RTX PRO 6000 Blackwell Workstation")],
)  # fmt: skip
def test_gpus_as_people_call_them(text, name):
    assert gpu_named(text).name == name


def test_which_variant_was_chosen_is_said():
    assert variant_note("A100 80GB") == "A100 80GB is taken as A100 SXM4 80GB; other variants: A100 PCIe 80GB"
    assert variant_note("h100") == "h100 is taken as H100 SXM5 80GB; other variants: H100 PCIe 80GB, H100 NVL 94GB"
    for sure in ("a100 sxm 80", "A100 PCIe 80GB", "L4"):
        assert variant_note(sure) is None


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"to": ["rtx 6000"]}, "'rtx 6000' may be RTX 6000 Ada, RTX PRO 6000 Blackwell Workstation"),
        ({"to": ["H1000"]}, "no GPU named 'H1000' is known; nearest are"),
        ({"to": []}, "name a GPU to project to"),
        ({"to": ["L4"], "batch": 0}, "batch: 0 is less than 1"),
        ({"to": ["L4"], "host_factor": 0.0}, "a host factor is"),
        ({"to": ["L4"], "host_factor": math.nan}, "a host factor is"),
        ({"to": ["L4"], "ranks": (0,)}, "0 GPUs is not possible"),
        ({"to": ["L4"], "prices": {"L4": -1.0}}, "-1 $ an hour is not a valid price"),
        ({"to": ["L4"], "explain": ("L4", "voodoo")}, "no GPU named 'voodoo'"),
    ],
)
def test_mistakes_are_one_line(asked, says):
    with pytest.raises(GpuprofError) as caught:
        question(**asked)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_option_that_does_not_exist_is_a_type_error():
    with pytest.raises(TypeError, match="no option 'bach'; it has batch, "):
        gpuprof.project(RUNS / "tiny_lora", ["L4"], bach=8)


def test_an_option_that_is_none_is_left_out():
    assert question(["L4"], **dict.fromkeys(OPTIONS)) == question(["L4"])


def test_every_option_is_explained():
    assert set(OPTIONS) <= set(re.findall(r"\w+", gpuprof.project.__doc__ or ""))


def test_a_recording_without_a_step_that_can_be_replayed():
    unplayed = dataclasses.replace(diagnosed(RUNS / "tiny_lora"), _analysis=None)
    with pytest.raises(GpuprofError, match="nothing can be projected"):
        subject_of(unplayed)


def test_a_recording_whose_gpu_is_not_known_is_given_one():
    diagnosis = diagnosed(RUNS / "tiny_lora")
    nameless = dataclasses.replace(diagnosis, environment=dataclasses.replace(diagnosis.environment, gpus=()))
    with pytest.raises(GpuprofError, match="--from GPU"):
        subject_of(nameless)
    assert subject_of(nameless, gpu("H200 SXM")).gpu.name == "H200 SXM"
    assert gpuprof.project(nameless, ["H200"], recorded_on="H200").recorded.gpu == "H200 SXM"


# -- the shared recordings


@pytest.mark.slow
def test_a_loop_over_experts_ties_where_the_host_binds():
    """On any GPU the step takes as long as the loop's host time."""
    s = subject_of(diagnosed(shared_trace("h200/moe_gptoss_expert_loop")))
    assert s.expert_nodes is not None
    found = project(s, question(["H100 SXM", "RTX PRO 6000 Max-Q"]))
    one, two = found.gpus
    assert {one.bound, two.bound} == {"host"}
    assert one.step_ns.expected == pytest.approx(two.step_ns.expected, rel=0.10)


def test_copies_over_a_link_go_with_the_link_alone():
    s = subject("trl_sft")
    here = reach(s.gpu)
    assert s.roofline.work.over_link.any()
    there = dataclasses.replace(
        here, gpu=dataclasses.replace(here.gpu, boost_mhz=(here.gpu.boost_mhz or 0) * 2),
        link_bytes_per_s=(here.link_bytes_per_s or 0) / 2,
    )  # fmt: skip
    timeline, roofline = s.graph.timeline, s.roofline
    factor = scaled_kernels(timeline, roofline, here, there, grown(timeline, roofline, 1.0, None)).factor
    gpu, copies = timeline.trace.gpu, roofline.work.over_link & (roofline.split.bound == MEMORY)
    ns = (gpu.end_ns - gpu.start_ns)[copies]
    moving = ns - np.minimum(roofline.split.latency_ns[copies], ns)
    assert factor[copies] == pytest.approx((ns + moving) / ns)
