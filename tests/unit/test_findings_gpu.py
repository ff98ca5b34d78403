"""Findings about the GPU's work: small programs whose fixed step can be computed by hand."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.after_fix import after_us
from helpers.case import only, run_of
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import BF16, FLOAT, MATMUL, MS, PLAIN, US, Program

from gpuprof.costs.matmul_rates import half_precision_ns
from gpuprof.diagnosis.findings import eager_attention, expert_loop, exposed_communication, throttling
from gpuprof.diagnosis.result.run_model import GpuTelemetry, Telemetry
from gpuprof.replay.transform import scaled


def experts(program: Program, count: int, between: str | None = None) -> None:
    """40 layers' worth of host time, then a loop over experts with 12 or 13 rows each; the host is always the limit."""
    for _ in range(40):
        program.mm(1024, 1024, 1024)
    for number in range(count):
        rows = 12 + number % 2  # a router gives experts different numbers of rows
        program.nonzero([4, 1024])
        program.op("aten::index", PLAIN, dims=[[1024, 1024], []], types=[BF16, ""])
        program.mm(rows, 1024, 1024)
        program.plain("silu", [rows, 512])
        program.plain("mul", [rows, 512], [rows, 512])
        program.mm(rows, 512, 1024)
        if between:
            program.op(between, PLAIN)
        program.op(
            "aten::index_add_",
            PLAIN,
            dims=[[1024, 1024], [], [rows], [rows, 1024]],
            types=[BF16, "", "long int", BF16],
        )


def test_a_loop_over_experts_becomes_as_many_launches_as_grouped_experts_need(tmp_path):
    program = Program()
    for _ in range(3):
        program.step(lambda: experts(program, 16))
    case = program.case(tmp_path)
    proposal = only(expert_loop, case)
    # 40 launches of 20 µs as before, and 33 of the loop's usual 19 instead of its 7 × 16; the GPU works less than that.
    assert after_us(case, proposal) == pytest.approx(40 * 20 + 33 * 19, rel=0.02)
    assert case.step_ns / US > 40 * 20 + 16 * 6 * 20
    assert "16 experts" in proposal.evidence[0].text
    assert "grouped_mm" in str(proposal.fix)


def test_grouped_experts_take_the_time_of_their_weights_where_those_are_large(tmp_path):
    program = Program()

    def body():
        for number in range(8):
            rows = 8 + number % 2
            program.nonzero([2, 64])
            program.op("aten::index", PLAIN, dims=[[64, 8192], []], types=[BF16, ""])
            program.mm(rows, 8192, 16384, gpu=90 * US)
            program.mm(rows, 16384, 8192, gpu=90 * US)
            program.op(
                "aten::index_add_",
                PLAIN,
                dims=[[64, 8192], [], [rows], [rows, 8192]],
                types=[BF16, "", "long int", BF16],
            )

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    assert case.roofline is not None
    # Two matrices of 8192 × 16384 for each of 8 experts, once, in bf16 at 48 % of the memory's rate; 33 launches.
    weights_us = 8 * 2 * 8192 * 16384 * 2 / case.roofline.ceilings.memory_bytes_per_s / 0.48 * 1e6
    assert after_us(case, only(expert_loop, case)) == pytest.approx(weights_us + 33 + 30, rel=0.05)


@pytest.mark.parametrize(
    ("count", "between"), [(3, None), (16, "aten::scaled_dot_product_attention"), (16, "aten::rsqrt")]
)
def test_few_experts_or_layers_that_repeat_are_no_loop_over_experts(tmp_path, count: int, between: str | None):
    program = Program()
    for _ in range(3):
        program.step(lambda: experts(program, count, between))
    assert not list(expert_loop.find(program.case(tmp_path)))


