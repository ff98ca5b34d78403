"""Tensors are copied between CPU and GPU in a wider type than they have before the copy, or get after it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from gpuprof.calibration import kernels as kernels_calibrated
from gpuprof.calibration import latency as latency_calibrated
from gpuprof.calibration import loader as loader_calibrated
from gpuprof.calibration import offload as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.costs.dtypes import element_bytes
from gpuprof.diagnosis.detect.batches.float_pictures import find_float_pictures, without_casts
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.offloaded import find_offload
from gpuprof.diagnosis.detect.cpu.own_lines import batch_lines
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.passes import like_before, shapes_in, types_in
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph, launcher_of
from gpuprof.replay.transform import removed
from gpuprof.tracefile.distinct import rows_by_value
from gpuprof.tracefile.trace import F64, I64, OP
from gpuprof.units import Assumed, Bytes, Ops, Published, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_COPIED_BYTES: Assumed[Bytes] = 1 << 20
"""Fewest bytes that a step copies for a proposal; with less, a copy takes as long as its launch."""
LEAST_COPY_BYTES: Assumed[Bytes] = 1 << 18
"""Fewest bytes of a single copy to be considered."""
SHORT = {"double": "fp64", "float": "fp32", "c10::BFloat16": "bf16", "c10::Half": "fp16", "unsigned char": "uint8",
         "signed char": "int8", "bool": "bool"}  # fmt: skip
COPY = "aten::copy_"
RANDOM = re.compile(r"rand|normal_|uniform_|bernoulli|dropout|multinomial")
"""Ops whose results another device would not repeat: its random numbers are others."""
LEAST_NS_A_BYTE: Assumed[Ratio] = 0.005
"""An op that takes less for each byte of its tensor does not go over it: a view, or a cast with nothing to do. It would
be 200 GB/s, of which one op of a CPU is far away."""
SIDE_VALUES_SHARE: Assumed[Share] = 0.01
"""Largest share of the copied values that tensors next to the chain have: means, scales, and what is made of them."""
PICTURE_PASSES: Published[Ratio] = 3.25
"""Passes over the floats of a picture on the GPU: a quarter to read bytes, one to write floats, two to normalise."""
MOST_OPS: Assumed[Ops] = 64
"""Most ops before a copy that are looked at for its chain."""

PAGE = Page(
    id="wide_copies",
    title="Tensors are copied between CPU and GPU in a wider type than they need",
    means="""
`x.float().cpu()` and `x.float().cuda()` copy twice the bytes that bf16 values have, and four times those of images in 8
bits; `x.cuda().bfloat16()` copies digits that are discarded on arrival. The link and host memory are many times slower
than the GPU's memory, so the cast belongs on the side where the tensor is wide only after the copy. One call that
casts and copies, `x.to("cuda", torch.float32)`, casts on the CPU first, unless it is `non_blocking` from pinned memory.

Pictures are bytes until a dataset divides and normalises them. From then on each of them is four times as large: for
the worker that collates a batch, in shared memory, in pinned memory and on the link. The GPU divides and normalises a
whole batch in microseconds.
""",
    detected="""
Copies between CPU and GPU of at least 1 MiB a step, by recorded shapes and types: the op before casts the same shape to
the wider type that is copied, or the next cast of that shape in the step makes it narrower. Before a copy to the GPU
also what the CPU computes between the cast and the copy, whatever it is (`.float() / 255`, a mean, a permutation that
is copied, an implicit cast), as long as it keeps the number of values and draws no random numbers. Pictures: copies to
the GPU of fp32 tensors of at least 1 MiB with three channels and sides of at least 32 (pictures or videos), in a
training whose batches workers prepare, without a cast in the training process.
""",
    gain=f"""
