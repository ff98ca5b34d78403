"""How long a kernel should take: its work at the usual rate of its kind and size.

The rates are neither a datasheet's nor the best ever measured: they are the median of kernels of that kind and size in
recordings of trainings (calibration/reach.py). A kernel counts as slow only if nine in ten are faster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import reach as calibrated
from gpuprof.calibration.number import Number
from gpuprof.costs.roofline import Roofline
from gpuprof.costs.split import roof_ns
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64, I64, KERNEL, MEMCPY, Mask
from gpuprof.units import Assumed, Ns

SHORTEST_ROOF_NS: Assumed[Ns] = 2_000.0
"""Kernels with a shorter roof time take as long as a launch, whatever their work."""
LONG_ROOF_NS: Assumed[Ns] = 20_000.0
LARGE_ROOF_NS: Assumed[Ns] = 200_000.0
"""Roof times from which on a kernel fills the GPU for so long that its first and last waves hardly matter."""
_ENDLESS = float("inf")

GEMM, ATTENTION, ROWS, ELEMENTWISE, CAST, INDEX, DEQUANTIZE, OPTIMIZER, COPY, OTHER = range(10)
KIND_NAMES = (
    "matrix multiplications", "attention", "norms, softmax or reductions", "elementwise kernels", "casts or copies",
    "gathers or scatters", "dequantisation", "optimizer kernels", "copies between memories", "other kernels",
)  # fmt: skip
_KIND_OF = {
    "gemm": GEMM, "grouped_gemm": GEMM, "attention": ATTENTION, "norm": ROWS, "softmax": ROWS, "reduction": ROWS,
    "loss": ROWS, "elementwise": ELEMENTWISE, "triton_fused": ELEMENTWISE, "rope": ELEMENTWISE,
    "dropout": ELEMENTWISE, "cast/copy": CAST, "gather/scatter/index": INDEX, "embedding": INDEX,
    "dequantize": DEQUANTIZE, "optimizer": OPTIMIZER,
}  # fmt: skip
_CATEGORY_KINDS = np.array([_KIND_OF.get(name, OTHER) for name in CATEGORIES], np.int64)


@dataclass(frozen=True, slots=True)
class Cell:
    """Kernels of some kinds whose roof time lies in [from_ns, to_ns)."""

    name: str
    kinds: tuple[int, ...]
    from_ns: float
    to_ns: float
    number: Number
    """Share of the roof's rate that they reach; for the shortest roofs their time, ns."""


CELLS = (
    Cell("GEMM_TINY_NS", (GEMM,), 0.0, SHORTEST_ROOF_NS, calibrated.GEMM_TINY_NS),
    Cell("GEMM_SHORT", (GEMM,), SHORTEST_ROOF_NS, LONG_ROOF_NS, calibrated.GEMM_SHORT),
    Cell("GEMM_LONG", (GEMM,), LONG_ROOF_NS, LARGE_ROOF_NS, calibrated.GEMM_LONG),
    Cell("GEMM_LARGE", (GEMM,), LARGE_ROOF_NS, _ENDLESS, calibrated.GEMM_LARGE),
    Cell("ATTENTION_TINY_NS", (ATTENTION,), 0.0, SHORTEST_ROOF_NS, calibrated.ATTENTION_TINY_NS),
    Cell("ATTENTION_SHORT", (ATTENTION,), SHORTEST_ROOF_NS, LONG_ROOF_NS, calibrated.ATTENTION_SHORT),
    Cell("ATTENTION_LONG", (ATTENTION,), LONG_ROOF_NS, LARGE_ROOF_NS, calibrated.ATTENTION_LONG),
    Cell("ATTENTION_LARGE", (ATTENTION,), LARGE_ROOF_NS, _ENDLESS, calibrated.ATTENTION_LARGE),
    Cell("ROWS_TINY_NS", (ROWS,), 0.0, SHORTEST_ROOF_NS, calibrated.ROWS_TINY_NS),
    Cell("ROWS_SHORT", (ROWS,), SHORTEST_ROOF_NS, LONG_ROOF_NS, calibrated.ROWS_SHORT),
    Cell("ROWS_LONG", (ROWS,), LONG_ROOF_NS, _ENDLESS, calibrated.ROWS_LONG),
    Cell("ELEMENTWISE_TINY_NS", (ELEMENTWISE, CAST), 0.0, SHORTEST_ROOF_NS, calibrated.ELEMENTWISE_TINY_NS),
    Cell("ELEMENTWISE_SHORT", (ELEMENTWISE,), SHORTEST_ROOF_NS, LONG_ROOF_NS, calibrated.ELEMENTWISE_SHORT),
    Cell("ELEMENTWISE_LONG", (ELEMENTWISE,), LONG_ROOF_NS, _ENDLESS, calibrated.ELEMENTWISE_LONG),
    Cell("CAST_SHORT", (CAST,), SHORTEST_ROOF_NS, LONG_ROOF_NS, calibrated.CAST_SHORT),
    Cell("CAST_LONG", (CAST,), LONG_ROOF_NS, _ENDLESS, calibrated.CAST_LONG),
    Cell("INDEX_TINY_NS", (INDEX,), 0.0, SHORTEST_ROOF_NS, calibrated.INDEX_TINY_NS),
    Cell("INDEX_LONG", (INDEX,), SHORTEST_ROOF_NS, _ENDLESS, calibrated.INDEX_LONG),
    Cell("DEQUANTIZE_TINY_NS", (DEQUANTIZE,), 0.0, SHORTEST_ROOF_NS, calibrated.DEQUANTIZE_TINY_NS),
    Cell("DEQUANTIZE_LONG", (DEQUANTIZE,), SHORTEST_ROOF_NS, _ENDLESS, calibrated.DEQUANTIZE_LONG),
    Cell("OPTIMIZER_TINY_NS", (OPTIMIZER,), 0.0, SHORTEST_ROOF_NS, calibrated.OPTIMIZER_TINY_NS),
    Cell("OPTIMIZER_LONG", (OPTIMIZER,), SHORTEST_ROOF_NS, _ENDLESS, calibrated.OPTIMIZER_LONG),
    Cell("COPY_LONG", (COPY,), SHORTEST_ROOF_NS, _ENDLESS, calibrated.COPY_LONG),
)
"""Every kind and size found in recordings; other kernels have no known reach."""


