"""Diagnoses made by hand, whose numbers add up as those of a real one do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.recorded_facts import RecordingQuestion
from gpuprof.diagnosis.result.diagnosis import (
    AnalysedWindow,
    CategoryTime,
    CauseTime,
    Device,
    DeviceEstimate,
    Diagnosis,
    Environment,
    Gap,
    Gaps,
    GpuName,
    Issue,
    Kernels,
    KernelTime,
    NamedTime,
    PhaseGaps,
    PhaseTime,
    Profiler,
    Quality,
    Source,
    Steps,
    Verdict,
)

MS = 1_000_000
STEPS = 4

MUL = (
    "void at::native::vectorized_elementwise_kernel<8, at::native::BinaryFunctor<c10::BFloat16, "
    "c10::BFloat16, c10::BFloat16, at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul> >"
    "(int, at::native::BinaryFunctor<c10::BFloat16, c10::BFloat16, c10::BFloat16, "
    "at::native::binary_internal::MulFunctor<float> >, std::array<char*, 3ul>)"
)
HOSTILE = "evil\x1b[31m[bold red]\x07\u202ekernel\u200b<script>alert('x')</script>&\ud800 [/]"
"""Escape sequences, markup of rich and HTML, text that runs backwards, a zero-width space, half a letter."""


def analysed(**facts: Any) -> Analysis:
    """An analysis of nothing, of which only these facts are known."""
    return Analysis(RecordingQuestion(None), facts)


def host_bound(**changes: Any) -> Diagnosis:
    """A launch-bound LoRA fine-tune on one device: 4 steps of 168 ms, the device idle for 90 % of them."""
    window = STEPS * 168 * MS
    idle = window - 61 * MS
    diagnosis = Diagnosis(
        source=Source("runs/tiny_lora.json.gz", "kineto", 2_597_490, 182_310),
        quality=Quality("ok", ()),
        environment=Environment(
            (GpuName(0, "NVIDIA H200", 150_109_880_320),), {"cuda_runtime_version": 13000}, None, None
        ),
        steps=Steps("profiler_step", "ProfilerStep#*", STEPS, (168 * MS,) * STEPS, 168 * MS, None, None, None, 1),
        budget=None,
        window=AnalysedWindow(4_390_147_319_469_541, 4_390_147_319_469_541 + window),
        devices=(Device(0, window, 60 * MS, 0, 1 * MS, idle, 61 * MS, 0, 40_000, 0.87, 1, gaps(idle).by_cause),),
        devices_estimated=None,
        gaps=gaps(idle),
        kernels=kernels(),
        phases=(
            PhaseTime("forward", 240 * MS, 22 * MS, 218 * MS),
            PhaseTime("backward", 370 * MS, 34 * MS, 336 * MS),
            PhaseTime("optimizer", window - 610 * MS, 5 * MS, window - 615 * MS),
        ),
        profiler=Profiler(35_112, 18 * MS, 70 * MS, 107 * MS),
        verdict=Verdict(
            "host",
            "host",
            "launch",
            None,
            (
                "The GPU works 15 of 168 ms.",
                "The rest it waits for the host, which launches 5,276 kernels a step, half of them under 2 µs long.",
            ),
        ),
    )
    return replace(diagnosis, **changes)


def gaps(idle_ns: int) -> Gaps:
    rest = idle_ns - 120 * MS
    return Gaps(
        count=20_480,
        total_ns=idle_ns,
        by_cause=(
            CauseTime("launch", rest, 18_000),
            CauseTime("python", 90 * MS, 2_400),
            CauseTime("sync", 30 * MS, 80),
        ),
        by_phase=(
            PhaseGaps("backward", 336 * MS, 11_000, "MulBackward0", "lora_A.default"),
            PhaseGaps("forward", 218 * MS, 8_400, "aten::mul", None),
            PhaseGaps("optimizer", idle_ns - 554 * MS, 1_080, None, None),
        ),
        largest=(
            Gap(12 * MS, 31 * MS, 0, "sync", "aten::item", None, "optimizer", "train.py(88): clip"),
            Gap(180 * MS, 9 * MS, 0, "python", None, None, "forward", None),
            Gap(201 * MS, 850_000, 0, "launch", "aten::mm", "q_proj", "backward", "modeling.py(12): forward"),
        ),
    )


def kernels() -> Kernels:
    return Kernels(
        count=21_104,
        launches_per_step=5276.0,
        total_ns=61 * MS,
        unattributed_ns=1 * MS,
        median_ns=1_890,
        by_category=(
            CategoryTime("gemm", 31 * MS, 6_000, None),
            CategoryTime("elementwise", 23 * MS, 12_000, None),
            CategoryTime("norm", 3 * MS, 1_600, None),
            CategoryTime("optimizer", 2 * MS, 1_400, None),
            CategoryTime("memcpy", 1 * MS, 60, None),
            CategoryTime("other", 1 * MS, 44, None),
        ),
        by_op=(NamedTime("aten::mm", 31 * MS, 6_000), NamedTime("aten::mul", 12 * MS, 5_200)),
        by_phase=(NamedTime("backward", 34 * MS, 12_000), NamedTime("forward", 27 * MS, 9_104)),
        top=(
            kernel_time("nvjet_sm90_tst_64x8_64x16_4x1_v_bz_TNT", "gemm", 14 * MS, "aten::mm"),
            kernel_time(MUL, "elementwise", 9 * MS, "aten::mul"),
            kernel_time("Memcpy HtoD (Pageable -> Device)", "memcpy", 1 * MS, None),
        ),
    )


def kernel_time(name: str, category: str, ns: int, op: str | None) -> KernelTime:
    return KernelTime(name, category, ns, 1_200, op, None, None, None, None)


def timed(**changes: Any) -> Diagnosis:
    """The same with the step's time without a profiler known, and the devices estimated for it."""
    steps = host_bound().steps
    assert steps is not None
    known = {
        "steps": replace(steps, unprofiled_ns=74 * MS, estimated_ns=78 * MS, inflation=168 / 74),
        "devices_estimated": (DeviceEstimate(0, 74 * MS, 15 * MS, 0, 250_000, 58_750_000, 0.74),),
    }
    return host_bound(**{**known, **changes})


