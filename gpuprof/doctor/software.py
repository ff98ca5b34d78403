"""Checks of the platform, torch, the driver and the profilers."""

from __future__ import annotations

import re

from gpuprof.doctor.machine_facts import Check, MachineFacts
from gpuprof.units import Assumed, Version

OLDEST_TORCH: Assumed[tuple[Version, Version]] = (2, 4)
"""Oldest torch that is supported for recording. Its profiler is the first that writes times to the nanosecond; older
ones round to whole microseconds, as long as a short kernel takes. Their traces can still be read."""
_COUNTERS = "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
_ALLOW_COUNTERS = (
    "ask the administrator to load the driver with NVreg_RestrictProfilingToAdminUsers=0, or in a container to add"
    f" --cap-add=SYS_ADMIN ({_COUNTERS})"
)


def platform(facts: MachineFacts) -> Check:
    """The platform is Linux: `gpuprof trace` starts its target with Linux system calls."""
    if facts.platform.startswith("linux"):
        return Check("platform", "ok", "Linux")
    return Check(
        "platform", "blocker", f"gpuprof trace runs on Linux only, and this is {facts.platform}",
        "record on a Linux machine; diagnose and report read recordings anywhere",
    )  # fmt: skip


def torch(facts: MachineFacts) -> Check:
    """The target's interpreter has a torch that can be recorded."""
    found = facts.torch
    if found.version is None:
        return Check(
            "torch", "blocker", f"{facts.python} cannot import torch: {found.error or 'it is not installed'}",
            "activate the environment that you train in, or name its Python: gpuprof trace /path/to/python train.py",
        )  # fmt: skip
    built = f"CUDA {found.cuda}" if found.cuda else f"ROCm {found.hip}" if found.hip else "CPU only"
    text = f"torch {found.version} ({built}) in {facts.python}"
    if _version(found.version) < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        return Check(
            "torch", "warning", f"{text} is older than {oldest}: gpuprof is not tested with it, and its profiler rounds"
            " times to whole microseconds",
            f"install torch {oldest} or newer",
        )  # fmt: skip
    return Check("torch", "ok", text)


def gpu(facts: MachineFacts) -> Check:
    """torch can use a GPU; without one, steps are timed but no GPU work is recorded."""
    found = facts.torch
    if found.devices:
        names = ", ".join(sorted({f"{found.devices.count(name)} × {name}" for name in found.devices}))
        return Check("gpu", "ok", names)
    if not (facts.gpus or facts.gpu_files):
        return Check(
            "gpu", "warning", "there is no GPU here: gpuprof trace can time a training on the CPU and sample its"
            " functions, but there are no kernels to diagnose",
            "to diagnose a GPU, record on the machine that has it; in a container start it with --gpus all",
        )  # fmt: skip
    if found.version is not None and not found.cuda and not found.hip:
        return Check(
            "gpu", "blocker", "there is a GPU, but this torch is built for CPUs only",
            "install a CUDA build of torch: https://pytorch.org/get-started/locally",
        )  # fmt: skip
    if facts.variables.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return Check("gpu", "blocker", "CUDA_VISIBLE_DEVICES hides all GPUs", "unset CUDA_VISIBLE_DEVICES")
    why = f": {found.error}" if found.error else ""
    return Check(
        "gpu", "blocker", f"there is a GPU, but torch cannot use it{why}",
        "check that nvidia-smi works and that the driver is new enough for this torch",
    )  # fmt: skip


def driver(facts: MachineFacts) -> Check:
    """The driver supports the major version of CUDA that torch was built for (minor versions are compatible)."""
    needed, supported = facts.torch.cuda, facts.driver_cuda
    name = f"driver {facts.gpus[0].driver}" if facts.gpus else "the driver"
    if not needed or not supported:
        return Check("driver", "unknown", "which CUDA version the driver supports could not be read")
    if _version(supported)[0] < _version(needed)[0]:
        return Check(
            "driver", "blocker", f"{name} supports CUDA {supported}, and torch was built for CUDA {needed}",
            "update the driver, or install a torch built for an older CUDA",
        )  # fmt: skip
    return Check("driver", "ok", f"{name} supports CUDA {supported}")


