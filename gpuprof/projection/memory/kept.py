"""What autograd keeps of the layers of a transformer for the backward pass, counted op by op.

Which inputs and outputs a backward formula needs is known (torch's derivatives.yaml): a product of two activations
keeps both operands, SiLU and GELU their input, attention its queries, keys, values, result and one number per row, a
linear layer its input if its weight is trained, a norm computed in single precision its fp32 input. A tensor that
several ops need is kept once. Nothing here is fitted; docs/memory_changes.md compares it with what was
measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuprof.units import Bytes, Published

Shape = tuple[int, ...]

FUSED_ATTENTION = "aten::scaled_dot_product_attention"
GATES, ACTIVATIONS = ("aten::silu", "aten::gelu"), ("aten::silu", "aten::gelu", "aten::relu")
DROPOUT = "aten::native_dropout"
NORMS = ("aten::native_layer_norm", "aten::_fused_rms_norm")
FORMAT_BYTES: Published[dict[str, Bytes]] = {"float": 4, "double": 8, "c10::BFloat16": 2, "c10::Half": 2}
SHARED_INPUTS = (frozenset({"q_proj", "k_proj", "v_proj"}), frozenset({"gate_proj", "up_proj"}))
"""Linear layers that share an input."""
OF_ATTENTION = frozenset({"o_proj"})
"""Linear layers whose input is attention's result, which is kept anyway."""


@dataclass(frozen=True, slots=True)
class OpUse:
    """An op of the forward pass with its arguments, and how often a pass runs it."""

    name: str
    shapes: tuple[Shape | None, ...]
    types: tuple[str, ...]
    count: float


@dataclass(frozen=True, slots=True)
class TrainedPart:
    """Which part of the model is trained."""

    adapted: dict[str, int]
    """Adapted layers by name; empty: no adapters."""
    rank: int | None
    """Rank of the adapters."""
    single_adapters: bool
    """Whether their weights are stored in single precision."""
    whole: bool
    """Whether all weights are trained."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What one pass keeps, bytes."""

    total_bytes: float
    with_half_adapters: float
    """The same if the adapters were stored in the model's half precision."""


def kept(ops: Iterable[OpUse], training: TrainedPart) -> Kept | None:
    """What one forward pass keeps, without logits and written-out scores; None if its ops do not show it: custom
    autograd functions (Unsloth, Liger), other norms or attention, dropout inside a model that is trained whole.

    ops: outermost ones only, as autocast calls an op of the same name inside.
    """
    found = list(ops)
    norms, attention, mlp = _norms(found, training), _attention(found), _mlp(found, training)
    adapters = _adapters(found, training)
    if not norms or not attention or not mlp or adapters is None:
        return None
    if training.whole and any(op.name == DROPOUT for op in found):
        return None  # between which of its tensors a model drops out is not known
    rest = norms + attention + mlp
    return Kept(rest + adapters[0], rest + adapters[1])


def _first(op: OpUse) -> tuple[Shape, int] | None:
    """Shape and bytes of an element of the first argument."""
    shape = op.shapes[0] if op.shapes else None
    size = FORMAT_BYTES.get(op.types[0]) if op.types else None
    return None if not shape or size is None else (shape, size)


def _norms(ops: Sequence[OpUse], training: TrainedPart) -> float:
    """What norms keep: those written in Python their fp32 input, others their input; if their weight is trained, what
    it is multiplied with; if the layers after them are trained, the result."""
    total = 0.0
    for op in ops:
        first = _first(op)
        if first is None or op.name not in ("aten::pow", *NORMS):
            continue
        shape, size = first
        if len(shape) < 3 or (op.name == "aten::pow" and size != 4):
            continue
        elements = math.prod(shape) * op.count
        total += size * elements
        if training.whole:
            total += (2 + 2 if op.name == "aten::pow" else size) * elements
    return total


def _attention(ops: Sequence[OpUse]) -> float:
    """What attention keeps: queries, keys, values, the result, and the logarithm of each row's sum."""
    total = 0.0
    for op in ops:
        first = _first(op)
        if op.name != FUSED_ATTENTION or first is None or len(op.shapes) < 3:
            continue
        (query, size), key, value = first, op.shapes[1], op.shapes[2]
        if key is None or value is None or len(query) != 4:
            continue
        result = math.prod(query[:-1]) * value[-1]
        total += op.count * (size * (math.prod(query) + math.prod(key) + math.prod(value) + result)
                             + 4 * math.prod(query[:-1]))  # fmt: skip
    return total or _eager(ops)


