"""Which rank a process is, and with which versions and on which GPU it runs."""

from __future__ import annotations

import os
import platform
import sys
from typing import Any

_PACKAGES = (
    "transformers", "peft", "trl", "accelerate", "datasets", "bitsandbytes", "unsloth", "lightning",
    "pytorch_lightning", "deepspeed", "flash_attn", "liger_kernel", "torchao", "triton",
)  # fmt: skip


def place_among_ranks() -> tuple[int, int, int]:
    """(rank, rank on this machine, number of ranks), from torch.distributed or from what launchers set."""
    dist = sys.modules.get("torch.distributed")
    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if dist is not None and dist.is_available() and dist.is_initialized():
        rank, size = dist.get_rank(), dist.get_world_size()
    rank = 0 if rank is None else rank
    local = _number("LOCAL_RANK")
    return rank, rank if local is None else local, size or 1


def describe_process() -> dict[str, Any]:
    """pid and versions of this process."""
    import torch

    return {
        "pid": os.getpid(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "packages": {name: str(version) for name in _PACKAGES if (version := _version(name))},
    }


def _version(name: str) -> Any:
    """The version of a package that the program has imported."""
    return getattr(sys.modules.get(name), "__version__", None)


def compute_threads() -> int | None:
    """Threads that torch uses for one op on tensors in host memory; None if it does not say."""
    try:
        return sys.modules["torch"].get_num_threads()
    except (AttributeError, KeyError):
        return None


def describe_gpu() -> dict[str, Any] | None:
    """The GPU that this process computes on; None without one."""
    import torch

    if not torch.cuda.is_initialized():
        return None
    index = torch.cuda.current_device()
    found = torch.cuda.get_device_properties(index)
    uuid = str(getattr(found, "uuid", "") or "")
    return {
        "index": index,
        # As NVML, and so telemetry.jsonl, writes it.
        "uuid": (uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}") if uuid else None,
        "name": found.name,
        "memory_bytes": found.total_memory,
    }


def _number(variable: str) -> int | None:
    try:
        return int(os.environ[variable])
    except (KeyError, ValueError):
        return None