def attention(program: Program, around: tuple[str, ...] = (), keys: int = 2048, more: int = 0) -> None:
    """Scores of 64 heads of width 64: what the two matmuls and the softmax between them take is 3 ms."""
    start = program.now
    program.op("aten::bmm", MATMUL, 500 * US, [[64, 2048, 64], [64, 64, keys]], [BF16, BF16])
    program.plain("add", [4, 16, 2048, keys], [4, 1, 2048, keys], gpu=1 * MS)
    program.op(
        "aten::softmax", PLAIN, 1 * MS, [[4, 16, 2048, keys + more], [], []], [BF16, "", ""], inner=("aten::_softmax",)
    )
    program.op("aten::bmm", MATMUL, 500 * US, [[64, 2048, keys], [64, keys, 64]], [BF16, BF16])
    for name in around:
        program.trace.op(name, start, program.now)


def test_eager_attention_becomes_as_fast_as_its_arithmetic_allows(tmp_path):
    program = Program()

    def body():
        program.mm(8192, 4096, 4096, gpu=2 * MS)
        attention(program)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    assert case.roofline is not None
    assert case.step_ns / US == pytest.approx(5000, rel=0.01)
    # Two matmuls over the scores below the diagonal, at 42 % of the ceiling; three launches of a microsecond.
    flops = 2 * 2 * 64 * 64 * 2048 * 2049 / 2
    fused_us = flops / case.roofline.ceilings.flops["bf16"] / 0.42 * 1e6 + 3
    assert after_us(case, only(eager_attention, case)) == pytest.approx(2000 + fused_us, rel=0.02)


def test_replaced_work_is_as_much_longer_as_another_change_made_it(tmp_path):
    """Attention that is fused after the batch was doubled takes twice as long as fused attention with the original
    batch."""
    program = Program()
    for _ in range(4):
        program.step(lambda: attention(program))
    case = program.case(tmp_path)
    change = only(eager_attention, case).change
    twice = scaled(case.graph, case.graph.on_gpu, 2.0)
    assert case.step_of(change(twice)) == pytest.approx(2 * case.step_of(change(case.graph)), rel=0.02)
    assert case.step_of(scaled(change(case.graph), case.graph.on_gpu, 2.0)) == case.step_of(change(twice))


def test_sinks_are_recognised_and_get_an_implementation_that_knows_them(tmp_path):
    program = Program()
    for _ in range(3):
        program.step(lambda: attention(program, more=1))
    assert "flex_attention" in str(only(eager_attention, program.case(tmp_path)).fix)


def test_torchs_own_attention_and_other_softmaxes_are_no_eager_attention(tmp_path):
    program = Program()

    def body():
        attention(program, around=("aten::scaled_dot_product_attention",))
        program.op("aten::bmm", MATMUL, 9 * MS, [[64, 2048, 64], [64, 64, 2048]], [BF16, BF16])
        program.op("aten::softmax", PLAIN, 9 * MS, [[4096, 128], [], []], [BF16, "", ""], inner=("aten::_softmax",))
        program.op("aten::bmm", MATMUL, 9 * MS, [[64, 2048, 2048], [64, 2048, 64]], [BF16, BF16])

    for _ in range(3):
        program.step(body)
    assert not list(eager_attention.find(program.case(tmp_path)))


def exchange(program: Program, overlapped: bool, passes: int = 1) -> None:
    """A backward of 4 ms and an all-reduce of 2 ms on a separate stream: after all of it, or during its second half."""
    for _ in range(passes):
        program.tid, start = AUTOGRAD, program.now
        for number in range(4):
            program.op("aten::mm", MATMUL, 1 * MS, [[4096, 4096], [4096, 4096]], [BF16, BF16])
            if number == 1 or not overlapped:
                program.free[20] = program.free[7]
        moved = {"Collective name": "allreduce", "In msg nelems": 44_000_000, "dtype": "Float", "Group size": 2}
        program.launch(
            "ncclDevKernel_AllReduce_Sum_f32_RING_LL", (program.now, program.now + 4 * US), 2 * MS, 20, **moved
        )
        program.now += 10 * US
        program.engine(start - US, program.now)
        program.tid = MAIN
        program.op("aten::add", dims=[[1], [1]], types=[FLOAT, FLOAT])
    program.free[7] = program.idle_at


