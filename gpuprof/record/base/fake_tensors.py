"""Runs a training without its memory: floating-point tensors have a shape and no data, so that even a model that does
not fit can run. Integers and booleans that come from the program itself, such as tokens and masks, stay real, and so
does everything computed from them alone, because programs branch on them. Results of tensors without data have no data
either, except single numbers, which are 1: losses that are printed, norms that are compared.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map_only

_NOT_KNOWN = (DataDependentOutputException, DynamicOutputShapeException)


def without_data() -> WithoutData:
    """Begins the mode in this thread, and returns it."""
    FakeTensor.numpy = as_array  # type: ignore[method-assign]
    mode = WithoutData()
    mode.__enter__()
    return mode


class WithoutData(TorchDispatchMode):
    """Runs each op for real or for its shapes."""

    def __init__(self) -> None:
        super().__init__()
        self.fake = FakeTensorMode(allow_non_fake_inputs=True)
        self.memo = self.fake.fake_tensor_converter.meta_converter.tensor_memo

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = [one for one in tree_leaves((args, kwargs)) if isinstance(one, torch.Tensor)]
        if any(isinstance(one, FakeTensor) for one in tensors):
            return self.of_fakes(func, args, kwargs, tensors)
        if self.stays_real(func, kwargs, tensors):
            return func(*args, **kwargs)
        try:
            made = self.shapes(func, args, kwargs)
        except _NOT_KNOWN:
            return func(*args, **kwargs)
        numbers = (one for one in tree_leaves(made) if isinstance(one, torch.Tensor) and one.dim())
        return made if any(map(is_number, numbers)) else func(*args, **kwargs)

    def stays_real(self, func: Any, kwargs: Any, tensors: list[Any]) -> bool:
        """Whether an op runs for real: it needs no memory, or changes a real tensor."""
        device = kwargs.get("device")
        if any(one.device.type == "meta" for one in tensors) or str(device or "").startswith("meta"):
            return True
        return bool(tensors) and (func._schema.is_mutable or not any(one.dim() for one in tensors))

    def of_fakes(self, func: Any, args: Any, kwargs: Any, tensors: list[Any]) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return single(tensors[0])
        if func is torch.ops.aten.index.Tensor:
            args = (args[0], positions(args[1]))
        try:
            made = self.shapes(func, args, kwargs)
        except _NOT_KNOWN as error:
            raise RuntimeError(f"the result of {func} depends on computed values, and these have no data") from error
        if func._schema.is_mutable:  # what was real stays as it was
            changed = args[0] if args else None
            return changed if isinstance(made, FakeTensor) and isinstance(changed, torch.Tensor) else made
        fill = torch.zeros if func.overloadpacket is torch.ops.aten.any else torch.ones
        return tree_map_only(FakeTensor, lambda one: one if one.dim() else fill((), dtype=one.dtype), made)

    def shapes(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What an op returns, without data."""
        with self.fake:
            made = func(*args, **kwargs)
        self.memo.clear()  # modules cannot exchange parameters that something refers to
        return made


def is_number(one: Any) -> bool:
    return one.is_floating_point() or one.is_complex()


def single(one: Any) -> Any:
    """The value of a single-element tensor without data: 1, or False for booleans, so that no `isinf` or end flag is
    set."""
    if one.dtype == torch.bool:
        return False
    return 1.0 if one.is_floating_point() else 1


def positions(indices: Any) -> list[Any]:
    """Indices, with real masks replaced by the positions that they select."""
    found: list[Any] = []
    for one in indices:
        mask = isinstance(one, torch.Tensor) and one.dtype == torch.bool and not isinstance(one, FakeTensor)
        found += one.nonzero().unbind(1) if mask else [one]
    return found


def as_array(self: Any, *_: Any, **__: Any) -> Any:
    with _disable_current_modes():
        return torch.ones(self.shape, dtype=torch.float32 if is_number(self) else self.dtype).numpy()
