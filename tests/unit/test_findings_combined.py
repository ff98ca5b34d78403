"""Several fixes at once, applied in the right order, their uncertainties and limits counted once; and findings on odd
shapes."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from helpers.case import only, run_of, with_facts
from helpers.program import GAP, MS, PLAIN, US, Program, checkpointed

from gpuprof.calibration import recompute as recompute_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_replacement
from gpuprof.diagnosis.detect.passes import shapes_in
from gpuprof.diagnosis.detect.repeated import recomputed_passes
from gpuprof.diagnosis.findings import FINDINGS, larger_batch, recompute
from gpuprof.diagnosis.fixes import predict, predicted_step
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps
from gpuprof.diagnosis.recorded.shares import Shares
from gpuprof.diagnosis.result.finding_model import Combined
from gpuprof.diagnosis.result.fix import Fix
from gpuprof.diagnosis.result.run_model import RunMemory
from gpuprof.diagnosis.verdict.share_verdict import judge_shares
from gpuprof.replay.graph import HOST, Graph
from gpuprof.replay.mean_step import MeanStep
from gpuprof.replay.noise import process_noise, replay_noise
from gpuprof.replay.transform import scaled
from gpuprof.replay.unprofiled.planning import planning
from gpuprof.timeline.phases import BACKWARD, FORWARD

KERNELS, KERNEL = 40, 100 * US
PAGES = [Page(name, "", "", "", "", "") for name in ("first", "second", "third")]


def busy(tmp_path) -> Analysis:
    """Kernels of 0.1 ms that are launched in a fifth of that time, so that the GPU limits: 4 ms per step."""
    program = Program()
    for _ in range(4):
        program.step(lambda: [program.small_mm(gpu=KERNEL) for _ in range(KERNELS)])
    return program.case(tmp_path)


def proposal(change, **more) -> Proposal:
    return Proposal(title="", evidence=(), fix=Fix(), change=change, **more)


def together(monkeypatch, case: Analysis, *proposals: Proposal) -> Combined:
    """The effect of these proposals together, each from a separate finding."""
    found = tuple((page, lambda case, p=p: [p]) for page, p in zip(PAGES, proposals, strict=False))
    monkeypatch.setattr(predict, "FINDINGS", found)
    combined = predict.fixes(case).combined
    assert combined is not None
    assert set(combined.ids) == {page.id for page, _ in found}
    return combined


def gpu(case: Analysis, factor: float):
    return partial(scaled, nodes=case.graph.on_gpu, factor=factor)


def test_noise_counts_once_and_each_fix_for_itself(monkeypatch, tmp_path):
    case = busy(tmp_path)
    sure = proposal(gpu(case, 0.8))
    open_ = proposal(gpu(case, 0.5), best=gpu(case, 0.4), worst=gpu(case, 0.7))
    found = together(monkeypatch, case, sure, open_)
    assert found.step_ns.expected == pytest.approx(0.8 * 0.5 * case.step_ns, rel=0.03)
    for end, factor in ((found.step_ns.low, 0.4), (found.step_ns.high, 0.7)):
        of_fix = math.log((0.8 * factor * KERNEL + GAP) / (0.8 * 0.5 * KERNEL + GAP))
        scatter = replay_noise(found.step_ns.expected / case.step_ns)
        away = math.hypot(math.log1p(process_noise(0.0)), max(scatter, abs(of_fix)))
        assert abs(math.log(end / found.step_ns.expected)) == pytest.approx(away, rel=0.015)


@pytest.mark.parametrize("compiled", [0.3, 0.9], ids=["gains most", "gains least"])
def test_a_compiler_works_on_what_the_others_leave(compiled: float, monkeypatch, tmp_path):
    case = busy(tmp_path)
    replaced = np.cumsum(case.graph.on_gpu) % 2 == 0

    def instead(graph: Graph) -> Graph:
        return graph.with_durations(np.where(replaced & graph.on_gpu, 20.0 * US, graph.duration_ns))

    compiler = proposal(gpu(case, compiled), last=True)
    found = together(monkeypatch, case, compiler, proposal(instead))
    assert found.step_ns.expected == pytest.approx(case.step_of(gpu(case, compiled)(instead(case.graph))), rel=1e-6)
    assert found.step_ns.expected < case.step_of(instead(gpu(case, compiled)(case.graph)))


def test_a_batch_that_is_twice_as_large_is_prepared_in_twice_the_time(monkeypatch, tmp_path):
    case = busy(tmp_path)
    workers = proposal(gpu(case, 0.5), least_ns=1.5 * MS)
    found = together(monkeypatch, case, workers, proposal(gpu(case, 1.0), work=2.0))
    assert found.step_ns.expected == pytest.approx(3 * MS, rel=1e-6)  # not the 2 ms that the GPU takes
    assert found.work == 2


def test_replaced_work_goes_where_work_of_its_kind_was(tmp_path):
    graph = busy(tmp_path).graph
    group = np.where(graph.on_gpu, 0, -1)
    last = graph.on_gpu & (np.cumsum(graph.on_gpu) > graph.on_gpu.sum() - 3)
    once = np.array([1.0])
    replacement = replacement_of(graph, group, once, np.array([600.0 * US]), np.array([5]), last)
    done = with_replacement(graph, replacement).duration_ns
    assert done[last].tolist() == [200 * US] * 3
    assert not done[graph.on_gpu & ~last].any()
    without = replacement_of(graph, group, once, np.array([600.0 * US]), np.array([5]), np.zeros(len(graph), bool))
    assert np.count_nonzero(with_replacement(graph, without).duration_ns[graph.on_gpu]) == 5


@pytest.mark.parametrize(("times", "either"), [(4, True), (9, False)])
def test_memory_serves_a_larger_batch_or_what_is_not_repeated(times: int, either: bool, tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: checkpointed(program))
    bare = program.case(tmp_path)
    extra, size = recompute.extra_bytes(bare), recomputed_passes.free_bytes(bare)[1]
    assert extra is not None
    assert size is not None
    peak = round(recompute_calibrated.USABLE_SHARE.value * size - times * extra[1])
    found = only(recompute, program.case(tmp_path, run_of(memory=RunMemory(None, None, peak))))
    assert ("free_memory" in found.claims) == either


def test_hooks_around_saved_tensors_go_with_checkpointing(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: checkpointed(program))
    for event in program.trace.events:  # the engine runs an ordinary op, whose saved tensors a hook computes again
        event["name"] = event["name"].replace("CheckpointFunctionBackward", "MmBackward0")
    case = program.case(tmp_path)
    graph, again = case.graph, recomputed_passes.recomputed(case)
    left = only(recompute, case).change(graph).duration_ns
    host = (graph.lane >= 0) & ~again & (graph.duration_ns > 0) & (graph.resource == HOST)
    for phase, share in (
        (FORWARD, recompute_calibrated.HOOKED_SHARE.rising[1]),
        (BACKWARD, recompute_calibrated.UNPACKED_SHARE.rising[1]),
    ):
        mine = host & (graph.phase == phase)
        assert mine.any()
        assert left[mine] == pytest.approx(share * graph.duration_ns[mine])
    assert not left[again].any()


def test_planning_a_kernel_takes_as_long_without_the_hooks(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: (program.op("aten::_cudnn_attention_forward", PLAIN, host=60 * MS), checkpointed(program)))
    for event in program.trace.events:
        event["name"] = event["name"].replace("CheckpointFunctionBackward", "MmBackward0")
    case = program.case(tmp_path)
    graph = case.graph
    planning = (graph.lane >= 0) & (graph.duration_ns > 10 * MS)
    assert planning.sum() == 4
    left = only(recompute, case).change(graph).duration_ns
    assert left[planning].tolist() == graph.duration_ns[planning].tolist()


def test_what_is_computed_again_also_plans_again(tmp_path):
    """Plans are kept for each thread: half of what new shapes cost goes with the repeated forward pass, where half of
    the planning was recorded in it; and what is left of that is padded away with the rest."""
    program = Program()
    for number in range(4):

        def body(number=number):
            program.op("aten::_cudnn_attention_forward", PLAIN, dims=[[4, 100 + number]], host=60 * MS)
            checkpointed(program)

        program.step(body)
    case = program.case(tmp_path)
    assert recompute._planned_once(case, np.zeros(len(case.graph), bool)) == {"new_shapes": 1.0}
    plans = planning(case.graph).nodes
    half = plans & (case.graph.step < 2)
    assert recompute._planned_once(case, half) == {"new_shapes": pytest.approx(0.5, abs=0.01)}
    one, other = (proposal(lambda graph: graph, lumps={"new_shapes": left}) for left in (0.5, 0.1))
    mean = MeanStep(case.graph, usual_ns=100 * MS, mean_ns=200 * MS, lumps_ns={"new_shapes": 100 * MS})
    steps = PredictedSteps(with_facts(case, mean=mean))
    assert steps.begin(case.graph, [], [one, other])() == pytest.approx(105 * MS)


def test_steps_of_no_time_have_no_verdict():
    assert judge_shares(Shares(0, 0.0, 0.0, 0.0, 0.0, {}), {}, None, whole=True, said=()).bound is None


# -- shapes


def embedding(tmp_path, indices: list[int]) -> Analysis:
    program = Program()

    def body():
        program.op("aten::embedding", dims=[[32000, 512], indices, [], [], []], kernel="indexSelectLargeIndex")
        for _ in range(60):
            program.small_mm()
        program.backward(program.small_mm, 60)

    for _ in range(3):
        program.step(body)
    return program.case(tmp_path)


def test_the_batch_is_recognised_by_its_indices(tmp_path):
    found = only(larger_batch, embedding(tmp_path, [4, 128]))
    assert found.title == "batch × 8", "rows of a tensor are not the loader's samples"
    assert "batch_size=8 * batch_size" in str(found.fix)
    assert found.evidence[0].text.startswith("512 tokens a batch")
    assert all(place.start_ns is not None and place.where for place in found.evidence[1:])
    packed = only(larger_batch, embedding(tmp_path, [1, 512]))
    assert packed.title == "batch × 8"
    assert "512 tokens" in packed.evidence[0].text


ODD = [5, "x", {}, {"a": [1]}, [None], [[None]], [[-1, 2]], [[1.5]], [[[1]]], [[True]], [["a"]], [[2**63, 2]] * 4]


@pytest.mark.parametrize("dims", ODD, ids=str)
def test_shapes_that_are_none(dims, tmp_path):
    case = odd(tmp_path, dims)
    texts = {text for text in case.trace.ops.dims.tolist() if text >= 0}
    assert texts
    assert not any(any(shapes_in(case, text)) for text in texts)


def test_shapes_and_what_is_next_to_them(tmp_path):
    case = odd(tmp_path, [[2, 3], [], 7, [[4]], [0]])
    found = {tuple(shapes_in(case, text)) for text in case.trace.ops.dims.tolist() if text >= 0}
    assert found == {((2, 3), (), None, None, (0,))}


NAMES = (
    "aten::embedding", "aten::mm", "aten::rsqrt", "aten::silu", "aten::mul", "aten::neg", "aten::cross_entropy_loss",
    "aten::bmm", "aten::_softmax", "aten::bmm", "aten::index_add_", "aten::linear", "aten::copy_", "aten::mul",
    "aten::scaled_dot_product_attention", "aten::pow", "aten::mean",
)  # fmt: skip


def odd(tmp_path, dims) -> Analysis:
    """A step of all ops whose shapes some finding reads."""
    program = Program()

    def body():
        for name in NAMES:
            program.op(name, kernel=f"kernel of {name}", dims=dims, gpu=50 * US)
        program.backward(lambda: program.op("aten::mm", kernel="nvjet", dims=dims, gpu=50 * US), 8)

    for _ in range(3):
        program.step(body)
    return program.case(tmp_path)


@pytest.mark.parametrize("dims", [*ODD[:-1], [[1, 2], [3, 4], [5, 6], [7, 8]], [[0, 0, 0]] * 4], ids=str)
def test_no_shape_stops_a_diagnosis(dims, tmp_path):
    case = odd(tmp_path, dims)
    for _, find in FINDINGS:
        for one in find(case):
            assert predicted_step.predict(case, one).low > 0
