"""Reasons why kernels are slow, as far as the recording shows them."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.work import recorded_sms
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.gpu.kernel_reach import ATTENTION, ELEMENTWISE, GEMM, kinds_of
from gpuprof.diagnosis.detect.gpu.linear_layers import ALIGNED_ELEMENTS
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.other_gpu import FEW_BLOCKS
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Bytes, Convention, Entries, Launches, Ns, Published, Ratio, Share, Version

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
_UNVECTORISED = re.compile(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel|copy_device_to_device|direct_copy_kernel")
_MADE_FOR = re.compile(r"(?<![a-z])sm_?(\d\d)\d?|cutlass_(\d\d)\d?_|(volta|turing|ampere)_", re.IGNORECASE)
"""The GPU generation in a kernel's name: sm80, cutlass_80_…, ampere_…."""
_ARCHITECTURES: Published[dict[str, Version]] = {"volta": 7, "turing": 7, "ampere": 8}
_BY_CHANNEL = re.compile(r"nchw|bn_\w*1C11", re.IGNORECASE)
"""cuDNN's kernels for images in NCHW layout; kernels for the other layout have nhwc in their names."""
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
    if slow.kind != GEMM:
        return None
    matrices = [shape for row in slow.longest.tolist() for shape in _shapes(slow.case, row) if len(shape) in (2, 3)]
    odd = [n for shape in matrices for n in shape[-2:] if n > ALIGNED_ELEMENTS and n % ALIGNED_ELEMENTS]
    return f"a dimension of {max(odd, key=odd.count):,} is not a multiple of {ALIGNED_ELEMENTS}" if odd else None


def _layout(slow: _SlowKernels) -> str | None:
    if slow.kind in (GEMM, ATTENTION):
        return None
    if slow.mostly_named(_BY_CHANNEL):
        return "images are stored channel by channel (NCHW)"
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