def two_devices(**changes: Any) -> Diagnosis:
    """Two devices in one process, one waiting for the other."""
    window = STEPS * 168 * MS
    first = Device(0, window, 500 * MS, 100 * MS, 2 * MS, 70 * MS, 602 * MS, 0, 0, 0.02, 3)
    second = Device(1, window, 200 * MS, 400 * MS, 2 * MS, 70 * MS, 602 * MS, 0, 0, None, 3)
    known: dict[str, Any] = {
        "environment": Environment((GpuName(0, "NVIDIA H200", None), GpuName(1, "NVIDIA H200", None)), {}, 0, 2),
        "devices": (first, second),
        "gaps": replace(
            gaps(140 * MS),
            by_cause=(CauseTime("communication", 140 * MS, 400),),
            by_phase=(PhaseGaps("backward", 140 * MS, 400, "MulBackward0", "lora_A.default"),),
        ),
        "verdict": Verdict("communication", "other", "peer_wait", 0.97, ("The devices wait for each other.",)),
    }
    return host_bound(**{**known, **changes})


def no_steps(**changes: Any) -> Diagnosis:
    """No steps can be distinguished: the whole recording is the window."""
    window = STEPS * 168 * MS
    steps = Steps("none", None, 1, (window,), window, None, None, None, 0)
    issue = Issue("no-steps", "warning", "No steps were found: the whole recording was analysed as one.")
    return host_bound(**{"steps": steps, "quality": Quality("degraded", (issue,)), **changes})


def unusable(**changes: Any) -> Diagnosis:
    """Launches without kernels: the recording lost the device."""
    issue = Issue(
        "gpu-events-lost",
        "error",
        "The recording holds 1,203 launches and no kernel. Record again with CUDA 13.1.",
    )
    known: dict[str, Any] = {
        "quality": Quality("unusable", (issue,)),
        "environment": Environment((), {}, None, None),
        "devices": (),
        "gaps": None,
        "kernels": None,
        "phases": (),
        "profiler": None,
        "verdict": Verdict(None, None, None, None, ("Nothing can be said about this recording.",)),
    }
    return host_bound(**{**known, **changes})


def empty(**changes: Any) -> Diagnosis:
    """A file without anything that takes time."""
    known = {"steps": None, "window": None}
    return unusable(**{**known, **changes})


def hostile(**changes: Any) -> Diagnosis:
    """Every name is an attack on the terminal, the page or the parser."""
    found = gaps(STEPS * 168 * MS - 61 * MS)
    named = Gap(12 * MS, 31 * MS, 0, "sync", HOSTILE, HOSTILE, "forward", HOSTILE)
    known: dict[str, Any] = {
        "source": Source(HOSTILE, "kineto", 1, 1),
        "quality": Quality("degraded", (Issue("odd", "warning", f"Odd name: {HOSTILE}"),)),
        "environment": Environment((GpuName(0, HOSTILE, None),), {HOSTILE: HOSTILE}, None, None),
        "gaps": replace(
            found,
            by_phase=(PhaseGaps("forward", found.total_ns, found.count, HOSTILE, HOSTILE * 50),),
            largest=(named,),
        ),
        "kernels": replace(kernels(), top=(kernel_time(HOSTILE * 50, "gemm", 14 * MS, HOSTILE),)),
        "verdict": Verdict("host", "host", "launch", None, (f"It waits for {HOSTILE}.",)),
    }
    return host_bound(**{**known, **changes})


ALL = {
    "host_bound": host_bound,
    "timed": timed,
    "two_devices": two_devices,
    "no_steps": no_steps,
    "unusable": unusable,
    "empty": empty,
    "hostile": hostile,
}