def tracing(facts: MachineFacts) -> Check:
    """torch.profiler records GPU work, tried with one matrix multiplication."""
    found = facts.torch
    if found.gpu_events is None:
        return Check("tracing", "unknown", "not tried: torch has no GPU to use")
    if found.gpu_events > 0:
        return Check("tracing", "ok", "torch.profiler records GPU work (tried with one matrix multiplication)")
    if "INSUFFICIENT_PRIVILEGES" in found.error:
        return Check("tracing", "blocker", "CUPTI may not trace the GPU: insufficient privileges", _ALLOW_COUNTERS)
    why = f": {found.error}" if found.error else ""
    return Check(
        "tracing", "blocker", f"torch.profiler recorded no GPU work{why}",
        "end other profilers of this process (CUDA_INJECTION64_PATH, nsys, DCGM); try gpuprof trace --nsys",
    )  # fmt: skip


def counters(facts: MachineFacts) -> Check:
    """GPU counters (`--nsys --gpu-metrics`) need permission; tracing does not."""
    if facts.admin_only is None:
        return Check("counters", "unknown", "whether GPU counters may be read is not known here")
    if facts.admin_only and not facts.is_root:
        return Check(
            "counters", "note", "GPU counters are for administrators only: trace --nsys --gpu-metrics records without"
            " them", _ALLOW_COUNTERS,
        )  # fmt: skip
    return Check("counters", "ok", "GPU counters may be read (trace --nsys --gpu-metrics)")


def nsys(facts: MachineFacts) -> Check:
    """Nsight Systems is only needed for `--nsys`."""
    if facts.nsys:
        return Check("nsys", "ok", f"Nsight Systems {facts.nsys}")
    return Check(
        "nsys", "note", f"trace --nsys cannot be used: {facts.nsys_error or 'Nsight Systems is not installed'}",
        "only if you want it: https://developer.nvidia.com/nsight-systems",
    )  # fmt: skip


def wsl(facts: MachineFacts) -> Check:
    """Windows' subsystem for Linux restricts profiling and reports power and clocks incompletely."""
    if "microsoft" not in facts.kernel.lower():
        return Check("wsl", "ok", "not in WSL")
    return Check(
        "wsl", "warning", "in WSL CPU times vary more, and power and clocks are only partly reported",
        "allow GPU counters in the NVIDIA Control Panel (Developer > Manage GPU Performance Counters); for figures that"
        " others can compare, record on Linux itself",
    )  # fmt: skip


def container(facts: MachineFacts) -> Check:
    """A container of the NVIDIA runtime has the capabilities `compute` and `utility`."""
    if facts.container is None:
        return Check("container", "ok", "not in a container")
    given = facts.variables.get("NVIDIA_DRIVER_CAPABILITIES")
    missing = {"compute", "utility"} - set(re.split(r"[,\s]+", given)) if given and "all" not in given else set()
    if missing:
        return Check(
            "container", "warning", f"this {facts.container} container lacks the driver's"
            f" {' and '.join(sorted(missing))}: without utility no power and clocks are read, without compute"
            " there is no CUDA",
            "start it with -e NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        )  # fmt: skip
    return Check("container", "ok", f"in a {facts.container} container")


def variables(facts: MachineFacts) -> Check:
    """No environment variable slows down every step or loads another profiler."""
    found = facts.variables
    if found.get("CUDA_LAUNCH_BLOCKING", "0") not in ("", "0"):
        return Check(
            "variables", "warning", "CUDA_LAUNCH_BLOCKING is set: the CPU waits for every kernel, so every step is"
            " slower than usual", "unset CUDA_LAUNCH_BLOCKING",
        )  # fmt: skip
    if found.get("CUDA_INJECTION64_PATH"):
        return Check(
            "variables", "warning", "CUDA_INJECTION64_PATH is set: another profiler is loaded into every CUDA process",
            "unset CUDA_INJECTION64_PATH",
        )  # fmt: skip
    debug = [name for name in ("TORCH_DISTRIBUTED_DEBUG", "NCCL_DEBUG") if found.get(name, "").upper() in _VERBOSE]
    if debug:
        return Check("variables", "warning", f"{' and '.join(debug)} slow collectives down", f"unset {' '.join(debug)}")
    return Check("variables", "ok", "no environment variable slows steps down")


_VERBOSE = ("DETAIL", "TRACE")


def _version(text: str) -> tuple[int, ...]:
    """`2.11.0+cu128` → (2, 11); (0, 0) of what has no number."""
    return tuple(int(n) for n in re.findall(r"\d+", text)[:2]) or (0, 0)
