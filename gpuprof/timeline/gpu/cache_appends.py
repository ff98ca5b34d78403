"""Concatenations that append one token to a key-value cache, each of which copies the whole cache."""

from __future__ import annotations

import re

import numpy as np

from gpuprof.tracefile.trace import NO_TEXT, Mask, Trace

_LIST = re.compile(r"\[[\d, ]*\]")


def cache_appends(trace: Trace, window: tuple[int, int]) -> Mask:
    """Rows of the ops in a window that append one position to a cache; none where shapes were not recorded."""
    low, high = window
    rows = trace.rows_named(trace.ops.name, lambda name: name == "aten::cat") & (trace.ops.dims != NO_TEXT)
    rows &= (trace.ops.start_ns >= low) & (trace.ops.start_ns < high)
    wanted = [dims for dims in np.unique(trace.ops.dims[rows]).tolist() if _appends(trace.text(dims) or "")]
    return rows & np.isin(trace.ops.dims, wanted)


def _appends(dims: str) -> bool:
    """Whether the arguments' shapes are those of a cache and of one position: [[1, 8, 127, 64], [1, 8, 1, 64]]."""
    shapes = [[int(n) for n in re.findall(r"\d+", text)] for text in _LIST.findall(dims)]
    if len(shapes) < 2 or len(shapes[0]) != 4 or len(shapes[1]) != 4:
        return False
    differs = [at for at in range(4) if shapes[0][at] != shapes[1][at]]
    return differs in ([1], [2]) and shapes[1][differs[0]] == 1
