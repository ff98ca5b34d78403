"""Facts about the training program: its trainer, autocast, flags, and warnings about slow paths."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable
from typing import Any

from .flags import flags
from .performance_warnings import warned
from .trainer_arguments import describe_arguments, describe_class

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Levels


_MOST_FRAMES: Assumed[Levels] = 24
"""Calls between a trainer and its callbacks, at most."""
_FUNCTION = re.compile(r"[A-Za-z]\w*_\w+")
"""A function's name in a warning's text."""


class ProgramRecorder:
    """Collects what is known about the training program."""

    def __init__(self) -> None:
        self.autocast: str | None = None
        """Autocast's dtype in the model's forward pass, or off; None until a forward pass was seen."""
        self._trainer: dict[str, Any] | None = None
        self._arguments: dict[str, Any] | None = None
        self._reference: list[dict[str, Any]] = []

    def meet_trainer(self, args: Any) -> None:
        """A transformers.Trainer, whose callback is being called, has these arguments."""
        self._arguments = describe_arguments(args)
        trainer = _trainer_above(args)
        self._trainer = None if trainer is None else describe_class(type(trainer))

    def meet_model(self, model: Any) -> None:
        """The model that is trained: it may know its trainer (Lightning), and some of its modules compute slowly."""
        if self._trainer is None:
            trainer = _lightning_trainer(model)
            self._trainer = None if trainer is None else describe_class(type(trainer))
        counts: dict[tuple[str, str], int] = {}
        for module, functions in reference_modules(model):
            for function in functions:
                key = type(module).__name__, function
                counts[key] = counts.get(key, 0) + 1
        self._reference = [{"class": name, "function": f, "modules": n} for (name, f), n in counts.items()]

    def facts(self) -> dict[str, Any] | None:
        """As rank<N>.json has it; None where it is not known."""
        try:
            return {
                "trainer": self._trainer,
                "arguments": self._arguments,
                "autocast": self.autocast,
                "switches": switches_on(),
                "flags": flags.facts(),
                "warnings": warned.facts(),
                "reference": self._reference,
            }
        except Exception:  # optional information
            return None


def switches_on() -> list[str]:
    """The switches of torch that are on and change how fast a step is: anomaly, deterministic, cudnn_benchmark,
    cudnn_deterministic, and no_flash_sdp, no_mem_efficient_sdp, no_cudnn_sdp for kernels of attention that are switched
    off."""
    torch = sys.modules["torch"]
    cuda = torch.backends.cuda
    on = {
        "anomaly": torch.is_anomaly_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "no_flash_sdp": not cuda.flash_sdp_enabled(),
        "no_mem_efficient_sdp": not cuda.mem_efficient_sdp_enabled(),
        "no_cudnn_sdp": hasattr(cuda, "cudnn_sdp_enabled") and not cuda.cudnn_sdp_enabled(),
    }
    return [name for name, is_on in on.items() if is_on]


def _trainer_above(args: Any) -> Any:
    """The trainer with these arguments, found as `self` of a method further up the stack."""
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame is None:
            return None
        # Reading f_locals keeps a frame's locals alive as long as the frame, so only frames of methods are read.
        found = frame.f_locals.get("self") if frame.f_code.co_varnames[:1] == ("self",) else None
        if getattr(found, "__dict__", {}).get("args") is args and hasattr(type(found), "train"):
            return found
        frame = frame.f_back
    return None


def _lightning_trainer(model: Any) -> Any:
    """The trainer of a LightningModule, if the model is one."""
    for module in (model, getattr(model, "module", None), getattr(model, "_orig_mod", None)):
        if module is not None and any(base.__name__ == "LightningModule" for base in type(module).__mro__):
            return getattr(module, "_trainer", None)
    return None


def library_of(model: Any) -> str:
    """The package that a model's class comes from; that of transformers' or diffusers' base class where it has one."""
    for base in type(model).__mro__:
        top = base.__module__.partition(".")[0]
        if top in ("transformers", "diffusers", "sentence_transformers", "timm"):
            return top
    return type(model).__module__.partition(".")[0]


def reference_modules(model: Any) -> list[tuple[Any, tuple[str, ...]]]:
    """(module, functions): modules whose code calls functions that a library warned are slow."""
    names = dict.fromkeys(name for text in warned.texts for name in _FUNCTION.findall(text))
    if not names:
        return []
    of_class: dict[type, tuple[str, ...]] = {}
    found = []
    for module in model.modules():
        kind = type(module)
        if kind not in of_class:
            called = _called_names(kind)
            of_class[kind] = tuple(name for name in names if name in called or f"torch_{name}" in called)
        if of_class[kind]:
            found.append((module, of_class[kind]))
    return found


def _called_names(kind: type) -> set[str]:
    """Names that the methods of a class itself use."""
    methods = [inspect.unwrap(method) for method in vars(kind).values() if callable(method)]
    return {name for method in methods for name in getattr(getattr(method, "__code__", None), "co_names", ())}


def watch_autocast(model: Any, on_seen: Callable[[str], None]) -> list[Any]:
    """Reports once which autocast is on where the model computes; returns handles, whose `remove` ends it.
    The hook is on inner modules: accelerate enables autocast within the model's own call, after the model's hooks.
    """
    from ..base.hooks import Hook

    leaf = next((m for m in model.modules() if not m._modules and m._parameters), None)
    if leaf is None:
        return []
    handles: list[Any] = []

    def look(*_: Any) -> None:
        if leaf.training and handles:
            handles.pop().remove()
            on_seen(autocast_type(next((p for p in leaf.parameters()), None)))

    try:
        handles.append(leaf.register_forward_pre_hook(Hook(look)))
    except Exception:  # a module that takes no hooks, such as a scripted one
        pass
    return handles


def autocast_type(parameter: Any) -> str:
    """The dtype that autocast uses on the device of a parameter; `off` if it is not enabled."""
    import torch

    device = "cpu" if parameter is None else parameter.device.type
    if not torch.is_autocast_enabled(device):
        return "off"
    return str(torch.get_autocast_dtype(device)).removeprefix("torch.")
