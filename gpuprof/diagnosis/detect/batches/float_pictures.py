"""Pictures that a loader's workers make floats: four times the bytes in each copy on their way to the GPU."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import loader as calibrated
from gpuprof.diagnosis.detect.batches.loader_workers import workers_of
from gpuprof.diagnosis.detect.passes import shapes_in, types_in
from gpuprof.replay.loader_queue import Loader
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Bytes, Elements, Published, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

Shape = tuple[int, ...]
COLOURS: Published[Elements] = 3
"""Channels of a picture from a file. Latents have 4 or more, spectrograms 1: both are floats from the start."""
LEAST_SIDE: Assumed[Elements] = 32
"""Shortest side of a picture."""
LEAST_PICTURE_BYTES: Assumed[Bytes] = 1 << 20
"""Fewest bytes of a batch of pictures."""
MOST_SAVED: Assumed[Share] = 0.5
"""Largest share of the workers' time for a batch that the casts can be: pictures are read and decoded as well."""


@dataclass(frozen=True, slots=True)
class FloatPictures:
    """Copies of pictures in fp32 to the GPU."""

    nodes: I64
    """Their nodes of the graph."""
    bytes: float
    """Bytes in the window."""
    shape: Shape
    """That of the largest."""


def find_float_pictures(case: Analysis, others: Collection[int]) -> FloatPictures | None:
    """Copies to the GPU of fp32 tensors with the shape of pictures or videos, where workers prepare the batches; None
    without any. others: nodes of copies next to which the training's own process casts."""
    if workers_of(case) == 0:
        return None
    trace, graph = case.trace, case.graph
    up = case.nodes_of_gpu(trace.rows_named(trace.gpu.name, lambda text: "HtoD" in text)) & graph.on_gpu
    sizes = np.append(trace.gpu.bytes, 0)[graph.gpu_row]
    rows = np.flatnonzero(up & (sizes >= LEAST_PICTURE_BYTES) & (graph.scope >= 0))
    nodes, largest = list[int](), Shape()
    for node in rows.tolist():
        op = int(graph.scope[node])
        shapes = shapes_in(case, int(trace.ops.dims[op]))
        shape = shapes[0] if shapes else None
        if node in others or not shape or types_in(case, op)[:2] != ("float", "float") or not is_of_pictures(shape):
            continue
        nodes.append(node)
        largest = max(largest, shape, key=math.prod)
    if not nodes:
        return None
    return FloatPictures(np.array(nodes, np.int64), float(sizes[nodes].sum()), largest)


def is_of_pictures(shape: Shape) -> bool:
    """Whether a tensor holds pictures of three colours, or videos of them, by channel or with the channel last."""
    if len(shape) not in (4, 5):
        return False
    first = shape[1:-2].count(COLOURS) > 0 and min(shape[-2:]) >= LEAST_SIDE
    last = shape[-1] == COLOURS and min(shape[-3:-1]) >= LEAST_SIDE
    return first or last


def without_casts(loader: Loader, values: float, level: int) -> Loader:
    """The loader whose workers leave pictures bytes. values: of a batch's pictures; level: 0 at best, 2 at worst."""
    saved = min(values * calibrated.FLOAT_PICTURES_NS.falling[level], MOST_SAVED * loader.batch_ns)
    return replace(loader, batch_ns=loader.batch_ns - saved)
