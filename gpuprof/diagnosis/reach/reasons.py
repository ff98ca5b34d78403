"""Reasons why kernels are slow, as far as the recording shows them."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np

from gpuprof.costs.dtypes import DTYPES, UNKNOWN
from gpuprof.costs.work import recorded_sms
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.gpu.kernel_reach import ATTENTION, ELEMENTWISE, GEMM, kinds_of
from gpuprof.diagnosis.detect.gpu.linear_layers import ALIGNED_ELEMENTS
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.changes.other_gpu import FEW_BLOCKS
from gpuprof.tracefile.trace import I64
from gpuprof.units import Assumed, Bytes, Launches, Ns, Published, Ratio, Share, Version

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
_PAGEABLE = re.compile("Pageable")
_UNVECTORISED = re.compile(r"(?<!vectorized_)(?<!unrolled_)elementwise_kernel|copy_device_to_device|direct_copy_kernel")
_MADE_FOR = re.compile(r"(?<![a-z])sm_?(\d\d)\d?|cutlass_(\d\d)\d?_|(volta|turing|ampere)_", re.IGNORECASE)
"""The GPU generation in a kernel's name: sm80, cutlass_80_…, ampere_…."""
_ARCHITECTURES: Published[dict[str, Version]] = {"volta": 7, "turing": 7, "ampere": 8}
_BY_CHANNEL = re.compile(r"nchw|bn_\w*1C11", re.IGNORECASE)
"""cuDNN's kernels for images in NCHW layout; kernels for the other layout have nhwc in their names."""
_EFFICIENT = re.compile(r"efficient_attention|fmha_cutlass")
_PLAIN_CONVOLUTION = re.compile(r"implicit_convolve_sgemm|_engine<|wgrad_alg\d|dgrad_engine|winograd")


def reason(case: Analysis, rows: I64) -> str | None:
    """The reasons that apply to most of the time of some GPU events, as text; None if there are none."""
    gpu = case.trace.gpu
    ns = (gpu.end_ns - gpu.start_ns)[rows].clip(0).astype(np.float64)
    if not ns.sum():
        return None
    said: list[str] = []
    kind = int(np.bincount(kinds_of(case.timeline)[rows], weights=ns).argmax())
    longest = rows[np.argsort(-ns, kind="stable")[:16]]
    for one in (
        _pageable, _precision, _mask, _fallback, _alignment, _layout, _waves, _older, _first_use, _clock,
        _instructions, _passes, _many,
    ):  # fmt: skip
        text = one(case, rows, ns, longest, kind)
        if text:
            said.append(text)
    return "; ".join(said[:2]) or None


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


