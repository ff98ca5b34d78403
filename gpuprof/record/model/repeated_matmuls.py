"""Finds matrix multiplications that repeat an earlier one of the same pass: an adapter that multiplies its input by the
base weight again, which the base layer has just done.

Autograd's graph shows it: of each operand a multiplication keeps either the op that made it, or the tensor, identified
by its storage, offset and strides. Two multiplications whose operands are the same give the same result: PyTorch
refuses a backward pass if a tensor changed after it was kept. The graph of a backward pass is walked once, in a step
that is not recorded; in later passes autograd's sequence numbers identify the same ops. Nothing is read from the GPU.
"""

from __future__ import annotations

from typing import Any

from ..phases.phase_names import AGAIN_RANGE
from .walked_passes import WalkedPasses, number_of
from .zeroed_work import kept, reached

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Convention, Ops, Published


MOST_MATMULS: Convention[Ops] = 256
"""Most repeated multiplications of a pass that are marked."""
OPERANDS: Published[dict[str, tuple[tuple[int, str], ...]]] = {
    "MmBackward0": ((0, "self"), (1, "mat2")),
    "BmmBackward0": ((0, "self"), (1, "mat2")),
    "AddmmBackward0": ((1, "mat1"), (2, "mat2")),
}
"""Node of a multiplication → its operands: place among the ops that made them, and name under which it is kept."""
VIEWS: Published[dict[str, tuple[str, ...]]] = {
    "ViewBackward0": ("_saved_self_sym_sizes",),
    "UnsafeViewBackward0": ("_saved_self_sym_sizes",),
    "ReshapeAliasBackward0": ("_saved_self_sym_sizes",),
    "AliasBackward0": (),
    "TBackward0": (),
    "TransposeBackward0": ("_saved_dim0", "_saved_dim1"),
}
"""Ops that only describe a tensor in another way, with what they keep of how: sizes before it, or two dimensions. The
sizes after the last view follow from those of the other operand."""


class RepeatedMatmulMarker(WalkedPasses):
    """At the start of each backward pass marks the forward multiplications that repeat an earlier one, by number."""

    def _found(self, node: Any, number: int) -> list[int]:
        return [number - one for one in repeated_matmuls(node)]

    def _names(self, found: list[int], number: int) -> list[str]:
        """One range for all of them."""
        return [AGAIN_RANGE + ",".join(str(number - one) for one in found)] if found else []


def repeated_matmuls(root: Any) -> list[int]:
    """Sequence numbers of the multiplications below a node that repeat one with a smaller number, in order."""
    nodes = reached([root], through_zero=True)
    if nodes is None:
        return []
    found: dict[Any, list[int]] = {}
    for node in nodes.values():
        operands, number = OPERANDS.get(node.name()), number_of(node)
        if operands is None or number is None:
            continue
        key = tuple(_operand(node, place, name) for place, name in operands)
        if None not in key:
            found.setdefault((node.name(), _bias(node), *key), []).append(number)
    again = sorted(number for numbers in found.values() for number in sorted(numbers)[1:])
    return again[:MOST_MATMULS]


def _operand(node: Any, place: int, name: str) -> Any:
    """What an operand is: the op that made it, or its tensor; None if unknown."""
    made_by, output = node.next_functions[place]
    if made_by is not None:
        return _made(made_by, output)
    tensor = kept(getattr(node, f"_raw_saved_{name}", None))
    if tensor is None:
        return None
    try:
        where = tensor.untyped_storage()._cdata, tensor.storage_offset()
        return *where, tuple(tensor.shape), tuple(tensor.stride()), str(tensor.dtype)
    except (AttributeError, NotImplementedError, RuntimeError):  # sparse, or of a class without a storage of its own
        return None


def _bias(node: Any) -> Any:
    """The op that made the addend; None without one. A frozen bias is unknown and counts as equal."""
    if node.name() != "AddmmBackward0":
        return None
    made_by, output = node.next_functions[0]
    return None if made_by is None else _made(made_by, output)


def _made(node: Any, output: int) -> Any:
    """What identifies a tensor by the op that made it, through views of it."""
    views: list[Any] = []
    while (kinds := VIEWS.get(node.name())) is not None:
        views.append((node.name(), *(str(getattr(node, one, None)) for one in kinds)))
        below, output = node.next_functions[0]
        if below is None:
            break
        node = below
    return id(node), output, tuple(views)
