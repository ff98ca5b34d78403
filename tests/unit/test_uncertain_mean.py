"""The uncertainty of the mean step counts for the step after a fix, and cancels in the gain where both scale."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from helpers.case import run_of, with_facts
from helpers.program import MS, US, Program

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.fixes import predict
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps, Prediction, prediction
from gpuprof.diagnosis.mean_step.budget_model import Budget, Excess
from gpuprof.diagnosis.mean_step.run_budget import _pace
from gpuprof.diagnosis.result.fix import Fix
from gpuprof.replay.loader_queue import Loader
from gpuprof.replay.mean_step import WAITS, MeanStep
from gpuprof.replay.noise import change_noise, process_noise, replay_noise
from gpuprof.replay.transform import scale, scaled
from gpuprof.value_range import Range


def timed(path: Path, low: float, mean: float, high: float, usual: float, **more) -> Analysis:
    """A run whose GPU works all the time; `usual` and the mean step with its interval are ms, as timed."""
    program = Program()
    for _ in range(3):
        program.step(lambda: [program.small_mm(gpu=100 * US) for _ in range(40)])
    case = program.case(path)
    mean_ns, low_ns, high_ns, usual_ns = (round(ms * MS) for ms in (mean, low, high, usual))
    found = Budget(mean_ns, low_ns, high_ns, usual_ns, (), (), mean_ns - usual_ns, 20, "free")
    step = MeanStep(case.graph, usual_ns=usual * MS, mean_ns=mean * MS, **more)
    return with_facts(case, run=run_of(), budget=found, mean=step)


def half_of_the_gpu(case: Analysis) -> Proposal:
    return Proposal("", (), Fix(), partial(scaled, nodes=case.graph.on_gpu, factor=0.5))


def predicted(case: Analysis) -> Prediction:
    return prediction(PredictedSteps(case), [half_of_the_gpu(case)])


@pytest.mark.parametrize(("gpu", "widens"), [(2, False), (20, True), (100, False)])
def test_another_process_widens_a_gain_where_it_changes_what_limits(gpu: int, widens: bool, tmp_path):
    """The CPU takes as long as the GPU: with a quicker CPU a faster GPU gains more, with a slower one nothing. Where
    either takes much longer than the other, another pace changes the step before and after alike."""
    program = Program()
    for _ in range(3):
        program.step(lambda: [program.small_mm(gpu=gpu * US) for _ in range(200)])
    case = program.case(tmp_path)
    steps = PredictedSteps(case)
    wide = prediction(steps, [half_of_the_gpu(case)]).speedup
    steps.other_processes = ()
    narrow = prediction(steps, [half_of_the_gpu(case)]).speedup
    assert wide.expected == narrow.expected
    assert (wide.high > 1.02 * narrow.high) == widens


def test_scatter_of_all_steps_cancels_in_the_gain(tmp_path):
    sure, unsure = (predicted(timed(tmp_path, *ends, usual=4)) for ends in ((4, 4, 4), (3, 4, 5)))
    assert unsure.speedup == sure.speedup
    assert unsure.step.expected == sure.step.expected
    for end, of_sure, of_mean in ((unsure.step.low, sure.step.low, 3 / 4), (unsure.step.high, sure.step.high, 5 / 4)):
        away = math.hypot(math.log(of_sure / sure.step.expected), math.log(of_mean))
        assert abs(math.log(end / unsure.step.expected)) == pytest.approx(away, rel=1e-5)


def test_a_fix_of_the_usual_step_gains_less_if_pauses_make_more_of_the_mean(tmp_path):
    """The usual step takes 4 ms, half of which is saved; pauses take 4 ms, of which nothing is saved. They measured 2
    to 6 ms, so that 10 ms become 8 at worst."""
    found = predicted(timed(tmp_path, 6, 8, 10, usual=4, lumps_ns={"pauses": 4 * MS}))
    assert found.step.expected == pytest.approx(6 * MS, rel=0.01)
    noise, scatter = math.log1p(process_noise(0.0)), change_noise(8 / 6)
    less = math.hypot(math.log1p(noise_calibrated.GAIN.value), max(scatter, math.log((8 / 6) / (10 / 8))))
    assert math.log(found.speedup.expected / found.speedup.low) == pytest.approx(less, abs=0.02)
    assert math.log(found.step.high / found.step.expected) == pytest.approx(
        math.hypot(noise, replay_noise(8 / 6), math.log(8 / 6)), abs=0.01
    )


@pytest.mark.parametrize(
    ("steps", "share"), [(0, math.exp(-7 / 4)), (1, math.exp(-1.2816)), (16, math.exp(-1.2816 / 4))]
)
def test_what_was_seen_is_gained_somewhat_by_a_fix_that_removes_it(steps: int, share: float, tmp_path):
    """However uncertain the mean, the excess of some steps was measured: a fix for it does gain, the more surely the
    more steps had it. The step after it is as uncertain as the usual one."""
    case = timed(tmp_path, 1, 8, 15, usual=4, lumps_ns={"save": 4 * MS})
    assert case.budget is not None
    case = with_facts(case, budget=replace(case.budget, excess=(Excess("save", 4 * MS, steps),) if steps else ()))
    never = Proposal("", (), Fix(), lambda graph: graph, lumps={"save": 0.0})
    found = prediction(PredictedSteps(case), [never])
    away = math.hypot(math.log1p(noise_calibrated.GAIN.value), max(change_noise(2), math.log(2 / (1 + share))))
    assert found.speedup.expected == pytest.approx(2, rel=0.01)
    assert math.log(found.speedup.expected / found.speedup.low) == pytest.approx(away, abs=0.01)
    assert found.step.expected / found.step.low > 4  # its mean, as timed, is 1 ms at least


def test_what_is_not_advised_says_its_gain_too(monkeypatch, tmp_path):
    case = timed(tmp_path, 3, 4, 5, usual=4)
    little = Proposal("", (), Fix(), partial(scaled, nodes=case.graph.on_gpu, factor=0.97))
    monkeypatch.setattr(predict, "FINDINGS", ((Page("little", "", "", "", "", ""), lambda _: [little]),))
    (one,) = predict.fixes(case).considered
    assert one.speedup is not None and one.speedup.low < 1.02 < one.speedup.expected
    assert "120 µs of GPU time off a step of 4.0 ms, which shortens it by 3 %" in one.reason


def budget(mean_ms: float, half_ms: float, *excess: Excess) -> Budget:
    mean, half = round(mean_ms * MS), round(half_ms * MS)
    return Budget(mean, mean - half, mean + half, mean, excess, (), 0, 10, "free")


def test_the_pace_of_workers_is_that_which_is_known_better():
    """Workers make a batch in 400 ms, and the training got one every 600. Its own mean decides where that is certain,
    otherwise what was measured in the workers. Workers are never slower than what the training got."""
    sure, unsure = budget(150, 0.1), budget(150, 140)
    assert _pace(400 * MS, 0.05, 600 * MS, sure) == pytest.approx(600 * MS, rel=0.001)
    assert _pace(400 * MS, 0.05, 600 * MS, unsure) == pytest.approx(400 * MS, rel=0.02)
    assert _pace(900 * MS, 0.05, 600 * MS, unsure) == 600 * MS


def test_waits_beyond_the_pace_of_workers_stay_with_more_of_them(tmp_path):
    """Four workers bring a batch every 100 ms to a training that takes 60 ms for it; the mean of 160 ms holds waits for
    60 ms more, as at the start of an epoch."""
    loader = Loader(400 * MS, 4)
    case = timed(tmp_path, 100, 160, 220, usual=60, loader=loader, paced=True)
    mean = case.mean.with_waits()
    assert mean.lumps_ns == {WAITS: pytest.approx(60 * MS)}
    assert mean.now_ns() == pytest.approx(160 * MS)
    assert mean.of(case.graph, loader=replace(loader, workers=16)) == pytest.approx(120 * MS)
    assert mean.of(case.graph, faster={"input": 0.5}) == pytest.approx(90 * MS)
    # Another mean step says nothing about workers that were measured; it is not below what they allow.
    assert mean.with_mean(220 * MS).loader == mean.with_mean(90 * MS).loader == loader
    assert mean.with_mean(220 * MS).now_ns() == pytest.approx(220 * MS)
    assert mean.with_mean(90 * MS).now_ns() == pytest.approx(100 * MS)
    assert replace(mean, paced=False, lumps_ns={}).with_waits().lumps_ns == {}


def delivered(batch: float, workers: int, prefetch: int, step: float, every: int, pause: float) -> float:
    """The oracle: mean step of a training that is fed by workers and pauses at times, simulated batch by batch."""
    done, taken, now, count = [], [], 0.0, 40 * every
    for k in range(count):
        begin = max(done[k - workers] if k >= workers else 0, taken[k - workers * prefetch] if k >= 2 * workers else 0)
        done.append(begin + batch)
        taken.append(max(now, done[k]))
        now = taken[k] + step + (pause if k % every == every - 1 else 0)
    return (taken[-1] - taken[count // 2 - 1]) / (count // 2)


@pytest.mark.parametrize(
    ("every", "pause", "hidden"), [(10, 60, 1.0), (20, 120, 1.0), (100, 2000, 0.1), (4, 1000, 0.06)]
)
def test_workers_go_on_while_the_training_pauses(every: int, pause: float, hidden: float, tmp_path):
    """Four workers deliver a batch every 25 ms to a training of 10 ms; it does not wait later for what they make during
    a pause, at most 200 ms of work."""
    loader, ns = Loader(100 * MS, 4), pause / every * MS
    truth = delivered(100, 4, 2, 10, every, pause) * MS
    case = timed(tmp_path, truth / MS, truth / MS, truth / MS, usual=10, loader=loader, lumps_ns={"save": ns},
                 every={"save": float(every)})  # fmt: skip
    physical = replace(case.mean, overlap=1.0)
    assert physical.now_ns() == pytest.approx(25 * MS + (1 - hidden) * ns, rel=0.001)
    assert physical.now_ns() == pytest.approx(truth, rel=0.05)
    # By what was measured of the mean step: the pace and the pauses one after the other would take longer.
    found = case.mean.with_waits()
    assert found.now_ns() == pytest.approx(max(truth, physical.now_ns()), rel=0.001)
    alone = replace(case.mean, mean_ns=25 * MS + ns, paced=True).with_waits()
    assert alone.overlap == 0, "nothing says that they overlap, as at the end of an epoch"
    faster = found.of(case.graph, loader=replace(loader, batch_ns=20 * MS))
    assert faster == pytest.approx(10 * MS + ns, rel=0.01), "workers that keep up hide nothing"


@pytest.mark.parametrize(
    ("gain", "changes", "first"), [(1.55, "", "workers"), (1.3, "", "graphs"), (1.55, "another batch", "graphs")]
)
def test_what_the_verdict_names_is_first_where_others_hardly_gain_more(gain: float, changes: str, first: str):
    """1.55 is about the same gain as 1.58, 1.3 is not; a fix that changes the training never moves ahead."""

    def one(name: str, gain: float, named: bool, changes: str = "") -> predict._Predicted:
        proposal = Proposal("", (), Fix(), lambda graph: graph, changes=changes)
        found = Range(gain / 1.2, gain, gain * 1.2)
        return predict._Predicted(name, proposal, Prediction(Range(1, 1, 1), found), named)

    ordered = [one("graphs", 1.58, False), one("compile", 1.56, False), one("workers", gain, True, changes)]
    assert predict._named_first(ordered, None)[0].id == first
    assert predict._named_first(ordered[:2], None) == ordered[:2]


def test_processes_of_a_host_bound_step_differ_more(tmp_path):
    """In their steps, and not in what a fix of the GPU's half gains: the GPU's part and the CPU's differ each for
    itself, and that of the CPU with the square root of its share."""
    of_gpu, of_cpu = noise_calibrated.GPU_PROCESS.value, noise_calibrated.HOST_BOUND.value
    assert process_noise(-0.1) == process_noise(0.0) == of_gpu
    assert process_noise(1.0) == process_noise(1.2) == pytest.approx(math.hypot(of_gpu, of_cpu))
    assert process_noise(0.5) ** 2 == pytest.approx((process_noise(0.0) ** 2 + process_noise(1.0) ** 2) / 2)
    program = Program()
    for _ in range(3):
        program.step(lambda: [program.op("aten::mul", host=90 * US, kernel="mul", gpu=5 * US) for _ in range(40)])
    case = program.case(tmp_path)
    host_bound = prediction(PredictedSteps(case), [])
    gpu_bound = prediction(
        PredictedSteps(case), [Proposal("", (), Fix(), partial(scaled, nodes=case.graph.on_gpu, factor=20.0))]
    )
    assert host_bound.step.high / host_bound.step.expected > 1 + 0.9 * noise_calibrated.HOST_BOUND.value
    assert gpu_bound.step.high / gpu_bound.step.expected < 1 + 1.3 * noise_calibrated.PROCESS.value
    assert host_bound.speedup.expected / host_bound.speedup.low < 1 + 1.4 * noise_calibrated.PROCESS.value


def recorded(path: Path, gpu_us: int) -> Analysis:
    """A trace without a measured step: the CPU launches for 90 µs a kernel, or for a fifth less or a quarter more."""
    program = Program()
    for _ in range(3):
        program.step(lambda: [program.op("aten::mul", host=90 * US, kernel="mul", gpu=gpu_us * US) for _ in range(40)])
    case = program.case(path)
    quicker, slower = (scale(case.graph, host=factor) for factor in (0.8, 1.25))
    return with_facts(case, removal=replace(case.removal, quicker=quicker, slower=slower))


def test_what_recording_cost_cancels_in_the_gain_and_not_in_the_step(tmp_path):
    """Half of the CPU's time goes, so whatever recording cost, the step is half as long."""
    case = recorded(tmp_path, 5)
    half = Proposal("", (), Fix(), partial(scaled, nodes=~case.graph.on_gpu, factor=0.5))
    found = prediction(PredictedSteps(case), [half])
    quick, slow = (case.step_of(one) for one in (case.removal.quicker, case.removal.slower))
    assert slow / quick > 1.5
    assert found.step.high / found.step.low > slow / quick
    assert found.speedup.expected == pytest.approx(2, rel=0.02)
    away = math.hypot(math.log1p(noise_calibrated.GAIN.value), change_noise(2))
    assert math.log(found.speedup.expected / found.speedup.low) == pytest.approx(away, abs=0.02)