def _pageable(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    return "the memory is pageable" if _mostly(case, rows, ns, _PAGEABLE) else None


def _precision(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    if kind not in (GEMM, ATTENTION) or case.roofline is None:
        return None
    code = case.roofline.work.dtype[rows]
    fp32 = np.array([c != UNKNOWN and DTYPES[c] in ("fp32", "fp64") for c in code.tolist()])
    return "computed in fp32, without tensor cores" if 2 * ns[fp32].sum() > ns.sum() else None


def _mask(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    """An attention mask given as a full tensor of scores."""
    if kind != ATTENTION:
        return None
    for row in longest.tolist():
        shapes = _shapes(case, row)
        four = [shape for shape in shapes if len(shape) == 4]
        if (
            len(four) >= 4
            and four[0][-2] > 1
            and any(mask[-2:] == [four[0][-2], four[1][-2]] and mask[-1] != four[0][-1] for mask in four[3:])
        ):
            queries, keys = four[0][-2], four[1][-2]
            return f"the mask is a tensor of {queries:,} × {keys:,} scores, all of which are computed"
    return None


def _fallback(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    """A general kernel although a library has a specialised one."""
    if kind == ATTENTION and _mostly(case, rows, ns, _EFFICIENT):
        return "the memory-efficient kernel, not flash attention"
    if kind == GEMM and _mostly(case, rows, ns, _PLAIN_CONVOLUTION):
        return "the convolution runs on a kernel without tensor cores"
    return None


def _older(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    """A kernel for an older GPU generation, which does not fully use this GPU's tensor cores."""
    if kind not in (GEMM, ATTENTION) or case.roofline is None or _precision(case, rows, ns, longest, kind):
        return None  # without tensor cores the generation does not matter
    major = case.roofline.ceilings.gpu.compute_capability.partition(".")[0]
    if not major.isdigit():
        return None  # AMD's kernel names do not contain the generation
    own = int(major)
    made_for = {name: _generation(case.trace.strings[name]) for name in np.unique(case.trace.gpu.name[rows]).tolist()}
    older = {name: major for name, major in made_for.items() if major is not None and major < own}
    names = case.trace.gpu.name[rows]
    if 2 * ns[np.isin(names, list(older))].sum() <= ns.sum():
        return None
    return f"the kernel was built for sm_{max(older.values())}x and runs on an sm_{own}x GPU"


def _generation(name: str) -> int | None:
    """Major compute capability that a kernel was built for; None if its name does not say."""
    found = _MADE_FOR.search(name)
    if found is None:
        return None
    digits = found[1] or found[2]
    return int(digits[0]) if digits and digits[0] != "1" else _ARCHITECTURES.get((found[3] or "").lower())


def _mostly(case: Analysis, rows: I64, ns: np.ndarray, pattern: re.Pattern[str]) -> bool:
    """Whether kernels with matching names take most of the time."""
    names = case.trace.gpu.name[rows]
    mine = [name for name in np.unique(names).tolist() if pattern.search(case.trace.strings[name])]
    return 2 * float(ns[np.isin(names, mine)].sum()) > float(ns.sum())


def _alignment(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    if kind != GEMM:
        return None
    matrices = [shape for row in longest.tolist() for shape in _shapes(case, row) if len(shape) in (2, 3)]
    odd = [n for shape in matrices for n in shape[-2:] if n > ALIGNED_ELEMENTS and n % ALIGNED_ELEMENTS]
    return f"a dimension of {max(odd, key=odd.count):,} is not a multiple of {ALIGNED_ELEMENTS}" if odd else None


def _layout(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    if kind in (GEMM, ATTENTION):
        return None
    if _mostly(case, rows, ns, _BY_CHANNEL):
        return "images are stored channel by channel (NCHW)"
    slow = _mostly(case, rows, ns, _UNVECTORISED)
    return "tensors are strided or unaligned: not the vectorised kernel" if slow else None


def _waves(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    """Too few blocks, or a nearly empty last wave."""
    gpu = case.trace.gpu
    grid = np.stack([gpu.grid_x[rows], gpu.grid_y[rows], gpu.grid_z[rows]]).astype(np.float64)
    blocks, sms = grid.prod(axis=0), recorded_sms(case.timeline)
    few = (blocks >= 1) & (blocks < FEW_BLOCKS * sms)
    if 2 * ns[few].sum() > ns.sum():
        return f"{float(np.median(blocks[few])):,.0f} blocks for {sms} SMs"
    if kind != GEMM:
        return None
    waves = blocks / sms
    tail = (waves > 1) & (waves < FEW_WAVES) & (waves % 1 > 0) & (waves % 1 < TAIL_SHARE)
    if 2 * ns[tail].sum() > ns.sum():
        return f"the last wave of blocks fills {100 * float(np.median(waves[tail] % 1)):.0f} % of the SMs"
    return None


def _first_use(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    name = case.trace.gpu.name[rows]
    for one in np.unique(name).tolist():
        mine = ns[name == one]
        if len(mine) > 2 and mine[0] > FIRST_USE * np.median(mine[1:]) and 2 * mine[0] > ns.sum():
            return "its first run in the recording takes most of it"
    return None


def _clock(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    telemetry = case.run.telemetry if case.run else None
    held = {reason: share for gpu in (telemetry.gpus if telemetry else ()) for reason, share in gpu.throttled.items()}
    worst = max(held, key=lambda reason: held[reason], default=None)
    if worst is None or held[worst] < HELD_BACK:
        return None
    return f"the clock was held back in {100 * held[worst]:.0f} % of the samples ({worst.replace('_', ' ')})"


def _instructions(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    """Elementwise kernels over large tensors that are far from the memory's rate without a reason in layout or size."""
    if kind != ELEMENTWISE or case.roofline is None or _layout(case, rows, ns, longest, kind):
        return None
    work, ceiling = case.roofline.work, case.roofline.ceilings.memory_bytes_per_s
    large = work.model[rows] & (work.bytes[rows] >= FILLS_BYTES)
    if 2 * ns[large].sum() < ns.sum():
        return None
    share = float(work.bytes[rows][large].sum() / (ceiling * ns[large].sum() / 1e9))
    if share >= FAR_FROM_BANDWIDTH:
        return None
    return f"at {100 * share:.0f} % of the memory's rate: instructions limit it, not memory"


def _passes(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    """Many kernels over tensors of one shape: each reads it from memory again."""
    if kind in (GEMM, ATTENTION):
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


def _many(case: Analysis, rows: I64, ns: np.ndarray, longest: I64, kind: int) -> str | None:
    """Kernels so short that most of their time is starting and ending."""
    short = ns < SHORT_KERNEL_NS
    if float(ns[short].sum()) < REASON_SHARE * float(ns.sum()):
        return None
    each, usual = case.per_step(int(short.sum())), float(np.median(ns[short]))
    return f"{each:,.0f} kernels {case.unit.a} of {duration(usual)} each" if each >= FEWEST_PASSES else None
