"""Whether bf16 would move attention to cuDNN, which plans again for every new length."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.torch_version import torch_version
from gpuprof.diagnosis.quarantine import CUDNN_ATTENTION, CUDNN_CAPABILITIES

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FUSED = re.compile(
    r"^aten::_(scaled_dot_product_)?(flash|efficient)_attention|^aten::_scaled_dot_product_\w+_attention"
)
CUDNN = re.compile(r"cudnn_attention")


def bf16_would_plan(case: Analysis) -> bool:
    """Whether scaled_dot_product_attention now runs fp32 kernels, and would choose cuDNN's in bf16."""
    if case.ops_named(CUDNN.search).any() or not case.ops_named(FUSED.search).any():
        return False
    return _prefers_cudnn(case) and torch_version(case) >= CUDNN_ATTENTION


def _prefers_cudnn(case: Analysis) -> bool:
    return any(gpu.properties.get("computeMajor") in CUDNN_CAPABILITIES for gpu in case.trace.meta.gpus)
