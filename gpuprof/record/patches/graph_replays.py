"""Keeps what the training still needs when CUDA graphs of a compiled model overwrite their memory in a replay."""

from __future__ import annotations

import functools
from typing import Any

_CLONED = "_gpuprof_cloned"


def keep_between_replays(module: Any) -> None:
    """Lets a module that was compiled with CUDA graphs be called several times in a step, as in gradient accumulation.

    Each forward pass begins a replay, which overwrites what an earlier one left. So each pass is preceded by a mark,
    gradients to be accumulated are cloned, and outputs are cloned as they are returned. No mark is made while a
    backward pass is still to come: it would release that pass's activations.
    """
    import torch

    compiled = module._compiled_call_impl
    pending: set[int] = set()
    count = 0

    @functools.wraps(compiled)
    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal count
        if not pending:
            clone_gradients(module)
            torch.compiler.cudagraph_mark_step_begin()
        count += 1
        number = count

        def went_backward(_: Any) -> None:
            pending.discard(number)

        def own(tensor: Any) -> Any:
            copy = tensor.clone()
            if copy.requires_grad:
                pending.add(number)
                copy.register_hook(went_backward)
            return copy

        return _mapped(own, compiled(*args, **kwargs))

    module._compiled_call_impl = call


def clone_gradients(module: Any) -> None:
    """Replaces gradients that a graph wrote by clones, once: later passes add to these in place."""
    for parameter in module.parameters():
        gradient = parameter.grad
        if gradient is not None and not hasattr(gradient, _CLONED):
            parameter.grad = gradient.clone()
            setattr(parameter.grad, _CLONED, True)


def _mapped(own: Any, found: Any) -> Any:
    """The outputs of a model with every tensor replaced, in any container registered with pytree."""
    import torch
    from torch.utils import _pytree

    return _pytree.tree_map_only(torch.Tensor, own, found)
