"""Causes of gaps in hand-made cases."""

from __future__ import annotations

import pytest
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder, sequence
from helpers.present import present
from helpers.timeline import built

import gpuprof


def diagnose(trace: TraceBuilder, **options):
    return gpuprof.diagnose(built(trace), **options)


def causes(trace: TraceBuilder, **options) -> dict[str, int]:
    return {c.cause: c.ns for c in present(diagnose(trace, **options).gaps).by_cause}


def test_queued_work_makes_the_gap_the_devices_own():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.launch("a", (0, 10), (10, 400))
    trace.launch("b", (20, 30), (450, 1000))
    assert causes(trace) == {"launch": 10, "device": 50}


def test_item_is_a_sync_and_a_pageable_copy_a_transfer():
    for op, cause in (("aten::_local_scalar_dense", "sync"), ("aten::copy_", "transfer")):
        trace = TraceBuilder().step(1, 0, 1000)
        trace.op(op, 100, 900)
        trace.launch("Memcpy DtoH (Device -> Pageable)", (200, 800), (300, 310), cat="gpu_memcpy")
        trace.launch("k", (950, 960), (960, 1000))
        # Time in the copy call with an idle device: before the copy began, and after it had ended.
        assert causes(trace)[cause] == (300 - 200) + (800 - 310), cause


def test_command_buffer_full_is_back_pressure_not_the_profiler():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.overhead("Command Buffer Full", 0, 500)
    trace.launch("k", (500, 510), (510, 1000))
    assert "profiler" not in causes(trace)


def test_a_gap_that_an_unknown_launch_ends_is_unknown():
    trace = TraceBuilder().step(1, 0, 1000).op("aten::add", 0, 10)
    trace.gpu("k", 600, 1000)
    assert causes(trace) == {"unknown": 600}
    assert diagnose(trace).devices[0].cpu_bound_fraction is None


def test_cpu_bound_fraction_is_the_unlaunched_share():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.launch("a", (0, 100), (100, 500))
    trace.launch("b", (600, 700), (720, 1000))
    # Idle 0–100 and 500–720; of these 700–720 the work was launched.
    assert diagnose(trace).devices[0].cpu_bound_fraction == pytest.approx((100 + 200) / 1000)


def test_a_gap_names_op_module_phase_and_frame():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.frame("train.py(12): main", 0, 1000, **{"Python id": 1, "Python parent id": None})
    trace.frame("nn.Module: Linear_3", 300, 900, **{"Python id": 2, "Python parent id": 1, "Python module id": 3})
    trace.op("aten::linear", 400, 800).op("aten::mm", 450, 750)
    trace.launch("gemm", (500, 510), (520, 1000))
    (gap,) = present(diagnose(trace).gaps).largest
    assert (gap.start_ns, gap.ns, gap.op, gap.module) == (0, 520, "aten::mm", "nn.Module: Linear_3")
    assert (gap.phase, gap.frame) == ("forward", "train.py(12): main")


def test_backward_work_belongs_to_the_module_of_its_forward():
    trace = TraceBuilder().step(1, 0, 1000)
    trace.frame("nn.Module: Linear_3", 0, 200, **{"Python id": 2, "Python module id": 3})
    trace.op("aten::mm", 50, 150, **sequence(7))
    trace.launch("gemm", (60, 70), (70, 200))
    engine = "autograd::engine::evaluate_function: MmBackward0"
    trace.op(engine, 400, 600, AUTOGRAD, **sequence(7, 1))
    trace.op("MmBackward0", 410, 590, AUTOGRAD, **sequence(7, 1))
    trace.op("aten::mm", 420, 580, AUTOGRAD)
    trace.flow("fwdbwd", 1, (1, MAIN, 50), (1, AUTOGRAD, 410))
    trace.launch("gemm", (500, 510), (520, 1000), tid=AUTOGRAD)
    gaps = present(diagnose(trace).gaps).largest
    assert [(g.phase, g.module) for g in gaps] == [
        ("backward", "nn.Module: Linear_3"),
        ("forward", "nn.Module: Linear_3"),
    ]