def _eager(ops: Sequence[OpUse]) -> float:
    """What eager attention keeps: queries, keys and values; its scores are counted elsewhere."""
    total = 0.0
    for op in ops:
        first, second = _first(op), op.shapes[1] if len(op.shapes) > 1 else None
        if op.name == "aten::bmm" and first is not None and second is not None and len(second) == 3:
            sides = [math.prod(shape) for shape in (first[0], second) if shape[-1] != shape[-2]]
            total += op.count * first[1] * sum(sides)
    return total


def _mlp(ops: Sequence[OpUse], training: TrainedPart) -> float:
    """What an MLP keeps: gated ones the gate, its activation and the other operand; others the activation's input."""
    products = {op.shapes[0] for op in ops if op.name == "aten::mul" and len(op.shapes) > 1 and op.shapes[0]
                and op.shapes[0] == op.shapes[1]}  # fmt: skip
    total = 0.0
    for op in ops:
        first = _first(op)
        if op.name not in ACTIVATIONS or first is None:
            continue
        shape, size = first
        gated = op.name in GATES and shape in products
        # With all weights trained, also the input of the layer after it; for adapters see `_adapters`.
        total += ((3 if gated else 1) + training.whole) * size * math.prod(shape) * op.count
    return total


def _adapters(ops: Sequence[OpUse], training: TrainedPart) -> tuple[float, float] | None:
    """Inputs that adapters keep: (as they are, with adapters in half precision); None if the names of the layers do not
    show which share one.

    An adapter in single precision casts its input; with dropout each adapter has its own copy, and a mask.
    """
    if not training.adapted:
        return (0.0, 0.0) if training.whole else None
    matmuls = [op for op in ops if op.name == "aten::mm" and len(op.shapes) > 1 and _narrow(op, training.rank)]
    if not matmuls:
        return None
    dropout = sum(op.count for op in ops if op.name == DROPOUT) >= sum(op.count for op in matmuls)
    now = half = 0.0
    for op in matmuls:
        first = _first(op)
        assert first is not None
        elements = op.count * math.prod(first[0])
        now += (first[1] + dropout) * elements
        half += (2 + dropout) * elements
    if dropout:
        return now, half
    shared = _shared(matmuls, training.adapted)
    if shared is None:
        return None
    own = training.single_adapters and _casts(ops, training.rank)
    return (now if own else 2 * shared), 2 * shared


def _narrow(op: OpUse, rank: int | None) -> bool:
    second = op.shapes[1]
    return second is not None and len(second) == 2 and second[1] == rank and _first(op) is not None


def _casts(ops: Sequence[OpUse], rank: int | None) -> bool:
    """Whether the adapters' inputs reach them in single precision."""
    for op in ops:
        weight = op.shapes[1] if op.name == "aten::linear" and len(op.shapes) > 1 else None
        if weight and len(weight) == 2 and weight[0] == rank:
            return op.types[0] == "float"
    return True


def _shared(matmuls: Sequence[OpUse], adapted: dict[str, int]) -> float | None:
    """Elements of the adapters' distinct inputs that nothing else keeps."""
    widths: dict[int, list[float]] = {}
    for op in matmuls:
        shape = op.shapes[0]
        assert shape is not None
        both = widths.setdefault(shape[-1], [0.0, 0.0])
        both[0] += op.count
        both[1] += op.count * math.prod(shape)
    down = adapted.get("down_proj", 0)
    groups = [max((adapted.get(name, 0) for name in names), default=0) for names in SHARED_INPUTS]
    known = frozenset().union(*SHARED_INPUTS, OF_ATTENTION, {"down_proj"})
    if not adapted.keys() <= known or len(widths) > 2 or (len(widths) == 2 and not down):
        return None
    hidden = min(widths) if len(widths) == 2 or not (down and len(adapted) == 1) else None
    total = 0.0
    layers = max(adapted.values())
    if hidden is not None:
        count, elements = widths[hidden]
        names = sum(adapted.get(name, 0) for name in adapted if name != "down_proj")
        total += elements / count * sum(groups) * (count / names) if names else 0.0
    if down:
        count, elements = widths[max(widths)]
        total += elements * (down / layers)
    return total
