"""FLOPs and bytes of every GPU event of a trace."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.costs.arguments import Arguments, parse
from gpuprof.costs.cost import Cost, Kernel, Machine
from gpuprof.costs.dtypes import UNKNOWN
from gpuprof.costs.formulas.attention import attention, is_attention
from gpuprof.costs.formulas.cache import kept_bytes
from gpuprof.costs.formulas.convolution import convolution, is_convolution
from gpuprof.costs.formulas.foreach import chunk_fill, is_over_lists, over_lists
from gpuprof.costs.formulas.from_kernel_name import by_name
from gpuprof.costs.formulas.gemm import gemm, is_matmul, template_gemm
from gpuprof.costs.formulas.memory_ops import every_tensor_once, streaming
from gpuprof.costs.hardware import Gpu
from gpuprof.timeline.categories import CATEGORIES, COMMUNICATION, TENSOR_CATEGORIES
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.distinct import numbered
from gpuprof.tracefile.trace import F64, I64, KERNEL, MEMCPY, MEMSET, NO_TEXT, OP, U8, Mask, Trace
from gpuprof.units import Assumed, Bytes, Launches, Published, Sms

MOST_SMS: Assumed[Sms] = 10_000
"""Most SMs of a GPU; a recording with more is damaged."""
UNKNOWN_L2_BYTES: Published[Bytes] = 40_000_000
UNKNOWN_SMS: Published[Sms] = 108
"""SMs of an A100, a typical training GPU; used if the GPU is not known."""
_MOST_SHARING: Assumed[Launches] = 4
"""An op outside of torch that launches more kernels than this is a whole region, whose arguments are not the
kernels'."""
_DISPATCHED = re.compile(r"\w+::[\w.]+")
_TENSOR_CODES = tuple(CATEGORIES.index(name) for name in TENSOR_CATEGORIES)


@dataclass(frozen=True, slots=True)
class KernelWork:
    """The work of each GPU event of the trace. NaN: unknown."""

    flops: F64
    """FLOPs of matmuls and convolutions, as executed; 0 for other work."""
    bytes: F64
    """Bytes read from and written to memory while it runs, as hardware counters show with a cold cache."""
    traffic_bytes: F64
    """`bytes` plus what it leaves in the L2 for the next kernel to write back; its time depends on this."""
    repeated_flops: F64
    """Part of `flops` that its own algorithm does again (attention's backward)."""
    dtype: U8
    """Code of the arithmetic's number format (`costs.dtypes.DTYPES`), UNKNOWN if there is none."""
    over_link: Mask
    """Copies from, to or between other memories, which are limited by a link, not by the device's memory."""
    model: Mask
    """Whether FLOPs and bytes are known."""
    guessed: Mask
    """Whether they follow from the tensors of a library's autograd function, which may not be the kernel's: its
    intermediate results, and what its forward pass saved, are not among its arguments."""


def machine_of(timeline: Timeline, gpu: Gpu | None) -> Machine:
    """What the formulas need to know about the GPU: from its row in the table, else from the trace's device properties,
    else usual values."""
    multiprocessors = (gpu.multiprocessors if gpu else None) or recorded_sms(timeline)
    return Machine((gpu.l2_bytes if gpu else None) or UNKNOWN_L2_BYTES, multiprocessors)


def recorded_sms(timeline: Timeline) -> int:
    """SMs of the recorded GPU, from the trace's device properties; UNKNOWN_SMS if they lack it."""
    recorded = [info.properties.get("numSms") for info in timeline.trace.meta.gpus]
    return next((n for n in recorded if isinstance(n, int) and 0 < n <= MOST_SMS), UNKNOWN_SMS)


def kernel_work(timeline: Timeline, gpu: Gpu | None = None) -> KernelWork:
    """FLOPs and bytes of every GPU event, from the op that launched it and how it was launched.

    Each distinct combination of op, arguments and launch is computed once. Kernels of one op share the op's cost in
    proportion to their durations. A kernel without a known op is assumed to do the work of the same kernel with the
    same launch elsewhere in the trace, if all of those agree (replayed CUDA graphs after an eager step).
    """
    trace, events = timeline.trace, timeline.trace.gpu
    count = len(events)
    columns = {name: np.full(count, np.nan) for name in ("flops", "read", "write", "kept", "repeated")}
    dtype, guessed = np.full(count, UNKNOWN, np.uint8), np.zeros(count, bool)
    op = _op_with_arguments(timeline)
    kernels = np.flatnonzero((events.kind == KERNEL) & (timeline.category != COMMUNICATION))
    machine = machine_of(timeline, gpu)
    if len(kernels):
        _fill_kernels(timeline, kernels, op[kernels], machine, columns, dtype, guessed)
    over_link = _fill_copies(trace, columns)
    read, write = columns["read"], columns["write"]
    return KernelWork(
        flops=columns["flops"],
        bytes=read + write - columns["kept"],
        traffic_bytes=read + write,
        repeated_flops=columns["repeated"],
        dtype=dtype,
        over_link=over_link,
        model=~np.isnan(read),
        guessed=guessed,
    )


