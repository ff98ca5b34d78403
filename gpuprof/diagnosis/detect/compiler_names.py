"""Names by which compiled code, compilers and CUDA graphs show in a recording."""

from __future__ import annotations

import re

COMPILED = re.compile(
    r"^(Torch-Compiled Region|CompiledFxGraph|## Call CompiledFxGraph|CompiledFunction)|^triton_(poi|red|per)_"
)
"""Ranges around code that torch.compile generated, and kernels that Inductor wrote."""
GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")
"""Calls that launch a CUDA graph."""
