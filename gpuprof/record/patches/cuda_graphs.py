"""The model is compiled with CUDA graphs: the fix of launch-bound trainings."""

from __future__ import annotations

from collections.abc import Callable

from . import compile as compiling
from .context import Context, Patch, Proof, has_gpu

PATCH = Patch(
    name="cuda_graphs",
    does='torch.compile(mode="reduce-overhead"): kernels are launched together as a CUDA graph',
    line='model.compile(mode="reduce-overhead")\n'
    "torch.compiler.cudagraph_mark_step_begin()  # before each forward pass; clone gradients and outputs kept after it",
    cannot="models whose shapes change from step to step",
    fields=lambda value, known: ({"torch_compile": True, "torch_compile_mode": "reduce-overhead"}, {}),
    group="compiler",
)


def apply(context: Context) -> Callable[[], Proof]:
    """Like `compile`, with CUDA graphs."""
    inner = Context(context.hub, context.name, "reduce-overhead", context.by_flag)
    proof_of_compiling = compiling.apply(inner)

    def proof() -> Proof:
        if not has_gpu():
            return Proof(False, "there is no GPU, so there are no CUDA graphs")
        return proof_of_compiling()

    return proof