The copy takes the share of its time that the narrow type's bytes are of the wide one's. A cast on the GPU is removed;
one on the CPU is removed or added, at {calibrated.CAST_RATE.value / 1e9:g} GB of the wide type a second and core
({calibrated.CAST_RATE.low / 1e9:g} to {calibrated.CAST_RATE.high / 1e9:g}, assumed), up to
{calibrated.CAST_CORES.value:g} cores. What is computed on the CPU between the cast and a copy to the GPU is removed
from the CPU as well: the GPU reads and writes those bytes at {percent(kernels_calibrated.FUSED_MEMORY.value)} % of its
memory ceiling, and the CPU launches a kernel for each op. Otherwise listed under *Worth trying* for that reason
(probability {calibrated.CAST_ODDS.value:g}, assumed). Pictures as bytes: a quarter of the copy, one pass on the GPU
that writes floats and one that normalises them, and {loader_calibrated.FLOAT_PICTURES_NS.value:g} ns
({loader_calibrated.FLOAT_PICTURES_NS.low:g} to {loader_calibrated.FLOAT_PICTURES_NS.high:g}, assumed) less of a
worker's time for each value, where the training waits for its workers. The probability is
{percent(loader_calibrated.FLOAT_PICTURES_ODDS.value)} % (assumed).
""",
    wrong="""
A cast on the CPU in the training process can take longer than the copy saves: let the workers of the DataLoader do it.
If both sides use the wide tensor, it has to be cast on both. Pictures with more than 8 bits, and maps of depths or
normals, are floats from the start.
""",
)


@dataclass(frozen=True, slots=True)
class WideCopy:
    """A copy between CPU and GPU, and the cast next to it."""

    node: int
    """Its node of the graph."""
    op: int
    cast: int
    """op, cast: rows of the ops."""
    wide: str
    narrow: str
    way: Literal["down", "up"]
    """down: to the CPU."""
    is_after: bool
    """Whether the cast comes after the copy."""
    bytes: float
    chain: tuple[int, ...] = ()
    """Rows of the ops on the CPU from the cast to the copy, where they do more than cast."""


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to cast on the other side of the copy, and to leave pictures bytes until they are on the GPU."""
    found = wide_copies(case)
    yield from _pictures(case, {one.node for one in found if not one.is_after})  # autocast casts after the copy
    yield from _casts(case, found)


def _pictures(case: Analysis, others: set[int]) -> Iterator[Proposal]:
    """Proposes bytes from the loader's workers, where pictures come as fp32."""
    found = find_float_pictures(case, others)
    if found is None or case.workload.is_inference:
        return
    graph, feed = case.graph, case.feed
    nodes = np.zeros(len(graph), bool)
    nodes[found.nodes] = True
    size = " × ".join(f"{side:,}" for side in found.shape)
    values = case.per_step(found.bytes / 4)
    text = (
        f"the loader's workers make pictures floats ({size}): {values * 4 / 1e6:,.1f} MB {case.unit.a} go through their"
        f" shared memory and to the GPU, four times those of bytes"
    )
    ceiling = case.roofline.ceilings.memory_bytes_per_s if case.roofline is not None else np.inf
    launches = np.flatnonzero(np.isin(np.arange(len(graph)), launcher_of(graph)[found.nodes]))

    def change(level: int) -> Change:
        moved = found.bytes / len(found.nodes) * PICTURE_PASSES
        kernel_ns = moved / (ceiling * kernels_calibrated.FUSED_MEMORY.falling[level]) * 1e9

        def narrower(graph: Graph) -> Graph:
            duration_ns = graph.duration_ns.copy()
            duration_ns[found.nodes] = duration_ns[found.nodes] / 4 + kernel_ns
            duration_ns[launches] += 2 * latency_calibrated.HOST_LAUNCH_NS.value
            return graph.with_durations(duration_ns)

        return narrower

    first, *places = spans(case, text, nodes)
    loaders = [without_casts(feed.loader, values / feed.batches, level) for level in range(3)] if feed else []
    yield Proposal(
        title="pictures sent as bytes",
        evidence=(replace(first, lines=batch_lines(case.folder) or first.lines), *places),
        fix=code("image = torch.from_numpy(np.asarray(image))")
        + "  # in the dataset: uint8, in place of a division and a normalisation\n"
        + code('x = x.to("cuda", non_blocking=True).float().div_(255).sub_(mean).div_(std)')
        + "  # in the step",
        change=change(1),
        best=change(0),
        worst=change(2),
        loader=loaders[1] if loaders else None,
        loader_ends=(loaders[0], loaders[2]) if loaders else (),
        odds=loader_calibrated.FLOAT_PICTURES_ODDS.value,
        needs="the pictures are bytes before they become floats, and what works on floats moves to the GPU",
        key="pictures",
    )