_SIZES = (SHORTEST_ROOF_NS, LONG_ROOF_NS, LARGE_ROOF_NS)


def _table(pick: Callable[[Number], tuple[float, float]]) -> F64:
    """[kinds, sizes] of one number per cell; NaN without a cell. `pick`: returns the number for tiny cells and for
    others."""
    found = np.full((len(KIND_NAMES), len(_SIZES) + 1), np.nan)
    for cell in CELLS:
        for at, low in enumerate((0.0, *_SIZES)):
            if cell.from_ns <= low < cell.to_ns:
                found[list(cell.kinds), at] = pick(cell.number)[0 if at == 0 else 1]
    return found


_VALUE = _table(lambda number: (number.value, number.value))
_BOUND = _table(lambda number: (number.high, number.low))


@dataclass(frozen=True, slots=True)
class KernelReach:
    """The reach of each GPU event of the trace."""

    reach_ns: F64
    """Time that it should take; NaN if its work, or the rate of its kind, is unknown."""
    slow: Mask
    """Whether nine in ten kernels of its kind and size would be faster."""
    kind: I64
    """GEMM, ATTENTION, …"""


def kinds_of(timeline: Timeline) -> I64:
    """Kind of op of each GPU event."""
    gpu = timeline.trace.gpu
    kind = np.where(gpu.kind == KERNEL, _CATEGORY_KINDS[timeline.category], OTHER)
    return np.where(gpu.kind == MEMCPY, COPY, kind)


def roof_times(roof: Roofline) -> F64:
    """Time at the roof of each GPU event, ns; NaN if its work is unknown."""
    compute, memory = roof_ns(roof.work, roof.ceilings)
    return np.where(roof.work.model, np.maximum(compute, memory), np.nan)


def kernel_reach(timeline: Timeline, roof: Roofline) -> KernelReach:
    """What every kernel should take."""
    gpu = timeline.trace.gpu
    took = (gpu.end_ns - gpu.start_ns).clip(0).astype(np.float64)
    kind, roofs = kinds_of(timeline), roof_times(roof)
    size = np.digitize(np.nan_to_num(roofs), _SIZES)
    tiny = size == 0
    value, bound = _VALUE[kind, size], _BOUND[kind, size]
    with np.errstate(invalid="ignore", divide="ignore"):
        reach = np.where(tiny, value, roofs / value)
        most = np.where(tiny, bound, roofs / bound)
    reach[~np.isfinite(roofs)] = np.nan
    slow = np.isfinite(reach) & (took > most)
    return KernelReach(np.where(np.isfinite(reach), np.minimum(reach, took), np.nan), slow, kind)