def test_what_recording_cost_widens_a_gain_that_changes_what_binds(tmp_path):
    """The GPU works a little longer than the CPU launches: removing half of its work saves more the less recording
    cost."""
    case = recorded(tmp_path, 100)
    half = Proposal("", (), Fix(), partial(scaled, nodes=case.graph.on_gpu, factor=0.5))
    found = prediction(PredictedSteps(case), [half]).speedup
    assert math.log(found.high / found.expected) > 2 * max(
        change_noise(found.expected), math.log1p(noise_calibrated.GAIN.value)
    )


def advised(case: Analysis, monkeypatch, *proposals: Proposal) -> predict.Fixes:
    pages = ((Page(p.title, "", "", "", "", ""), lambda _, p=p: [p]) for p in proposals)
    monkeypatch.setattr(predict, "FINDINGS", tuple(pages))
    return predict.fixes(case)


def test_fixes_are_sure_and_what_is_worth_trying_is_likely_and_gains_much_if_so(monkeypatch, tmp_path):
    case = timed(tmp_path, 4, 4, 4, usual=4)
    shorter = {factor: partial(scaled, nodes=case.graph.on_gpu, factor=factor) for factor in (0.5, 0.7, 0.97, 1.0, 1.2)}
    sure = Proposal("sure", (), Fix(), shorter[0.7])
    likely = Proposal("likely", (), Fix(), shorter[0.7], best=shorter[0.5], worst=shorter[1.2])
    little = Proposal("little", (), Fix(), shorter[0.97], worst=shorter[1.0])
    nothing = Proposal("nothing", (), Fix(), shorter[1.0])
    found = advised(case, monkeypatch, nothing, little, likely, sure)
    assert [one.title for one in found.findings] == ["sure"]
    (tried,) = found.worth_trying
    assert tried.title == "likely" and 0.5 <= tried.probability < 0.9 <= found.findings[0].probability
    assert tried.speedup.low < 1.02 < tried.speedup.expected
    assert {one.title for one in found.considered} == {"little", "nothing"}
    assert all("×" not in one.reason for one in found.considered)


def test_what_costs_more_than_it_gains_over_the_rest_comes_last(monkeypatch, tmp_path):
    """With 100 steps left, a fix that costs 20 steps and gains a half comes after one that gains 0.3 at no cost."""
    case = timed(tmp_path, 4, 4, 4, usual=4)
    case = with_facts(case, run=replace(run_of(), steps_total=110, steps_seen=10, remaining_ns=400 * MS))
    by = {factor: partial(scaled, nodes=case.graph.on_gpu, factor=factor) for factor in (0.65, 0.7)}
    dear = Proposal("dear", (), Fix(), by[0.65], once_ns=(80 * MS, 80 * MS, 80 * MS))
    cheap = Proposal("cheap", (), Fix(), by[0.7])
    found = advised(case, monkeypatch, dear, cheap)
    assert [one.title for one in found.findings] == ["cheap", "dear"]