def _casts(case: Analysis, found: list[WideCopy]) -> Iterator[Proposal]:
    """Proposes to cast on the other side of the copy."""
    moved = case.per_step(sum(one.bytes for one in found))
    if moved < LEAST_COPIED_BYTES:
        return
    graph = case.graph
    nodes = np.zeros(len(graph), bool)
    nodes[[one.node for one in found]] = True
    most = max(found, key=lambda one: one.bytes)
    wide, narrow = SHORT[most.wide], SHORT[most.narrow]
    text = (
        f"{moved / 1e6:,.1f} MB {case.unit.a} are copied between CPU and GPU as {wide}, "
        f"{'and then cast to' if most.is_after else 'cast before from'} {narrow}:"
        f" {duration(case.per_step(float(graph.duration_ns[nodes].sum())))}"
    )
    chains = case.nodes_within(case.ops_at(row for one in found for row in one.chain))
    if chains.any():
        took = case.per_step(float(graph.duration_ns[chains].sum()))
        text += f"; the casts on the CPU, and what is computed there after them, take {duration(took)}"
    other = "cpu" if most.way == "down" else "cuda"
    dtype = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}.get(narrow, f"torch.{narrow}")
    before = code(f'x.to({dtype}).to("{other}")') + "  # in the DataLoader's workers if it can be"
    after = (
        code(f'x.to("{other}").to(torch.{"float64" if wide == "fp64" else "float32"})')
        + "  # copied as it is"
        + (", and what is computed from it on the GPU" if most.chain else "")
    )
    sure = all(one.chain for one in found)
    offload, (best, usual, worst) = find_offload(case), _narrow(case, found)
    yield Proposal(
        title=f"copied in {narrow}",
        evidence=spans(case, text, nodes),
        fix=before if most.is_after else after,
        change=usual,
        best=best,
        worst=worst,
        odds=1.0 if sure else calibrated.CAST_ODDS.value,
        needs="" if sure else "the CPU casts faster than the wider copy takes",
        claims=("offloaded_copies",) if offload is not None and offload.kind in ("optimizer", "ops") else (),
    )


def wide_copies(case: Analysis) -> list[WideCopy]:
    """Copies between CPU and GPU next to a cast to or from the type in which they are made."""
    trace, graph, ops = case.trace, case.graph, case.trace.ops
    sizes = np.append(trace.gpu.bytes, 0)[graph.gpu_row]
    down, up = (
        case.nodes_of_gpu(trace.rows_named(trace.gpu.name, lambda text, part=part: part in text)) & graph.on_gpu
        for part in ("DtoH", "HtoD")
    )
    rows = np.flatnonzero((down | up) & (sizes >= LEAST_COPY_BYTES) & (graph.scope >= 0))
    casts = np.flatnonzero(case.ops_named(COPY.__eq__))
    casts = casts[np.argsort(ops.start_ns[casts], kind="stable")]
    pairs = {row: _types(case, row) for row in casts.tolist()}
    found = []
    for node in rows.tolist():
        op = int(graph.scope[node])
        wide = pairs.get(op, ("", ""))[1]
        if wide not in ("float", "double"):
            continue
        way: Literal["down", "up"] = "down" if down[node] else "up"
        chain = _chain(case, op, wide) if way == "up" else ()
        if chain:
            (narrow,) = _read(case, chain[-1], _values(case, op))
            found.append(WideCopy(node, op, chain[-1], wide, narrow, way, False, float(sizes[node]), chain))
            continue
        before, after = _before(case, op), _after(case, op, casts) if way == "up" else None
        for cast, at in ((before, 1), (after, 0)):
            types = pairs.get(-1 if cast is None else cast, ("", ""))
            narrow = types[at]
            if cast is None or types[1 - at] != wide or narrow not in SHORT or _share_left(narrow, wide) >= 1:
                continue
            found.append(WideCopy(node, op, cast, wide, narrow, way, cast == after, float(sizes[node])))
            break
    return found


