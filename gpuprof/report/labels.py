"""Names of the parts of a step, kinds of kernels and resources: one each, for terminal, report and comparison.

Keys are those of the JSON. Every label has an entry in the glossary.
"""

from __future__ import annotations

from types import MappingProxyType

from gpuprof.diagnosis.mean_step.budget_model import NAMES
from gpuprof.diagnosis.verdict.step_parts import BarPart

STREAMS = "other streams"
PARTS = MappingProxyType(
    {
        "compute": "compute",
        "communication": "communication",
        "copy": "copies",
        "launch": "launch",
        "cpu_compute": "computing on the CPU",
        "slow_call": "slow CPU calls",
        "python": "Python",
        "sync": "sync",
        "input": "batches",
        "transfer": "blocking copies",
        "allocator": "memory allocation",
        "device": "between kernels",
        "profiler": "profiler",
        "unknown": "not known",
        "idle": "idle",
        "pauses": "pauses",
        "variation": "variation",
        **{key: name for key, name in NAMES.items() if key not in ("input", "periodic")},
        "periodic": "something periodic",
    }
)
"""Parts of a step: work, causes of waiting, and parts that occur in some steps only."""

CATEGORIES = MappingProxyType(
    {
        "gemm": "matrix multiplications",
        "grouped_gemm": "grouped matrix multiplications",
        "norm": "norms",
        "cast/copy": "casts and copies",
        "reduction": "reductions",
        "gather/scatter/index": "gather and scatter",
        "dequantize": "dequantization",
        "rope": "rotary embedding",
        "triton_fused": "fused (Triton)",
        "memcpy": "copies",
        "memset": "clearing memory",
    }
)
"""Kinds of kernels; any other is named by its key."""

RESOURCES = MappingProxyType(
    {
        "host": "CPU (host)",
        "input": "batches",
        "transfer": "copies",
        "communication": "communication",
        "device": "GPU",
        "compute": "GPU arithmetic",
        "memory": "memory bandwidth",
        "latency": "kernel latency",
    }
)


def cause(key: str) -> str:
    """What the GPU waits for: `launch`, `between kernels`; for communication, other ranks."""
    return "other ranks" if key == "communication" else PARTS.get(key, key.replace("_", " "))


def part(one: BarPart) -> str:
    """A part of the step."""
    if one.on_streams:
        return STREAMS
    return cause(one.key) if one.idle else PARTS.get(one.key, one.key.replace("_", " "))


def category(key: str) -> str:
    """`matrix multiplications` of `gemm`."""
    return CATEGORIES.get(key, key)
