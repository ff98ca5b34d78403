"""Reasons why kernels are slow, as far as the recording shows them."""

from __future__ import annotations

import json
import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from gpuprof.costs.arguments import Arguments, Tensor, parse
from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.formulas.convolution import is_convolution
from gpuprof.costs.formulas.gemm import matmul_of
from gpuprof.costs.work import recorded_sms
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.gpu.kernel_reach import ATTENTION, ELEMENTWISE, GEMM, kinds_of
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.other_gpu import FEW_BLOCKS
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Bytes, Convention, Entries, Launches, Ns, Published, Ratio, Share, Version

ALIGNED_BYTES: Published[Bytes] = 16
"""Tensor cores run at full rate if rows of matrices begin at multiples of this (NVIDIA, Matrix Multiplication
Background User's Guide)."""
FEW_WAVES: Assumed[Ratio] = 4.0
"""With more waves of blocks than this, a partial last wave hardly counts."""
TAIL_SHARE: Assumed[Share] = 0.4
"""A last wave of blocks that fills less than this share of the SMs is a tail."""
FIRST_USE: Assumed[Ratio] = 5.0
"""A first run that takes this many times as long as later ones loads code or tries candidates."""
HELD_BACK: Assumed[Share] = 0.2
"""Smallest share of samples with a throttled clock that counts as a reason."""
FEWEST_PASSES: Assumed[Launches] = 3
"""Fewest kernels per step over tensors of one shape for their number to be a reason."""
REASON_SHARE: Assumed[Share] = 0.5
"""Smallest share of an item's time in kernels of one shape, or in short ones, for them to be its reason."""
SHORT_KERNEL_NS: Assumed[Ns] = 5_000.0
"""A kernel this short, ns, mostly starts and ends: it takes as long with next to nothing to do."""
FILLS_BYTES: Assumed[Bytes] = 32 << 20
"""Kernels that move this many bytes keep all SMs busy for many waves of blocks."""
FAR_FROM_BANDWIDTH: Assumed[Share] = 0.5
"""Share of the memory's rate below which such a kernel is not limited by it: simple ones reach 0.8 and more."""
READ_KERNELS: Assumed[Launches] = 16
"""Of the longest kernels this many have their arguments read."""
MOST_REASONS: Convention[Entries] = 2
_PAGEABLE = re.compile("Pageable")
_UNVECTORISED = re.compile(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel")
"""torch's kernel for tensors that are not contiguous; contiguous ones of two types take the unrolled one."""
_MADE_FOR = re.compile(r"(?<![a-z])sm_?(\d\d)\d?|cutlass_(\d\d)\d?_|(volta|turing|ampere)_", re.IGNORECASE)
"""The GPU generation in a kernel's name: sm80, cutlass_80_…, ampere_…."""
_ARCHITECTURES: Published[dict[str, Version]] = {"volta": 7, "turing": 7, "ampere": 8}
_BY_CHANNEL = re.compile(
    r"nchw|bn_\w*1C11|batch_norm_(collect_statistics|transform_input|backward\w*)(?<!channels_last)_kernel",
    re.IGNORECASE,
)
"""Kernels of cuDNN and torch for tensors in NCHW layout; those for the other layout have nhwc or channels_last in their
names."""
_EFFICIENT = re.compile(r"efficient_attention|fmha_cutlass")
_PLAIN_CONVOLUTION = re.compile(r"implicit_convolve_sgemm|_engine<|wgrad_alg\d|dgrad_engine|winograd")


@dataclass(frozen=True, slots=True)
class _SlowKernels:
    """GPU events whose slowness is to be explained."""

    case: Analysis
    rows: I64
    ns: F64
    """Duration of each."""
    longest: I64
    """Rows of the longest ones, whose arguments are read."""
    kind: int
    """The kind of work (`kernel_reach`) that takes most of their time."""

    def mostly(self, which: Mask) -> bool:
        """Whether these take more than half of the time."""
        return 2 * float(self.ns[which].sum()) > float(self.ns.sum())

    def mostly_named(self, pattern: re.Pattern[str]) -> bool:
        """Whether kernels with matching names take more than half of the time."""
        names = self.case.trace.gpu.name[self.rows]
        mine = [name for name in np.unique(names).tolist() if pattern.search(self.case.trace.strings[name])]
        return self.mostly(np.isin(names, mine))


def reason(case: Analysis, rows: I64) -> str | None:
    """The reasons that apply to most of the time of some GPU events, as text; None if there are none."""
    gpu = case.trace.gpu
    ns = (gpu.end_ns - gpu.start_ns)[rows].clip(0).astype(np.float64)
    if not ns.sum():
        return None
    kind = int(np.bincount(kinds_of(case.timeline)[rows], weights=ns).argmax())
    slow = _SlowKernels(case, rows, ns, rows[np.argsort(-ns, kind="stable")[:READ_KERNELS]], kind)
    found = (
        look(slow)
        for look in (
            _pageable, _precision, _mask, _fallback, _alignment, _layout, _waves, _older, _first_use, _clock,
            _instructions, _passes, _short,
        )
    )  # fmt: skip
    return "; ".join(islice(filter(None, found), MOST_REASONS)) or None


def _dims(case: Analysis, row: int) -> list[Any]:
    """Shapes of the arguments of the op that launched a GPU event."""
    op = int(case.timeline.links.op[row])
    if op < 0:
        return []
    try:
        found = json.loads(case.trace.text(int(case.trace.ops.dims[op])) or "[]")
    except ValueError:
        return []
    return found if isinstance(found, list) else []


def _shapes(case: Analysis, row: int) -> list[list[int]]:
    """Shapes of the arguments that are tensors."""
    return [d for d in _dims(case, row) if isinstance(d, list) and d and all(isinstance(n, int) for n in d)]


def _arguments(case: Analysis, row: int) -> Arguments | None:
    """The arguments of the op that launched a GPU event."""
    ops, op = case.trace.ops, int(case.timeline.links.op[row])
    if op < 0:
        return None
    texts = (case.trace.text(int(column[op])) for column in (ops.dims, ops.types, ops.strides, ops.concrete))
    return parse(case.trace.strings[int(ops.name[op])], *texts)


def _pageable(slow: _SlowKernels) -> str | None:
    return "the memory is pageable" if slow.mostly_named(_PAGEABLE) else None


def _precision(slow: _SlowKernels) -> str | None:
    case, rows = slow.case, slow.rows
    if slow.kind not in (GEMM, ATTENTION) or case.roofline is None:
        return None
    code = case.roofline.work.dtype[rows]
    fp32 = np.array([c != UNKNOWN and DTYPES[c] in ("fp32", "fp64") for c in code.tolist()])
    return "computed in fp32, without tensor cores" if slow.mostly(fp32) else None


def _mask(slow: _SlowKernels) -> str | None:
    """An attention mask given as a full tensor of scores."""
    if slow.kind != ATTENTION:
        return None
    for row in slow.longest.tolist():
        shapes = _shapes(slow.case, row)
        four = [shape for shape in shapes if len(shape) == 4]
        if (
            len(four) >= 4
            and four[0][-2] > 1
            and any(mask[-2:] == [four[0][-2], four[1][-2]] and mask[-1] != four[0][-1] for mask in four[3:])
        ):
            queries, keys = four[0][-2], four[1][-2]
            return f"the mask is a tensor of {queries:,} × {keys:,} scores, all of which are computed"
    return None


def _fallback(slow: _SlowKernels) -> str | None:
    """A general kernel although a library has a specialised one."""
    if slow.kind == ATTENTION and slow.mostly_named(_EFFICIENT):
        return "the memory-efficient kernel, not flash attention"
    if slow.kind == GEMM and slow.mostly_named(_PLAIN_CONVOLUTION):
        return "the convolution runs on a kernel without tensor cores"
    return None


def _older(slow: _SlowKernels) -> str | None:
    """A kernel for an older GPU generation, which does not fully use this GPU's tensor cores."""
    case, rows = slow.case, slow.rows
    if slow.kind not in (GEMM, ATTENTION) or case.roofline is None or _precision(slow):
        return None  # without tensor cores the generation does not matter
    major = case.roofline.ceilings.gpu.compute_capability.partition(".")[0]
    if not major.isdigit():
        return None  # AMD's kernel names do not contain the generation
    own = int(major)
    made_for = {name: _generation(case.trace.strings[name]) for name in np.unique(case.trace.gpu.name[rows]).tolist()}
    older = {name: major for name, major in made_for.items() if major is not None and major < own}
    names = case.trace.gpu.name[rows]
    if not slow.mostly(np.isin(names, list(older))):
        return None
    return f"the kernel was built for sm_{max(older.values())}x and runs on an sm_{own}x GPU"


def _generation(name: str) -> int | None:
    """Major compute capability that a kernel was built for; None if its name does not say."""
    found = _MADE_FOR.search(name)
    if found is None:
        return None
    digits = found[1] or found[2]
    return int(digits[0]) if digits and digits[0] != "1" else _ARCHITECTURES.get((found[3] or "").lower())


def _alignment(slow: _SlowKernels) -> str | None:
    """Rows of a matrix, or channels of a convolution, that do not begin at multiples of 16 bytes."""
    if slow.kind != GEMM or _precision(slow):
        return None  # without tensor cores it does not matter
    gpu, odd, whole = slow.case.trace.gpu, defaultdict[str, int](int), 0
    for row in slow.longest.tolist():
        ns, arguments = int(gpu.end_ns[row] - gpu.start_ns[row]), _arguments(slow.case, row)
        whole += ns
        for said in set(_misaligned(arguments)) if arguments is not None else ():
            odd[said] += ns
    most = max(odd, key=lambda said: odd[said], default=None)
    return most if most is not None and odd[most] >= REASON_SHARE * whole else None


def _misaligned(arguments: Arguments) -> Iterator[str]:
    """What does not suit tensor cores: of a matmul the elements from one row in memory to the next, in operands and
    the result; of a convolution its channels."""
    if not arguments.tensors:
        return
    aligned = max(ALIGNED_BYTES // arguments.tensors[0].element_bytes, 1)
    matmul = matmul_of(arguments)
    sides = list[int]()
    if matmul is not None:
        sides = [*(_row_length(one, aligned) for one in (matmul.left, matmul.right)), round(matmul.n)]
    elif is_convolution(arguments.name):
        shapes = [one.shape for one in arguments.tensors if len(one.shape) >= 3]  # the weight comes last
        sides = [*(shape[1] for shape in shapes), *(shape[0] for shape in shapes[-1:])]
        yield from (f"{side} channels do not fill tensor cores" for side in sides if 1 < side < aligned)
    yield from (
        f"a dimension of {side:,} is not a multiple of {aligned}" for side in sides if side > aligned and side % aligned
    )


def _row_length(matrix: Tensor, aligned: int) -> int:
    """Elements from one row of a matrix in memory to the next. If its strides are not recorded it may be transposed:
    then 0 unless both sides are odd."""
    if len(matrix.shape) < 2:
        return 0
    if matrix.strides is not None and len(matrix.strides) == len(matrix.shape):
        return max(matrix.strides[-2:])
    return matrix.shape[-1] if all(side % aligned for side in matrix.shape[-2:]) else 0


def _layout(slow: _SlowKernels) -> str | None:
    if slow.kind in (GEMM, ATTENTION):
        return None
    if slow.mostly_named(_BY_CHANNEL):
        return "tensors are stored channel by channel (NCHW)"
    unvectorised = slow.mostly_named(_UNVECTORISED)
    return "tensors are strided or unaligned: not the vectorised kernel" if unvectorised else None


def _waves(slow: _SlowKernels) -> str | None:
    """Too few blocks, or a nearly empty last wave."""
    case, rows = slow.case, slow.rows
    gpu = case.trace.gpu
    grid = np.stack([gpu.grid_x[rows], gpu.grid_y[rows], gpu.grid_z[rows]]).astype(np.float64)
    blocks, sms = grid.prod(axis=0), recorded_sms(case.timeline)
    few = (blocks >= 1) & (blocks < FEW_BLOCKS * sms)
    if slow.mostly(few):
        usual = round(float(np.median(blocks[few])))
        return f"{usual:,} block{'s' if usual != 1 else ''} for {sms} SMs"
    if slow.kind != GEMM:
        return None
    waves = blocks / sms
    tail = (waves > 1) & (waves < FEW_WAVES) & (waves % 1 > 0) & (waves % 1 < TAIL_SHARE)
    if slow.mostly(tail):
        return f"the last wave of blocks fills {100 * float(np.median(waves[tail] % 1)):.0f} % of the SMs"
    return None


def _first_use(slow: _SlowKernels) -> str | None:
    case, rows, ns = slow.case, slow.rows, slow.ns
    name = case.trace.gpu.name[rows]
    for one in np.unique(name).tolist():
        mine = ns[name == one]
        if len(mine) > 2 and mine[0] > FIRST_USE * np.median(mine[1:]) and 2 * mine[0] > ns.sum():
            return "its first run in the recording takes most of it"
    return None


def _clock(slow: _SlowKernels) -> str | None:
    telemetry = slow.case.run.telemetry if slow.case.run else None
    held = {reason: share for gpu in (telemetry.gpus if telemetry else ()) for reason, share in gpu.throttled.items()}
    worst = max(held, key=lambda reason: held[reason], default=None)
    if worst is None or held[worst] < HELD_BACK:
        return None
    return f"the clock was held back in {100 * held[worst]:.0f} % of the samples ({worst.replace('_', ' ')})"


def _instructions(slow: _SlowKernels) -> str | None:
    """Elementwise kernels over large tensors that are far from the memory's rate without a reason in layout or size."""
    case, rows, ns = slow.case, slow.rows, slow.ns
    if slow.kind != ELEMENTWISE or case.roofline is None or _layout(slow):
        return None
    work, ceiling = case.roofline.work, case.roofline.ceilings.memory_bytes_per_s
    large = work.model[rows] & (work.bytes[rows] >= FILLS_BYTES)
    if 2 * ns[large].sum() < ns.sum():
        return None
    share = float(work.bytes[rows][large].sum() / (ceiling * ns[large].sum() / 1e9))
    if share >= FAR_FROM_BANDWIDTH:
        return None
    return f"at {100 * share:.0f} % of the memory's rate: instructions limit it, not memory"


def _passes(slow: _SlowKernels) -> str | None:
    """Many kernels over tensors of one shape: each reads it from memory again."""
    case, rows, ns = slow.case, slow.rows, slow.ns
    if slow.kind in (GEMM, ATTENTION):
        return None
    ops = case.timeline.links.op[rows]
    texts = np.where(ops >= 0, case.trace.ops.dims[np.maximum(ops, 0)], -1)
    largest: dict[int, tuple[int, ...]] = {}
    for text, row in zip(*_first_of_each(texts, rows), strict=True):
        largest[text] = max((tuple(shape) for shape in _shapes(case, row)), key=math.prod, default=())
    time: dict[tuple[int, ...], float] = {}
    count: dict[tuple[int, ...], int] = {}
    for text, took in zip(texts.tolist(), ns.tolist(), strict=True):
        shape = largest[text]
        time[shape], count[shape] = time.get(shape, 0.0) + took, count.get(shape, 0) + 1
    shape = max(time, key=lambda one: time[one])
    each = case.per_step(count[shape])
    if not shape or each < FEWEST_PASSES or time[shape] < REASON_SHARE * ns.sum():
        return None
    return f"{each:,.0f} passes {case.unit.a} over tensors of {' × '.join(f'{side:,}' for side in shape)}"


def _first_of_each(texts: np.ndarray, rows: I64) -> tuple[list[int], list[int]]:
    """Each text once, with the first of its rows."""
    found, at = np.unique(texts, return_index=True)
    return found.tolist(), rows[at].tolist()


def _short(slow: _SlowKernels) -> str | None:
    """Kernels so short that most of their time is starting and ending."""
    case, ns = slow.case, slow.ns
    short = ns < SHORT_KERNEL_NS
    if float(ns[short].sum()) < REASON_SHARE * float(ns.sum()):
        return None
    each, usual = case.per_step(int(short.sum())), float(np.median(ns[short]))
    return f"{each:,.0f} kernels {case.unit.a} of {duration(usual)} each" if each >= FEWEST_PASSES else None