def _before(case: Analysis, op: int) -> int | None:
    """The op that begins last before a copy and the ops around it, if it has the copy's shape."""
    return like_before(case, op, int(case.trace.ops.start_ns[_outer(case, op)]))


def _outer(case: Analysis, op: int) -> int:
    """The outermost `.to()` around a copy."""
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    while parent[op] >= 0 and case.trace.text(int(ops.name[parent[op]])) in ("aten::to", "aten::_to_copy"):
        op = int(parent[op])
    return op


def _chain(case: Analysis, op: int, wide: str) -> tuple[int, ...]:
    """Ops of the CPU that make a tensor wide, and compute with it, right before it is copied to the GPU, the last one
    first; empty where others come between, they launch work, or the tensor was wide from the start.

    Whatever they are: each has the number of values that is copied, so the GPU can do the same with the narrow tensor.
    """
    ops, parent = case.trace.ops, case.timeline.nesting.parent
    outer, values = _outer(case, op), _values(case, op)
    siblings = (ops.kind == OP) & (ops.thread == ops.thread[op]) & (parent == parent[outer])
    rows = np.flatnonzero(siblings & (ops.end_ns <= ops.start_ns[outer]))
    least_ns = LEAST_NS_A_BYTE * values * (element_bytes(wide) or 0)
    found = list[int]()
    for row in rows[np.argsort(-ops.start_ns[rows], kind="stable")][:MOST_OPS].tolist():
        if _values(case, row) <= SIDE_VALUES_SHARE * values or ops.end_ns[row] - ops.start_ns[row] < least_ns:
            continue  # it computes nothing large
        read = _read(case, row, values)
        if len(read) != 1 or _values(case, row) != values or RANDOM.search(_name(case, row)):
            return ()
        found.append(row)
        (type,) = read
        if type in SHORT and _share_left(type, wide) < 1:
            on_gpu = case.nodes_within(case.ops_at(found)) & case.graph.on_gpu
            return () if on_gpu.any() else tuple(found)
        if type != wide:
            return ()
    return ()


def _name(case: Analysis, row: int) -> str:
    return case.trace.text(int(case.trace.ops.name[row])) or ""


def _read(case: Analysis, row: int, values: int) -> set[str]:
    """Types of the tensors with this number of values that an op reads."""
    each = zip(shapes_in(case, int(case.trace.ops.dims[row])), types_in(case, row), strict=False)
    read = [type for shape, type in each if shape and math.prod(shape) == values]
    return set(read[1:] if _name(case, row) == COPY else read)  # what is written comes first


def _values(case: Analysis, row: int) -> int:
    """Number of values of the largest tensor that an op is given; 0 of none."""
    shapes = shapes_in(case, int(case.trace.ops.dims[row]))
    return max((math.prod(shape) for shape in shapes if shape), default=0)


def _after(case: Analysis, op: int, casts: I64) -> int | None:
    """The first copy within a tensor of the same shape after one to the GPU, in the same step."""
    ops, steps = case.trace.ops, case.timeline.steps
    end = steps.end_ns[max(int(np.searchsorted(steps.start_ns, ops.start_ns[op], side="right")) - 1, 0)]
    first, last = np.searchsorted(ops.start_ns[casts], (ops.end_ns[op], end))
    shape = _shape(case, op)
    return next((row for row in casts[first:last].tolist() if _shape(case, row) == shape), None)


def _shape(case: Analysis, row: int) -> tuple[int, ...] | None:
    shapes = shapes_in(case, int(case.trace.ops.dims[row]))
    return shapes[0] if shapes else None


def _types(case: Analysis, row: int) -> tuple[str, str]:
    """(type that a copy writes, type that it reads); empty where they were not recorded."""
    return (types[0], types[1]) if len(types := types_in(case, row)) > 1 else ("", "")


