"""The target's environment, in which its Pythons load the code that records."""

from __future__ import annotations

import os
from pathlib import Path

from ... import runfile

INJECT = Path(__file__).parents[1] / "inject"
"""On the path of the target's Pythons: its sitecustomize.py runs before their own code."""

VARIABLES = (
    "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_MODULE_LOADING", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "OMP_NUM_THREADS", "MKL_NUM_THREADS",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_COMPILE_DISABLE",
    "TORCHDYNAMO_DISABLE", "TOKENIZERS_PARALLELISM", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_ALGO",
    "NCCL_PROTO", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG", "TEARDOWN_CUPTI",
)  # fmt: skip
"""The environment variables in a manifest: only those that change the speed of a step."""


def environment(folder: Path | None) -> dict[str, str]:
    """The target's environment: ours, with the path to the recorder."""
    if folder is None:
        return dict(os.environ)
    return {**led_to_us(), runfile.RUN_VARIABLE: str(folder)}


def led_to_us() -> dict[str, str]:
    """Our environment, changed so that every Python loads the code that records or arms before its own."""
    variables = dict(os.environ)
    inject, path = str(INJECT), variables.get("PYTHONPATH", "")
    if path.split(os.pathsep)[0] != inject:
        # Never an empty entry, which would mean the working directory.
        variables["PYTHONPATH"] = f"{inject}{os.pathsep}{path}" if path else inject
    variables.setdefault("TEARDOWN_CUPTI", "1")
    return variables
