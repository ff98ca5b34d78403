"""Findings about work that memory or fuller rows save: checkpointing and padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.after_fix import after_us
from helpers.case import only, run_of, with_facts
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import BF16, GB, MATMUL, MS, US, Program, checkpointed

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import padding, recompute
from gpuprof.diagnosis.result.run_model import RunMemory, StepWork


def test_without_checkpointing_the_repeated_forward_goes(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: checkpointed(program))
    case = program.case(tmp_path)
    proposal = only(recompute, case)
    assert case.step_ns / US == pytest.approx(7000, rel=0.01)
    assert after_us(case, proposal) == pytest.approx(5000, rel=0.02)
    assert "the present peak was not recorded" in str(proposal.fix)


def _restoring(program: Program) -> None:
    """Forward 2 ms of host; backward: 1 ms to restore the random state, the forward again (2 ms), 1 ms to start the
    backward pass inside, 3 ms of that, 0.2 ms to end. The GPU is never busy."""

    def matmuls(count: int, gpu: int, repeated: bool = False) -> None:
        for _ in range(count):
            numbers = program.numbered() if repeated else {}
            program.op("aten::mm", MATMUL, gpu, [[4096, 4096], [4096, 4096]], [BF16, BF16], **numbers)
            program.now += 1 * MS - 20 * US

    matmuls(2, 5 * US)
    program.tid, start = AUTOGRAD, program.now
    program.now += 1 * MS
    matmuls(2, 5 * US, repeated=True)
    program.now += 1 * MS
    matmuls(3, 5 * US)
    program.now += 200 * US
    engine: dict = {"Sequence number": 1, "Fwd thread id": 1}
    program.trace.op("CheckpointFunctionBackward", start, program.now, AUTOGRAD, **engine)
    program.engine(start - US, program.now, "CheckpointFunctionBackward")
    program.tid = MAIN


def test_a_checkpoints_own_python_goes_with_it(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: _restoring(program))
    case = program.case(tmp_path)
    gone_us = case.step_ns / US - after_us(case, only(recompute, case))
    assert gone_us == pytest.approx(4000, rel=0.02)  # not the 0.2 ms at the end, which the engine may need anyway


def test_checkpointing_stays_where_the_memory_is_needed(tmp_path):
    program = Program()
    for _ in range(4):
        program.step(lambda: checkpointed(program))
    full = run_of(memory=RunMemory(None, None, int(0.92 * 140 * GB)))
    assert not list(recompute.find(program.case(tmp_path, full)))
    half = run_of(memory=RunMemory(None, None, 70 * GB))
    assert "GiB that are free" in str(only(recompute, program.case(tmp_path, half)).fix)


def padded(tmp_path, real: float) -> Analysis:
    program = Program()

    def body():
        for _ in range(5):
            program.mm(8192, 4096, 4096, gpu=1 * MS)

    for _ in range(4):
        program.step(body)
    return program.case(tmp_path, run_of(work=StepWork(4.0, 8192.0, real * 8192, 1.0)))


def test_padding_costs_as_much_as_its_share_of_the_tokens(tmp_path):
    case = padded(tmp_path, 0.25)
    packed = only(padding, case, "packing")
    assert packed.work == pytest.approx(0.97 / 0.25)
    assert after_us(case, packed) == pytest.approx(5000, rel=0.01)
    # Matmuls of 8192 rows take far longer than reading their weights, so they scale with the rows.
    assert after_us(case, only(padding, case, "padding_free")) == pytest.approx(1250, rel=0.03)
    assert after_us(case, only(padding, case, "grouped")) == pytest.approx(5000 * (0.25 + 0.15 * 0.75), rel=0.03)


def test_padding_is_that_of_all_steps_of_the_run(tmp_path):
    """The few recorded steps may have batches with less padding than usual, or more."""
    case = padded(tmp_path, 0.5)
    assert case.run
    case = with_facts(case, run=replace(case.run, work=StepWork(4.0, 8192.0, 4096.0, 1.0, 0.25)))
    packed = only(padding, case, "packing")
    assert packed.work == pytest.approx(0.97 / 0.25)
    assert packed.evidence[0].text.startswith("75 % of the tokens are padding, some 6,144 of 8,192 a step")
    assert after_us(case, only(padding, case, "padding_free")) == pytest.approx(1250, rel=0.03)


def test_rows_with_one_label_each_are_not_packed(tmp_path):
    """A reward model or classifier reads one output per row, so only batches of similar lengths are advised."""
    case = padded(tmp_path, 0.5)
    for name in ("Qwen2ForSequenceClassification", "PeftModelForSequenceClassification"):
        found = padding.find(with_facts(case, stack=replace(case.stack, model_class=name)))
        assert [proposal.key for proposal in found] == ["grouped"]


def test_little_padding_or_none_known_is_no_finding(tmp_path):
    case = padded(tmp_path, 0.95)
    assert not list(padding.find(case))
    assert not list(padding.find(with_facts(case, run=None)))
