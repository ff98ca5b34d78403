"""torch's optimizers drop gradients in `zero_grad`. Runs inside the training: standard library and its torch only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

# gpuprof loads this file as if it were one of its own patches.
from .context import Context, Patch, Proof, wrap  # type: ignore[import-not-found]

PATCH = Patch(
    name="zeroed_gradients",
    does="Optimizer.zero_grad drops the gradients instead of filling them with zeros",
    line="optimizer.zero_grad(set_to_none=True)",
    cannot="a program that zeroes its gradients itself, or reads them after zero_grad",
)


def apply(context: Context) -> Callable[[], Proof]:
    """Replaces the argument of `zero_grad`, whoever calls it."""
    changed, called = [0], [0]

    def patch(module: Any) -> None:
        def make(original: Any) -> Any:
            def zero_grad(self: Any, set_to_none: bool = True) -> None:
                called[0] += 1
                changed[0] += not set_to_none
                original(self, set_to_none=True)

            return zero_grad

        wrap(module.Optimizer, "zero_grad", make)

    context.on_import("torch.optim.optimizer", patch)

    def proof() -> Proof:
        if not changed[0]:
            return Proof(False, "the program drops its gradients already" if called[0] else "zero_grad was not called")
        return Proof(True, f"{changed[0]} calls of zero_grad dropped the gradients")

    return proof
