"""A fingerprint of what a training computes: hashes of its batches, its losses and gradient norms. Two runs are
compared with it. Batches are hashed as a DataLoader hands them out, row by row, without padding, so that samples are
recognised in batches of another size. Losses and norms stay on the device and are read at the end.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Batches, Bytes, Convention, Levels, Steps


BATCHES: Convention[Batches] = 32
"""Batches that are hashed."""
STEPS: Convention[Steps] = 20
"""Steps whose losses and gradient norms are kept."""
_LARGEST_BYTES: Convention[Bytes] = 1 << 26
"""Bytes of a batch that are hashed; of a larger batch, the first bytes of each tensor."""
_DEEPEST: Assumed[Levels] = 4


class Digests:
    """Collects the fingerprint over the first steps."""

    def __init__(self) -> None:
        self.batches: list[dict[str, Any]] = []
        self._losses: list[list[Any]] = [[]]
        self._norms: list[list[Any]] = [[]]

    @property
    def steps(self) -> int:
        """Steps that have ended."""
        return len(self._losses) - 1

    @property
    def wants_batches(self) -> bool:
        return len(self.batches) < BATCHES

    @property
    def wants_losses(self) -> bool:
        return self.steps < STEPS

    def fetched(self, batch: Any) -> None:
        """A batch was handed out."""
        tensors = _tensors(batch, "", 0)
        if tensors:
            self.batches.append(digest(tensors))

    def backward(self, tensors: Any) -> None:
        """A backward pass begins at these tensors."""
        import torch

        found = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors or ())
        self._losses[-1] += [one.detach().float().sum() for one in found if isinstance(one, torch.Tensor)]

    def update(self, optimizer: Any) -> None:
        """An optimizer is about to change the weights."""
        import torch

        gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
        dense = [_local(one.detach()) for one in gradients if one.layout == torch.strided]
        if dense:
            norms = [torch.linalg.vector_norm(one, dtype=torch.float32) for one in dense]
            self._norms[-1].append(torch.linalg.vector_norm(torch.stack([one.to(norms[0].device) for one in norms])))

    def end_step(self) -> None:
        """A step of the training has ended."""
        if self.wants_losses:
            self._losses.append([])
            self._norms.append([])

    def facts(self) -> dict[str, Any]:
        """The fingerprint as plain values; waits for the device. A loss is the sum over a step's backward passes."""
        return {
            "batches": self.batches,
            "losses": [_sum(one) for one in self._losses[: self.steps]],
            "gradient_norms": [_sum(one) for one in self._norms[: self.steps]],
        }


def digest(tensors: list[tuple[str, Any]]) -> dict[str, Any]:
    """`whole`: hash of all bytes, shapes and types; `kinds`: names and types; `rows`: a hash of each sample."""
    whole = hashlib.blake2b(digest_size=16)
    for name, tensor in tensors:
        whole.update(f"{name} {tuple(tensor.shape)} {tensor.dtype};".encode())
        whole.update(_bytes(tensor))
    kinds = sorted(f"{name} {str(tensor.dtype).removeprefix('torch.')} {tensor.dim()}" for name, tensor in tensors)
    return {"whole": whole.hexdigest(), "kinds": kinds, "rows": _rows(tensors)}


def _rows(tensors: list[tuple[str, Any]]) -> list[str]:
    """One hash per sample, of what is not padding where a mask says which that is."""
    by_name = dict(tensors)
    count = next((int(t.shape[0]) for _, t in tensors if t.dim()), 0)
    if any(t.dim() and int(t.shape[0]) != count for _, t in tensors):
        return []
    mask = next((t for name, t in tensors if name.endswith("attention_mask") and t.dim() == 2), None)
    found = []
    for row in range(count):
        own = hashlib.blake2b(digest_size=8)
        kept = mask[row].bool() if mask is not None else None
        for name in sorted(by_name):
            tensor = by_name[name]
            if not tensor.dim():
                continue
            part = tensor[row]
            if kept is not None and mask is not None and tensor.shape[:2] == mask.shape:
                part = part[kept]
            own.update(name.encode() + _bytes(part))
        found.append(own.hexdigest())
    return found


def _bytes(tensor: Any) -> bytes:
    """The tensor's bytes, in order."""
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    flat = flat[: max(_LARGEST_BYTES // max(flat.element_size(), 1), 1)]
    return flat.view(torch.uint8).numpy().tobytes()


def _tensors(value: Any, name: str, depth: int) -> list[tuple[str, Any]]:
    """All tensors of a batch with their paths in it."""
    import torch

    if isinstance(value, torch.Tensor):
        return [(name, value)] if value.layout == torch.strided else []
    if depth >= _DEEPEST:
        return []
    if isinstance(value, Mapping):
        items = [(f"{name}.{key}" if name else str(key), one) for key, one in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{name}[{i}]", one) for i, one in enumerate(value)]
    else:
        return []
    return [found for key, one in items for found in _tensors(one, key, depth + 1)]


def _local(tensor: Any) -> Any:
    """This rank's part of a sharded tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _sum(tensors: list[Any]) -> float | None:
    """The sum of device scalars; None where there are none, or where it is not a number."""
    total = sum(float(one) for one in tensors)
    return total if tensors and abs(total) != float("inf") and total == total else None