def _share_left(narrow: str, wide: str) -> float:
    """Bytes of the narrower type / of the wider one."""
    return (element_bytes(narrow) or 0) / (element_bytes(wide) or 1)


def _narrow(case: Analysis, found: Sequence[WideCopy]) -> list[Change]:
    """The graph with narrow copies, and casts on the other side: at best, as expected, at worst."""
    copies = np.array([one.node for one in found])
    left = np.array([_share_left(one.narrow, one.wide) for one in found])
    casts = case.ops_at(row for one in found for row in (one.cast, *one.chain))
    gone = case.nodes_within(casts) & ~case.graph.waits
    at, cast_bytes = _casts_on_cpu(case, found)
    cores = min(case.folder.cpus or 1.0, calibrated.CAST_CORES.value) if case.folder else 1.0

    moved = np.array([_moved_on_gpu(one) for one in found])
    launches, launch_ns = _launches(case, found), latency_calibrated.HOST_LAUNCH_NS.value
    ceiling = case.roofline.ceilings.memory_bytes_per_s if case.roofline is not None else np.inf

    def change_at(level: int) -> Change:
        rate = calibrated.CAST_RATE.falling[level]
        kernels_ns = moved / (ceiling * kernels_calibrated.FUSED_MEMORY.falling[level]) * 1e9

        def change(graph: Graph) -> Graph:
            less = removed(graph, gone)
            duration = less.duration_ns.copy()
            duration[copies] = duration[copies] * left + kernels_ns
            duration[launches] += launch_ns
            np.add.at(duration, at, cast_bytes / (rate * max(cores, 1.0)) * 1e9)
            return less.with_durations(duration)

        return change

    return [change_at(level) for level in range(3)]


def _moved_on_gpu(one: WideCopy) -> float:
    """Bytes that the ops of a chain read and write on the GPU: the narrow tensor once, else the wide one."""
    return one.bytes * (2 * len(one.chain) - 1 + _share_left(one.narrow, one.wide)) if one.chain else 0.0


def _launches(case: Analysis, found: Sequence[WideCopy]) -> I64:
    """One CPU node for each op of the chains, in which the CPU launches a kernel instead."""
    rows = [row for one in found for row in one.chain]
    nodes = [np.flatnonzero(case.nodes_within(case.ops_at([row])) & ~case.graph.waits)[:1] for row in rows]
    return np.concatenate([np.empty(0, np.int64), *nodes])


def _casts_on_cpu(case: Analysis, found: Sequence[WideCopy]) -> tuple[I64, F64]:
    """(CPU nodes, bytes that each casts in addition): before a copy to the GPU, and after one from it."""
    graph = case.graph
    inside_ops = np.flatnonzero((graph.lane >= 0) & np.isin(graph.scope, [one.op for one in found]))
    of_op = rows_by_value(graph.scope[inside_ops])
    threads = np.unique(graph.lane[inside_ops]).tolist()
    lanes = {thread: np.flatnonzero((graph.lane == thread) & ~graph.waits) for thread in threads}
    at, cast = list[int](), list[float]()
    for one in found:
        if one.op not in of_op or (one.way == "up" and not one.is_after):
            continue
        inside = inside_ops[of_op[one.op]]
        lane = lanes[int(graph.lane[inside[0]])]
        place = np.searchsorted(lane, inside[0]) if one.way == "up" else np.searchsorted(lane, inside[-1], side="right")
        if place < len(lane):
            at.append(int(lane[place]))
            cast.append(one.bytes)
    return np.array(at, np.int64), np.array(cast, np.float64)


FINDING = Declaration(
    page=PAGE,
    find=find,
    lowers=("batches",),
    synonyms=("cast_before_copy", "copy_in_bf16", "uint8", "to_tensor", "normalize"),
    titles=(
        "pictures_sent_as_bytes",
        "copied_in",
        "copied_in_bf16",
        "copied_in_fp16",
        "copied_in_uint8",
        "copied_in_fp32",
    ),
)
