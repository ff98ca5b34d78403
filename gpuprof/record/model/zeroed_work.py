"""Finds work whose result is multiplied by a constant zero, such as an unused tower of a model.
Autograd's graph shows it: a multiplication by a Python number saves the number as a tensor in host memory. Ops that
affect the loss only through such a zero are computed in vain, forward and backward. The graph of a backward pass is
walked once, in a step that is not recorded; in later passes autograd's sequence numbers identify the same ops. Nothing
is read from the GPU.
"""

from __future__ import annotations

from itertools import groupby
from typing import Any

from ..phases.phase_names import ZEROED_RANGE
from .walked_passes import WalkedPasses, number_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Nodes


MOST_NODES: Assumed[Nodes] = 100_000
"""A larger graph is not walked."""
FEWEST_NODES: Assumed[Nodes] = 10
"""Work of fewer nodes is not marked: sums of parameters times zero, as DDP needs them, have fewer each."""


class ZeroedWork(WalkedPasses):
    """At the start of each backward pass marks the forward ops that it multiplies by zero, by sequence number."""

    def _found(self, node: Any, number: int) -> list[tuple[int, int]]:
        return [(number - low, number - high) for low, high in zeroed(node)]

    def _names(self, found: list[tuple[int, int]], number: int) -> list[str]:
        return [f"{ZEROED_RANGE}{number - low}-{number - high}" for low, high in found]


def zeroed(root: Any) -> list[tuple[int, int]]:
    """First and last sequence number of each range of ops below a node whose gradient is always zero."""
    live = reached([root], through_zero=False)
    every = None if live is None else reached([root], through_zero=True)
    if live is None or every is None or len(live) == len(every):
        return []
    numbers = {number_of(node): False for node in every.values()}
    # Several nodes may share a number; the multiplications themselves are in vain, too.
    numbers |= {number_of(node): True for node in live.values() if not _multiplies_by_zero(node)}
    ordered = sorted((number, alive) for number, alive in numbers.items() if number is not None)
    stretches = [[number for number, _ in group] for alive, group in groupby(ordered, lambda one: one[1]) if not alive]
    return [(each[0], each[-1]) for each in stretches if len(each) >= FEWEST_NODES]


def reached(nodes: list[Any], through_zero: bool) -> dict[int, Any] | None:
    """The nodes that gradients reach, by identity; None if there are too many."""
    found: dict[int, Any] = {}
    while nodes:
        node = nodes.pop()
        if node is None or id(node) in found:
            continue
        found[id(node)] = node  # kept alive, so that no other node gets its id
        if len(found) > MOST_NODES:
            return None
        if through_zero or not _multiplies_by_zero(node):
            nodes.extend(below for below, _ in node.next_functions)
    return found


def _multiplies_by_zero(node: Any) -> bool:
    """Whether it multiplies by a Python number that is zero: a float64 or int64 scalar in host memory."""
    import torch

    if node.name() != "MulBackward0":
        return False
    for name in ("_raw_saved_other", "_raw_saved_self"):
        value = kept(getattr(node, name, None))
        if (
            isinstance(value, torch.Tensor)
            and value.device.type == "cpu"
            and value.dim() == 0
            and value.dtype in (torch.float64, torch.int64)
            and not value.requires_grad
        ):
            return float(value) == 0.0
    return False


def kept(saved: Any) -> Any:
    """The tensor that a node saved, if it was saved as it is; else None.

    Reading a tensor that went through a saved-tensor hook calls the hook's other half, which recomputes a checkpointed
    part and keeps it, or copies the tensor back to the GPU. PyTorch passes no Python numbers to hooks. Without
    `SavedTensor.unpack_hook`, in older versions of torch, this is not known: None.
    """
    try:
        return saved.data if saved.unpack_hook is None else None
    except (AttributeError, RuntimeError):  # an older torch; nothing was saved, or it is freed
        return None
