"""Tables that the CPU computes again and again in a pass, and copies to the GPU each time: filters, windows, masks."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.cpu.offloaded import find_offload
from gpuprof.diagnosis.detect.loops.recurrent_loops import fed_nodes
from gpuprof.diagnosis.detect.repeated.rebuilt_constants import MAKE
from gpuprof.replay.cpu_compute import without_launches
from gpuprof.replay.graph import Graph, launcher_of
from gpuprof.timeline.phases import BACKWARD, FORWARD
from gpuprof.tracefile.trace import I64, Mask
from gpuprof.units import Assumed, Bytes, Entries, WholeNs

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FEWEST_COPIED: Assumed[Entries] = 2
"""Fewest times that the CPU computes a table of one size between two backward passes."""
LEAST_COMPUTED_NS: Assumed[WholeNs] = 200_000
"""Least CPU time since the last launch, ns, that shows that Python computes what is copied: handing over a batch takes
10 to 100 µs."""
LEAST_TABLE_BYTES: Assumed[Bytes] = 1_024
"""Smaller copies are scalars and indices."""
Turn = tuple[int, int, int]
"""Step, backward passes and reads so far, and bytes of a copy."""
DRAW = frozenset(
    f"aten::{name}" for name in ("rand", "randn", "randint", "randperm", "normal_", "uniform_", "bernoulli_", "random_")
)
"""Ops that return other values each time."""


@dataclass(frozen=True, slots=True)
class CopiedTables:
    """Tables that the CPU computes more than once."""

    nodes: Mask
    """All of the CPU's work for them, the copies included."""
    times: int
    """Number of copies in the window."""
    sizes: tuple[int, ...]
    """Bytes of each table, largest first."""


def find_copied_tables(case: Analysis) -> CopiedTables | None:
    """Stretches of CPU work in the forward pass that end in a copy from pageable memory to the GPU, where a copy of the
    same size comes at least twice before the next backward pass, with kernels in between, and nothing is read from the
    GPU in between; None if there are none. Computed once per case."""
    if "copied_tables" not in case.memo:
        case.memo["copied_tables"] = _find(case)
    return case.memo["copied_tables"]


def _find(case: Analysis) -> CopiedTables | None:
    if find_offload(case) is not None:
        return None  # weights that come from the CPU in each layer
    graph, gpu, trace = case.graph, case.trace.gpu, case.trace
    launcher = launcher_of(graph)
    size, kernel = np.zeros(len(graph), np.int64), np.zeros(len(graph), bool)
    pieces = np.flatnonzero(graph.on_gpu & (launcher >= 0) & (graph.gpu_row >= 0))
    rows = graph.gpu_row[pieces]
    up, down = (trace.rows_named(gpu.name, lambda text, way=way: way in text) for way in ("HtoD (Pageable", "DtoH"))
    size[launcher[pieces[up[rows]]]] = gpu.bytes[rows[up[rows]]]
    reads = np.zeros(len(graph), bool)
    reads[launcher[pieces[down[rows]]]] = True
    kernel[launcher[pieces[~up[rows] & ~down[rows]]]] = True
    main = np.flatnonzero((graph.lane == case.timeline.main_thread) | ((graph.phase == BACKWARD) & (graph.lane >= 0)))
    main = main[np.argsort(graph.recorded_start_ns[main], kind="stable")]
    fed = fed_nodes(case)
    ends = (size >= LEAST_TABLE_BYTES) & (graph.phase == FORWARD) & ~fed
    if np.count_nonzero(ends[main]) < FEWEST_COPIED:
        return None
    made, drawn = _ops(case, MAKE), _ops(case, DRAW)
    is_backward, is_read, is_end = graph.phase == BACKWARD, reads, (size > 0) | kernel | reads | graph.waits
    own = without_launches(graph)
    found: dict[Turn, list[I64]] = defaultdict(list)
    last: dict[Turn, int] = {}
    stretch, kernels, turn = list[int](), 0, 0
    facts = (column[main].tolist() for column in (is_backward, is_read, is_end))
    for node, backward, read, end in zip(main.tolist(), *facts, strict=True):
        if backward:
            turn += bool(stretch)
            stretch = []
            continue
        turn += read
        stretch.append(node)
        if not end:
            continue
        mine = np.array(stretch, np.int64)
        stretch = []
        kernels += bool(kernel[node])
        if not ends[node]:
            continue
        ns = float(graph.duration_ns[mine[own[mine]]].sum())
        if drawn[mine].any() or not (ns >= LEAST_COMPUTED_NS or made[mine].any()):
            continue
        key = (int(graph.step[node]), turn, int(size[node]))
        if last.get(key, -1) != kernels:
            found[key].append(mine)
        last[key] = kernels
    return _tables(graph, case.steps, found)


def _tables(graph: Graph, steps: int, found: dict[Turn, list[I64]]) -> CopiedTables | None:
    """The tables that are copied again in each step."""
    again = {key: mine for key, mine in found.items() if len(mine) >= FEWEST_COPIED}
    if not again or {step for step, _, _ in again} != {*range(steps)}:
        return None
    nodes = np.zeros(len(graph), bool)
    for mine in again.values():
        nodes[np.concatenate(mine)] = True
    sizes = sorted({size for _, _, size in again}, reverse=True)
    return CopiedTables(nodes & (graph.phase == FORWARD), sum(map(len, again.values())), tuple(sizes))


def _ops(case: Analysis, names: frozenset[str]) -> Mask:
    """Nodes in ops of these names, or in ops that they call."""
    return np.append(case.ops_within(case.ops_named(names.__contains__)), False)[case.graph.scope]