def _op_with_arguments(timeline: Timeline) -> I64:
    """For each GPU event its op, or the nearest op around that one whose arguments were recorded."""
    ops = timeline.trace.ops
    op = timeline.links.op
    if not len(ops):
        return op
    nearest = climb(op, timeline.nesting.parent, (ops.dims != NO_TEXT) & (ops.kind == OP))
    return np.where(nearest >= 0, nearest, op)


def _fill_kernels(
    timeline: Timeline, kernels: I64, op: I64, machine: Machine, columns: dict, dtype: U8, guessed: Mask
) -> None:
    trace, events = timeline.trace, timeline.trace.gpu
    launch = _numbered(*(c[kernels].astype(np.int64) for c in _launch_columns(events)))
    arguments = _numbered(*(np.where(op >= 0, np.append(c, -2)[op], -2).astype(np.int64) for c in _text_columns(trace)))
    crowd = _crowd(op)
    distinct, first, inverse = np.unique(
        _numbered(arguments, launch, crowd > _MOST_SHARING), return_index=True, return_inverse=True
    )
    fill = chunk_fill(_gradient_sizes(trace))
    parsed: dict[int, Arguments | None] = {}
    launched: dict[int, tuple[Kernel, Cost | None]] = {}
    costs = np.full((len(distinct), 5), np.nan)
    codes = np.full(len(distinct), UNKNOWN, np.uint8)
    whole, doubtful = np.zeros(len(distinct), bool), np.zeros(len(distinct), bool)
    for i, at in enumerate(first.tolist()):
        said, shape, row = int(arguments[at]), int(launch[at]), int(kernels[at])
        if said not in parsed:
            parsed[said] = _arguments(trace, int(op[at]))
        if shape not in launched:
            launched[shape] = (kernel := _kernel(trace, row)), by_name(kernel)
        kernel, cost = launched[shape]
        known = parsed[said]
        if cost is None and known is not None:
            category = int(timeline.category[row])
            cost = _cost(known, kernel, machine, category, bool(crowd[at] > _MOST_SHARING), fill)
        if cost is not None:
            kept = cost.kept_bytes
            if kept is None:
                kept = kept_bytes(cost.read_bytes, cost.write_bytes, machine.l2_bytes)
            costs[i] = cost.flops, cost.read_bytes, cost.write_bytes, kept, cost.repeated_flops
            codes[i], whole[i], doubtful[i] = cost.dtype, cost.whole, cost.guessed
    duration = (events.end_ns - events.start_ns)[kernels].clip(0)
    share = _shares(op, whole[inverse] & (op >= 0), duration)
    values = costs[inverse] * share[:, None]
    code, guess = codes[inverse], doubtful[inverse]
    _borrow(values, code, guess, launch, op)
    for name, column in zip(("flops", "read", "write", "kept", "repeated"), values.T, strict=True):
        columns[name][kernels] = column
    dtype[kernels], guessed[kernels] = code, guess


def _launch_columns(events) -> tuple:
    return (events.name, events.grid_x, events.grid_y, events.grid_z, events.block_x, events.block_y, events.block_z)


def _text_columns(trace: Trace) -> tuple:
    ops = trace.ops
    return ops.name, ops.dims, ops.types, ops.strides, ops.concrete


def _numbered(*keys: np.ndarray) -> I64:
    """One number per row that is the same where all keys are the same."""
    number = np.zeros(len(keys[0]), np.int64)
    for key in keys:
        code = numbered(key)
        number = numbered(number * (int(code.max(initial=0)) + 1) + code)
    return number


def _crowd(op: I64) -> I64:
    """For each kernel, the number of these kernels that its op launched; 0 without an op."""
    _, inverse, counts = np.unique(op, return_inverse=True, return_counts=True)
    return np.where(op >= 0, counts[inverse], 0)


def _shares(op: I64, whole: Mask, duration: I64) -> F64:
    """Share of the op's cost per kernel, by duration among the op's kernels; 1 if the cost is the kernel's own."""
    share = np.ones(len(op))
    rows = np.flatnonzero(whole)
    _, inverse, counts = np.unique(op[rows], return_inverse=True, return_counts=True)
    total = np.bincount(inverse, weights=duration[rows])[inverse] if len(rows) else np.empty(0)
    with np.errstate(invalid="ignore", divide="ignore"):
        share[rows] = np.where(total > 0, duration[rows] / total, 1 / counts[inverse])
    return share


