"""Phases of recordings without the marks for them: forward thread ids, the engine's ranges, or all of the CPU's ops."""

from __future__ import annotations

import warnings
from pathlib import Path

from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder
from helpers.program import MS, US

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.terminal.terminal import plain

STEP = 10 * MS


def old_training(steps: int = 3, names: tuple[str, ...] = ("MmBackward0", "torch::autograd::AccumulateGrad")):
    """A training as written by profilers of 2021 to 2023: no arrows, no thread ids, no ranges of the engine."""
    builder = TraceBuilder()
    for step in range(steps):
        at = step * STEP
        builder.step(step, at, at + STEP)
        for k in range(10):  # forward: 1 ms of the host, 2 ms of the GPU
            t = at + k * 100 * US
            builder.op("aten::mm", t, t + 80 * US, MAIN)
            builder.launch(
                "gemm", (t + 20 * US, t + 30 * US), (at + k * 200 * US + 50 * US, at + k * 200 * US + 250 * US)
            )
        for k in range(20):  # backward: 4 ms of the host on autograd's thread, and of the GPU
            t = at + 3 * MS + k * 200 * US
            builder.op(names[k % len(names)], t, t + 180 * US, AUTOGRAD)
            builder.op("aten::mm", t + 10 * US, t + 100 * US, AUTOGRAD)
            builder.launch("gemm", (t + 20 * US, t + 30 * US), (t + 50 * US, t + 240 * US), tid=AUTOGRAD)
        builder.op("aten::add_", at + 7050 * US, at + 7080 * US, AUTOGRAD)
        builder.op("Optimizer.step#SGD.step", at + 8 * MS, at + 9 * MS, MAIN)
        builder.launch("add", (at + 8100 * US, at + 8110 * US), (at + 8200 * US, at + 8300 * US))
    return builder


def diagnosed(builder: TraceBuilder, folder: Path) -> Diagnosis:
    return gpuprof.diagnose(builder.write(folder / "trace.json"))


def test_nodes_of_autograd_are_the_backward_pass(tmp_path):
    found = {phase.phase: phase for phase in diagnosed(old_training(), tmp_path).phases}
    backward = found["backward"]
    assert backward.busy_ns > 3 * 3.5 * MS
    assert found["forward"].busy_ns < 3 * 2.3 * MS
    assert found["optimizer"].busy_ns > 0


def test_so_are_those_of_the_first_versions(tmp_path):
    found = diagnosed(old_training(names=("NllLossBackward", "AddmmBackward", "AccumulateGrad")), tmp_path)
    phases = {phase.phase: phase.busy_ns for phase in found.phases}
    assert phases["backward"] > 3 * 3.5 * MS
    assert found.workload is not None and found.workload.kind == "training"


def test_each_step_has_its_own_backward_pass(tmp_path):
    found = diagnosed(old_training(steps=4), tmp_path)
    forward = next(phase for phase in found.phases if phase.phase == "forward")
    assert forward.ns > 4 * 1 * MS


def test_what_autograd_names_in_new_recordings_changes_nothing(tmp_path):
    """With forward thread ids a name that ends in Backward is only a name."""
    builder = old_training(names=("MyBackward", "MmBackward0"))
    for event in builder.events:
        if event["cat"] == "cpu_op" and event["name"] != "MyBackward":
            event["args"]["Fwd thread id"] = int(event["tid"] == AUTOGRAD)
    found = diagnosed(builder, tmp_path)
    assert {phase.phase for phase in found.phases} >= {"forward", "backward", "optimizer"}


def gpu_only(kernel: str = "sm90_xmma_gemm_bf16bf16") -> TraceBuilder:
    """Launches and their kernels; nothing shows what they compute."""
    builder = TraceBuilder()
    for k in range(100):
        at, begin = k * 10 * US, (k * 100 + 6) * US
        builder.launch(kernel, (at, at + 4 * US), (begin, begin + 98 * US))
    return builder.call("cudaDeviceSynchronize", 1 * MS, 10 * MS + 20 * US)


def test_a_recording_without_ops_and_ranges_has_no_phases(tmp_path):
    found = diagnosed(gpu_only(), tmp_path)
    assert found.phases == ()
    assert found.gaps is not None and {phase.phase for phase in found.gaps.by_phase} <= {"other"}
    assert "forward" not in plain(found, 120)


def test_and_the_names_of_its_kernels_alone_bind_nothing(tmp_path):
    found = diagnosed(gpu_only(), tmp_path)
    assert found.verdict.bound is None


