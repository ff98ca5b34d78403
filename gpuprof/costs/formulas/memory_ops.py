"""torch ops other than matmuls: which formula counts an op's bytes."""

from __future__ import annotations

import re
from collections.abc import Callable

from gpuprof.costs.arguments import Arguments
from gpuprof.costs.cost import Cost, Kernel, Machine
from gpuprof.costs.formulas.elementwise import ARITY, CREATES, FILLS, copy, create, elementwise, fill
from gpuprof.costs.formulas.indexing import by_index, cat, search, sort
from gpuprof.costs.formulas.reductions import REDUCES, SOFTMAX, norm, picked_loss, reduction, softmax

Formula = Callable[[Arguments, Kernel], "Cost | None"]


def streaming(arguments: Arguments, kernel: Kernel, machine: Machine) -> Cost | None:
    """Cost of one kernel of an aten op; None if its recorded arguments do not show it."""
    name = arguments.name.removeprefix("aten::")
    in_place = name.endswith("_") and not name.endswith("__")
    base = name[:-1] if in_place else name
    if name == "copy_":
        return copy(arguments)
    if base in FILLS and in_place:
        return fill(arguments)
    if base in CREATES:
        return create(arguments, kernel)
    if base in ARITY:
        return elementwise(arguments, base, in_place)
    if name in SOFTMAX:
        return softmax(arguments, kernel, machine)
    if base in REDUCES:
        return reduction(arguments, base)
    for pattern, formula in _BY_PATTERN:
        if pattern.search(name):
            return formula(arguments, kernel)
    return every_tensor_once(arguments, writes=True)


def every_tensor_once(arguments: Arguments, writes: bool) -> Cost | None:
    """Cost of an unknown op: each tensor is moved once. Compiled kernels list their outputs among their arguments; ops
    (`writes`) do not, and are assumed to return a tensor as large as their largest input."""
    tensors = [t for t in arguments.all_tensors if t.elements]
    if not tensors:
        return None
    moved = float(sum(t.bytes for t in tensors))
    if writes:
        return Cost(read_bytes=moved, write_bytes=max(t.bytes for t in tensors))
    out = tensors[-1].bytes
    return Cost(read_bytes=moved - out, write_bytes=out)


_BY_PATTERN: tuple[tuple[re.Pattern[str], Formula], ...] = (
    (re.compile("nll_loss"), lambda arguments, _: picked_loss(arguments)),
    (re.compile("_norm"), norm),
    (re.compile(r"^(cat|stack|_cat)$"), cat),
    (re.compile(r"nonzero|unique|bincount"), lambda arguments, _: search(arguments)),
    (re.compile(r"^(sort|argsort|topk|cumsum|cumprod|searchsorted|kthvalue|msort)"), sort),
    (re.compile(r"index|gather|scatter|embedding|take|masked_select"), by_index),
)
"""Formulas for ops with many names; the first match decides."""
