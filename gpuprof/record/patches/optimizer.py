"""torch's optimizers update all parameters in few kernels."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof, wrap

PATCH = Patch(
    name="optimizer",
    does="torch's Adam, AdamW, SGD and Adagrad run fused (or foreach)",
    line="torch.optim.AdamW(..., {value}=True)",
    cannot="optimizers that are not torch's own, such as those of bitsandbytes",
    default="fused",
    values="fused or foreach",
    check=lambda value: value in ("fused", "foreach"),
)
_CLASSES = {"adam": "Adam", "adamw": "AdamW", "sgd": "SGD", "adagrad": "Adagrad"}
_OTHER = {"fused": "foreach", "foreach": "fused"}


def apply(context: Context) -> Callable[[], Proof]:
    """Changes the arguments of an optimizer as it is created; if it refuses them, it gets its own back."""
    wanted = context.value
    changed: list[Any] = []
    already: list[str] = []
    depth = [0]
    stepped: set[int] = set()

    def took_step(optimizer: Any, *_: Any) -> None:
        stepped.add(id(optimizer))

    took_step._torchdynamo_disable = True  # type: ignore[attr-defined]

    def patch(module: Any, name: str) -> None:
        def make(init: Any) -> Any:
            signature = inspect.signature(init)

            def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
                if depth[0]:  # AdamW calls Adam
                    init(self, *args, **kwargs)
                    return
                depth[0] += 1
                try:
                    begin(self, args, kwargs)
                finally:
                    depth[0] -= 1

            def begin(self: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
                given = dict(signature.bind(self, *args, **kwargs).arguments)
                given.pop("self", None)
                if given.get(wanted):
                    already.append(type(self).__name__)
                    init(self, *args, **kwargs)
                    return
                # Parameters may be given as a generator, which only the first attempt would see.
                given["params"] = given["params"] if isinstance(given["params"], (list, tuple)) else [*given["params"]]
                try:
                    init(self, **given | {wanted: True, _OTHER[wanted]: False})
                    changed.append(self)
                    self.register_step_post_hook(took_step)
                except (RuntimeError, ValueError) as error:
                    context.refuse(str(error))
                    init(self, **given)

            return wrapper

        wrap(getattr(module, name), "__init__", make)

    for file, name in _CLASSES.items():
        context.on_import(f"torch.optim.{file}", lambda module, name=name: patch(module, name))

    def proof() -> Proof:
        used = [one for one in changed if id(one) in stepped and all(group.get(wanted) for group in one.param_groups)]
        if used:
            return Proof(True, f"{type(used[-1]).__name__}({wanted}=True) took the steps")
        if already:
            return Proof(False, f"{already[0]} is {wanted} already")
        return Proof(False, context.refusal or "no Adam, AdamW, SGD or Adagrad of torch took a step")

    return proof