def test_with_ops_the_same_kernels_do(tmp_path):
    builder = gpu_only()
    for k in range(100):
        builder.op("aten::mm", k * 10 * US - 1 * US, k * 10 * US + 5 * US)
    assert diagnosed(builder, tmp_path).verdict.bound == "compute"


def unnamed_training(inner: bool = True, update: bool = True, gradient: str = "gemm") -> TraceBuilder:
    """Two threads that launch in turns, and nothing that names autograd's. `inner`: its ops were recorded; `update`: so
    was the optimizer."""
    builder = old_training(names=("aten::mul", "aten::sum"))
    kept = []
    for event in builder.events:
        if event["cat"] == "cpu_op" and event["name"].startswith("Optimizer.") and not update:
            continue
        if event["cat"] == "cpu_op" and event["tid"] == AUTOGRAD and not inner:
            continue
        if event["cat"] == "kernel" and event["ts"] % STEP >= 3 * MS and event["name"] == "gemm":
            event["name"] = gradient
        kept.append(event)
    builder.events = kept
    return builder


def busy(builder: TraceBuilder, folder: Path) -> dict[str, int]:
    return {phase.phase: phase.busy_ns for phase in diagnosed(builder, folder).phases}


def test_a_second_thread_that_launches_in_turns_is_the_backward_pass(tmp_path):
    found = busy(unnamed_training(), tmp_path)
    assert found["backward"] > 3 * 3.5 * MS
    assert found["optimizer"] > 0
    assert busy(unnamed_training(inner=False), tmp_path)["backward"] > 3 * 3.5 * MS, "without ops, too"


def test_so_it_is_by_the_names_of_its_kernels(tmp_path):
    named = unnamed_training(update=False, gradient="layer_norm_backward_kernel")
    assert busy(named, tmp_path)["backward"] > 3 * 3.5 * MS
    plain_names = unnamed_training(update=False)
    assert "backward" not in busy(plain_names, tmp_path), "two threads of an inference alternate as well"


def test_threads_that_mix_their_launches_are_no_forward_and_backward(tmp_path):
    builder = unnamed_training()
    k = 0
    for event in builder.events:
        if event["cat"] in ("cpu_op", "cuda_runtime") and event["ts"] % STEP < 8 * MS:
            k += event["cat"] == "cuda_runtime"
            event["tid"] = (MAIN, AUTOGRAD)[k % 2]
    assert "backward" not in busy(builder, tmp_path)


def test_a_thread_whose_only_launch_is_the_first_takes_no_turn(tmp_path):
    builder = TraceBuilder()
    for k in range(8):
        t = k * 100 * US
        builder.launch("gemm_wgrad", (t, t + 4 * US), (t + 6 * US, t + 90 * US), tid=AUTOGRAD if k else MAIN)
    builder.annotation("train", 0, 1 * MS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "backward" not in busy(builder, tmp_path)


def test_phases_in_the_names_of_a_pipeline_schedule_are_read(tmp_path):
    """F is the forward pass of a stage; B and W are the gradients of its inputs and weights."""
    builder = TraceBuilder()
    for step in range(3):
        at = step * STEP
        builder.step(step, at, at + STEP)
        for k, name in enumerate(("ATTN(F)", "MLP(F)", "MLP(B)", "MLP(W)", "DISPATCH(B)")):
            t = at + k * MS
            builder.annotation(name, t, t + MS)
            builder.op("aten::mm", t + 10 * US, t + 900 * US)
            builder.launch("gemm", (t + 20 * US, t + 30 * US), (t + 50 * US, t + 450 * US))
    found = busy(builder, tmp_path)
    assert found["forward"] == 3 * 2 * 400 * US
    assert found["backward"] == 3 * 3 * 400 * US


def test_a_thread_with_autograds_name_is_its_own(tmp_path):
    """It is recognised whatever its ops are called."""
    builder = unnamed_training(update=False)
    builder.event(ph="M", name="thread_name", pid=1, tid=AUTOGRAD, ts=0, args={"name": "not pt_autograd_0"})
    assert "backward" not in busy(builder, tmp_path), "a name that only contains it"
    builder = unnamed_training(update=False)
    builder.event(ph="M", name="thread_name", pid=1, tid=AUTOGRAD, ts=0, args={"name": "thread 7 (pt_autograd_0)"})
    assert busy(builder, tmp_path)["backward"] > 3 * 3.5 * MS
