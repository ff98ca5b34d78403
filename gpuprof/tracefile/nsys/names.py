"""Converts names of an export to torch.profiler's style, so that only one style has to be handled."""

from __future__ import annotations

import re

_CAST = re.compile(r"\((?:unsigned )?(?:int|long|short|char|long long)\)(?=-?\d)")
_TRUTH = re.compile(r"\(bool\)([01])")
_VERSION = re.compile(r"(_pt[ds]z)?(_v\d{3,5})?$")
_OP_ID = re.compile(r", (seq|op_id|sizes|input_op_ids) = ")

COPY_KINDS = {
    1: "HtoD", 2: "DtoH", 3: "HtoA", 4: "AtoH", 5: "AtoA", 6: "AtoD", 7: "DtoA", 8: "DtoD", 9: "HtoH", 10: "PtoP",
    11: "HtoD", 12: "DtoH", 13: "DtoD",
}  # fmt: skip
"""CUPTI's kinds of copies; the last three are for managed memory."""
MEMORY_KINDS = {
    0: "Pageable", 1: "Pinned", 2: "Device", 3: "Array", 4: "Managed", 5: "Device Static", 6: "Managed Static",
}  # fmt: skip
OVERHEADS = {
    2: "Driver Compiler", 3: "Buffer Flush", 4: "Instrumentation", 5: "Resource", 6: "Runtime Triggered Module Loading",
    7: "Lazy Function Loading", 8: "Command Buffer Full",
}  # fmt: skip
"""CUPTI's kinds of overhead: 3, 4 and 5 are the profiler's own; 8 is the CPU waiting for room in the launch queue."""
SYNCS = {1: "Event Sync", 2: "Stream Wait Event", 3: "Stream Sync", 4: "Context Sync"}


def kernel(name: str) -> str:
    """`f<(int)4, (bool)1>` → `f<4, true>`."""
    return _TRUTH.sub(lambda m: "true" if m[1] == "1" else "false", _CAST.sub("", name)) if "(" in name else name


def call(name: str) -> str:
    """`cudaLaunchKernel_v7000`, `cudaLaunchKernel_ptsz_v7000` → `cudaLaunchKernel`."""
    return _VERSION.sub("", name)


def op(name: str) -> tuple[str, int | None, int | None, str | None]:
    """(name, autograd sequence number, number of the op, sizes) of a range that `emit_nvtx` wrote:
    `aten::mm, seq = 7, op_id = 12, sizes = [[2, 3], [3, 4]]`; no number and no sizes for any other."""
    parts = _OP_ID.split(name)
    if len(parts) < 3:
        return name, None, None, None
    said = dict(zip(parts[1::2], parts[2::2], strict=True))
    return parts[0], _whole(said.get("seq")), _whole(said.get("op_id")), said.get("sizes")


def copy(kind: int, source: int, target: int) -> str:
    """`Memcpy HtoD (Pageable -> Device)`."""
    memory = [MEMORY_KINDS.get(k, "Unknown") for k in (source, target)]
    return f"Memcpy {COPY_KINDS.get(kind, 'Unknown')} ({memory[0]} -> {memory[1]})"


def memset(memory: int) -> str:
    return f"Memset ({MEMORY_KINDS.get(memory, 'Device')})"


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"-?\d{1,18}", text) else None
