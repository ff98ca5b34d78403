"""Whether bf16 would move attention to cuDNN, which plans again for every new length."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.torch_version import torch_version
from gpuprof.units import Measured, Published, Version

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FUSED = re.compile(
    r"^aten::_(scaled_dot_product_)?(flash|efficient)_attention|^aten::_scaled_dot_product_\w+_attention"
)
CUDNN = re.compile(r"cudnn_attention")
FIRST_TORCH: Measured[tuple[Version, Version]] = (2, 11)
"""torch chooses cuDNN's attention by itself from this version on, or a little earlier (scenarios/recompiles, on an
H200); 2.9 still preferred flash attention."""
CUDNN_CAPABILITIES: Published[tuple[Version, ...]] = (9, 10)
"""Major compute capabilities on which it does so (`check_prefer_cudnn_attention` in torch's sdp_utils.cpp)."""


def bf16_would_plan(case: Analysis) -> bool:
    """Whether scaled_dot_product_attention now runs fp32 kernels, and would choose cuDNN's in bf16."""
    if case.ops_named(CUDNN.search).any() or not case.ops_named(FUSED.search).any():
        return False
    return _prefers_cudnn(case) and torch_version(case) >= FIRST_TORCH


def _prefers_cudnn(case: Analysis) -> bool:
    return any(gpu.properties.get("computeMajor") in CUDNN_CAPABILITIES for gpu in case.trace.meta.gpus)