def _borrow(values: F64, codes: U8, guessed: Mask, launch: I64, op: I64) -> None:
    """Fills in kernels without an op from equal launches with one, if those all cost the same."""
    lost = np.flatnonzero((op < 0) & np.isnan(values[:, 1]))
    known = np.flatnonzero(~np.isnan(values[:, 1]))
    if not len(lost) or not len(known):
        return
    order = known[np.argsort(launch[known], kind="stable")]
    ids, first = np.unique(launch[order], return_index=True)
    low, high = (f.reduceat(values[order, 1], first) for f in (np.minimum, np.maximum))
    at = np.minimum(np.searchsorted(ids, launch[lost]), len(ids) - 1)
    sure = (ids[at] == launch[lost]) & (low[at] == high[at])
    source = order[first[at[sure]]]
    for column in (values, codes, guessed):
        column[lost[sure]] = column[source]


def _arguments(trace: Trace, op: int) -> Arguments | None:
    """An op's arguments; None if there is no op, or none of them was recorded."""
    if op < 0 or trace.ops.dims[op] == NO_TEXT:
        return None
    name, *texts = (trace.text(int(column[op])) for column in _text_columns(trace))
    return parse(name or "", *texts)


def _kernel(trace: Trace, row: int) -> Kernel:
    name, *launch = (int(column[row]) for column in _launch_columns(trace.gpu))
    x, y, z, *block = (max(n, 1) for n in launch)
    return Kernel(trace.strings[name], (x, y, z), block[0] * block[1] * block[2])


def _cost(
    arguments: Arguments, kernel: Kernel, machine: Machine, category: int, crowded: bool, fill: float
) -> Cost | None:
    """Cost of one kernel under one op; the first formula that knows the op decides."""
    name = arguments.name
    if is_attention(name):
        return attention(arguments, kernel)
    if is_matmul(name):
        return gemm(arguments, kernel, machine)
    if is_convolution(name):
        return convolution(arguments, kernel)
    if is_over_lists(name):
        return over_lists(arguments, kernel, fill)
    # The name of a compiled elementwise kernel may contain that of a matmul whose input it prepares.
    multiplies = category in _TENSOR_CODES and not kernel.named("^triton_(poi|red|per)")
    if multiplies or kernel.named("^triton_(tem|mm)"):
        return template_gemm(arguments, kernel, machine)
    if name.startswith("aten::"):
        return streaming(arguments, kernel, machine)
    if crowded:
        return None
    # A compiled kernel is recorded as an op of its own name (with a number), outputs among the arguments. An op of
    # torch's dispatcher (library::name) gets everything that it reads; an autograd function does not.
    own = name.startswith(kernel.name)
    cost = every_tensor_once(arguments, writes=not own)
    return cost and replace(cost, guessed=not own and not _DISPATCHED.fullmatch(name))


def _gradient_sizes(trace: Trace) -> list[int]:
    """Elements of the parameters that get gradients, one entry per accumulation."""
    ops = trace.ops
    rows = np.flatnonzero(trace.rows_named(ops.name, lambda text: text == "torch::autograd::AccumulateGrad"))
    ids, counts = np.unique(ops.dims[rows], return_counts=True)
    sizes = []
    for text_id, times in zip(ids.tolist(), counts.tolist(), strict=True):
        tensors = parse("", trace.text(text_id), '["float"]', None, None).tensors
        sizes += [tensors[0].elements] * times if tensors else []
    return sizes


def _fill_copies(trace: Trace, columns: dict) -> Mask:
    """Fills in copies and sets, whose bytes are recorded. A copy within the device reads and writes its memory;
    otherwise one side is elsewhere. Returns the mask of copies over a link."""
    events = trace.gpu
    known = events.bytes >= 0
    copies, sets = (events.kind == MEMCPY) & known, (events.kind == MEMSET) & known
    within = copies & trace.rows_named(events.name, lambda text: "DtoD" in text)
    to_device = copies & trace.rows_named(events.name, lambda text: "HtoD" in text or "PtoP" in text)
    for rows, reads, writes in ((within, 1, 1), (to_device, 0, 1), (copies & ~within & ~to_device, 1, 0), (sets, 0, 1)):
        columns["read"][rows] = events.bytes[rows] * reads
        columns["write"][rows] = events.bytes[rows] * writes
    for name in ("flops", "kept", "repeated"):
        columns[name][copies | sets] = 0.0
    return copies & ~within
