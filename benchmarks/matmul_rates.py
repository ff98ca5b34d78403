"""Time of bf16 matrix multiplications by their FLOPs and bytes: the numbers of `gpuprof.costs.matmul_rates`.

    python -m benchmarks.matmul_rates

Every distinct shape of the recordings whose role is `fit` is one row, with the median time of its kernels; what the
op launches around the kernel that multiplies (sums of partial results) counts with it. A recording counts once, and
within it a shape by its time. The constants are those with the least mean squared error of the logarithm, found on a
grid; the scatter is what remains, by the constant's share (filling and emptying the GPU) of a matrix multiplication.
Last: the error of the summed time of each recording, and the same with constants fitted without that recording.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from benchmarks import fit_or_test
from benchmarks.calibrate import timeline_of
from benchmarks.refit import fit_cases
from gpuprof.costs.dtypes import CODE
from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.costs.roofline import roofline
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import F64

FEWEST = 5
"""Fewest shapes of a recording that is used."""
ADDED_NS = np.arange(3_000.0, 5_001.0, 200.0)
TENSOR, MEMORY = np.arange(0.9, 1.16, 0.02), np.arange(0.7, 1.01, 0.02)
SMALL = 0.5
"""A matrix multiplication is small if the constant is at least this share of its time."""


@dataclass(frozen=True, slots=True)
class Shapes:
    """The distinct matrix multiplications of a recording, one row each."""

    name: str
    compute_ns: F64
    """FLOPs at the ceiling; likewise `memory_ns`."""
    memory_ns: F64
    took_ns: F64
    count: F64

    @property
    def weight(self) -> F64:
        whole = self.took_ns * self.count
        return whole / whole.sum()


Constants = tuple[float, float, float]
"""Added ns, and the shares of the tensor and of the memory ceiling."""


def of_recording(name: str, timeline: Timeline) -> Shapes | None:
    """Its matrix multiplications in bf16; None where there are few."""
    roof = roofline(timeline)
    if roof is None or "bf16" not in roof.ceilings.flops:
        return None
    trace, work = timeline.trace, roof.work
    ops, gpu = trace.ops, trace.gpu
    multiplies = trace.rows_named(ops.name, is_matmul)
    rows = timeline.members[timeline.category[timeline.members] == CATEGORIES.index("gemm")]
    op = timeline.links.op[rows]
    rows, op = rows[op >= 0], op[op >= 0]
    rows, op = rows[multiplies[op]], op[multiplies[op]]
    each: dict[tuple[int, int, int], list[tuple[float, float, float]]] = defaultdict(list)
    for one in np.unique(op).tolist():
        mine = rows[op == one]
        flops = float(np.nansum(work.flops[mine]))
        main = mine[np.nan_to_num(work.flops[mine]).argmax()]
        if flops > 0 and work.dtype[main] == CODE["bf16"]:
            took = float((gpu.end_ns - gpu.start_ns)[mine].clip(0).sum())
            key = int(ops.name[one]), int(ops.dims[one]), int(ops.strides[one])
            each[key].append((flops, float(np.nansum(work.bytes[mine])), took))
    if len(each) < FEWEST:
        return None
    table = np.array([(*np.median(found, axis=0), len(found)) for found in each.values()])
    ceilings = roof.ceilings
    return Shapes(
        name, table[:, 0] / ceilings.flops["bf16"] * 1e9, table[:, 1] / ceilings.memory_bytes_per_s * 1e9,
        table[:, 2], table[:, 3],
    )  # fmt: skip


def computed_ns(one: Shapes, constants: Constants) -> F64:
    """Computed time of each shape with these constants, ns."""
    added, tensor, memory = constants
    return added + np.hypot(one.compute_ns / tensor, one.memory_ns / memory)


def error(one: Shapes, constants: Constants) -> float:
    """Mean squared error of the logarithm, by time."""
    return float((one.weight * np.log(one.took_ns / computed_ns(one, constants)) ** 2).sum())


def errors(found: list[Shapes]) -> tuple[list[Constants], F64]:
    """Every point of the grid, and per point and recording the error."""
    grid = [(float(a), float(b), float(c)) for a, b, c in itertools.product(ADDED_NS, TENSOR, MEMORY)]
    return grid, np.array([[error(one, constants) for one in found] for constants in grid])


def quantiles(values: F64, weights: F64, at: tuple[float, ...] = (0.1, 0.5, 0.9)) -> tuple[float, ...]:
    """Weighted quantiles."""
    order = np.argsort(values)
    along = np.cumsum(weights[order]) / weights.sum()
    return tuple(float(np.interp(one, along, values[order])) for one in at)


def table(found: list[Shapes]) -> Iterator[str]:
    grid, each = errors(found)
    best = grid[int(each.mean(axis=1).argmin())]
    yield f"{sum(len(one.took_ns) for one in found)} shapes of {len(found)} recordings"
    yield f"added {best[0]:.0f} ns, tensor {best[1]:.2f}, memory {best[2]:.2f}"
    left = np.concatenate([one.took_ns / computed_ns(one, best) for one in found])
    weight = np.concatenate([one.weight for one in found])
    share = np.concatenate([best[0] / computed_ns(one, best) for one in found])
    for name, mine in (("small", share >= SMALL), ("large", share < SMALL)):
        low, middle, high = quantiles(left[mine], weight[mine])
        yield f"{name}: {middle:.2f} ({low:.2f} to {high:.2f}) times that; {mine.sum()} shapes"
    whole = np.array([_whole(one, best) for one in found])
    without = [grid[int(np.delete(each, i, axis=1).mean(axis=1).argmin())] for i in range(len(found))]
    others = np.array([_whole(one, constants) for one, constants in zip(found, without, strict=True)])
    for name, values in (("all", whole), ("without it", others)):
        low, middle, high = np.quantile(values, (0.1, 0.5, 0.9))
        yield f"a recording's time over the computed, fitted to {name}: {middle:.2f} ({low:.2f} to {high:.2f})"


def _whole(one: Shapes, constants: Constants) -> float:
    return float((one.took_ns * one.count).sum() / (computed_ns(one, constants) * one.count).sum())


def main() -> None:
    with fit_or_test.only_fit():
        timelines = ((name, timeline_of(case.path)) for name, case in fit_cases().items())
        found = [shapes for name, one in timelines if one is not None and (shapes := of_recording(name, one))]
    print("\n".join(table(found)))


if __name__ == "__main__":
    main()