def test_exposed_transfers_are_shorter_behind_computation(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: exchange(program, overlapped=False), sync=True)
    case = program.case(tmp_path)
    before = case.step_ns / US
    proposal = only(exposed_communication, case, "overlap")
    # 60 % of the 2 ms hide, and 40 % of that comes back.
    assert before - after_us(case, proposal) == pytest.approx(720, rel=0.05)
    assert [p.key for p in exposed_communication.find(case)] == ["overlap"]
    assert "bucket_cap_mb=5," in str(proposal.fix)  # a single exchange per step has nothing left to hide behind


def test_overlapped_transfers_are_no_finding(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: exchange(program, overlapped=True), sync=True)
    assert not list(exposed_communication.find(program.case(tmp_path)))


def test_gradients_need_not_be_exchanged_between_micro_steps(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: exchange(program, overlapped=False, passes=4), sync=True)
    case = program.case(tmp_path)
    proposal = only(exposed_communication, case, "no_sync")
    assert "no_sync" in str(proposal.fix)
    between = case.step_ns / US - after_us(case, proposal)
    assert 0 <= between <= 3 * 2000 * 1.02
    assert "3 all-reduces a step" in proposal.evidence[0].text


def kinds(program: Program, slower: float) -> None:
    for kind in range(60):
        program.op("aten::mm", f"{MATMUL}_{kind}", round(100 * US * slower), [[4096, 4096], [4096, 4096]], [BF16, BF16])


def test_kernels_that_get_slower_while_they_are_recorded_are_throttled(tmp_path):
    program = Program()
    for step in range(9):
        program.step(lambda step=step: kinds(program, 1 + 0.02 * step), sync=True)
    case = program.case(tmp_path)
    # From steps 0 to 2 to steps 6 to 8: 1.14 over 1.02.
    proposal = only(throttling, case)
    assert after_us(case, proposal) / (case.step_ns / US) == pytest.approx(1.02 / 1.14, rel=0.02)


def test_steady_kernels_are_not_throttled(tmp_path):
    program = Program()
    for step in range(9):
        program.step(lambda step=step: kinds(program, 1 + 0.01 * (step % 2)), sync=True)
    assert not list(throttling.find(program.case(tmp_path)))


@pytest.mark.parametrize(("reason", "found"), [("hw_thermal", True), ("sw_power_cap", False)])
def test_heat_holds_the_clock_back_and_a_power_limit_is_as_it_should_be(tmp_path, reason: str, found: bool):
    program = Program()
    for _ in range(4):
        program.step(lambda: program.mm(8192, 8192, 8192, gpu=2 * MS))
    gpu = GpuTelemetry(0, 500.0, 700.0, 1485.0, 1980.0, 88.0, 1.0, {reason: 0.8})
    case = program.case(tmp_path, run_of(telemetry=Telemetry((gpu,), 50, None)))
    proposals = list(throttling.find(case))
    assert bool(proposals) == found
    for proposal in proposals:
        assert after_us(case, proposal) == pytest.approx(2000 * 1485 / 1980, rel=0.02)


def test_small_matrix_multiplications_reach_a_small_part_of_what_large_ones_do():
    """On an H200: 4096³ reaches more than 90 % of the measured ceiling, 512³ less than a tenth."""
    bf16, memory = 796e12, 4.28e12
    sizes = np.array([4096.0, 512.0])
    flops, moved = 2 * sizes**3, 3 * 2 * sizes**2
    large, small = half_precision_ns(flops, moved, bf16, memory)
    took = np.hypot(flops[0] / bf16 / 1.06, moved[0] / memory / 0.84) * 1e9
    assert large == pytest.approx(0.99 * (4_000 + took))
    assert flops[0] / bf16 * 1e9 / large > 0.9 and flops[1] / bf16 * 1e9 / small < 0.1
    best, worst = (half_precision_ns(flops, moved, bf16, memory, level) for level in (0, 2))
    assert (best < [large, small]).all() and (worst > [large, small]).all()
    assert worst[1] / best[1] > 1.1 * worst[0] / best[0], "small ones scatter more"
