"""Names by which compiled code, compilers and CUDA graphs show in a recording."""

from __future__ import annotations

import re

COMPILED = re.compile(
    r"^(Torch-Compiled Region|CompiledFxGraph|## Call CompiledFxGraph|CompiledFunction)|^triton_(poi|red|per)_"
)
"""Ranges around code that torch.compile generated, and kernels that Inductor wrote."""
COMPILING = re.compile(
    r"\(dynamo_timed\)|^(_compile\.|compile_fx|entire_frame_compile|backend_compile|inductor_compile|GraphLowering\."
    r"|async_compile|CachingAutotuner\.(precompile|benchmark)|create_aot_dispatcher_function)"
)
"""Ranges of Dynamo and Inductor at work."""
LOADING = re.compile(r"^(cu(Module|Library)Load|nvrtcCompile|cuLinkComplete|hipModuleLoad|cudaLibraryLoad)")
"""Driver calls that bring new code to the GPU."""
GRAPH_LAUNCH = re.compile(r"^(cuda|hip|cu)GraphLaunch")
"""Calls that launch a CUDA graph."""
