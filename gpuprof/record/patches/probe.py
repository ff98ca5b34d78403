"""A larger or smaller batch or sequence length for `gpuprof fit`, and the shapes and memory that result.
Not a fix: it changes the training. It changes the first of these that the program has: its parsed command line, its
trainer's arguments, its DataLoader's batch size.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import sys
from collections.abc import Callable
from typing import Any

from ..model.trainer_arguments import BATCH
from .context import Context, Patch, Proof, has_gpu, wrap

PATCH = Patch(
    name="probe",
    does="a batch and a length that are multiples of the program's own",
    line="",
    cannot="a batch that is in no flag, trainer's argument or DataLoader",
    default="1x1",
    values="factor of the batch x factor of the length, and fake: without data",
)
FAKE = "fake"
"""Suffix of the factors: tensors have no data."""
BATCHES = (BATCH, "micro_batch_size", "train_batch_size", "batch_size")
LENGTHS = ("max_length", "max_seq_length", "max_seq_len", "seq_length", "seq_len", "block_size", "context_length")


class Probe:
    """The changes and observations of one process."""

    def __init__(self, context: Context) -> None:
        factors, _, how = context.value.partition(" ")
        batch, _, length = factors.partition("x")
        self.fake = how == FAKE
        self.factors = {"batch": float(batch), "length": float(length)}
        self.context = context
        self.by: dict[str, str] = {}
        """What was changed → where."""
        self.shape: tuple[int, int] | None = None
        """Samples and tokens of the largest pass."""
        self.counter: Any = None

    # -- changes

    def scale(self, kind: str, value: Any, where: str) -> Any:
        """The value times its factor, if nothing else was changed for this kind; None to leave it."""
        if kind in self.by or isinstance(value, bool) or not isinstance(value, int) or value < 1:
            return None
        self.by[kind] = where
        return max(round(value * self.factors[kind]), 1)

    def parsed(self, namespace: Any) -> None:
        """The program has parsed its command line."""
        for kind, names in (("batch", BATCHES), ("length", LENGTHS)):
            for name in names:
                new = self.scale(kind, getattr(namespace, name, None), f"--{name}")
                if new is not None:
                    setattr(namespace, name, new)

    def chosen(self, arguments: Any) -> dict[str, Any]:
        """A trainer's arguments were made."""
        found = {}
        for kind, names in (("batch", BATCHES[:1]), ("length", LENGTHS)):
            for name in names:
                new = self.scale(kind, getattr(arguments, name, None), f"{type(arguments).__name__}.{name}")
                if new is not None:
                    found[name] = new
        return found

    def watch_argparse(self, module: Any) -> None:
        def make(parse: Any) -> Any:
            def wrapper(parser: Any, *args: Any, **kwargs: Any) -> Any:
                found = parse(parser, *args, **kwargs)
                words = args[0] if args else kwargs.get("args")
                if words is None or list(words) == sys.argv[1:]:
                    self.parsed(found[0])
                return found

            return wrapper

        wrap(module.ArgumentParser, "parse_known_args", make)

    def watch_loaders(self, module: Any) -> None:
        def make(init: Any) -> Any:
            @functools.wraps(init)
            def wrapper(loader: Any, dataset: Any, batch_size: Any = 1, *args: Any, **kwargs: Any) -> None:
                if self.context.hub.arguments is None and kwargs.get("batch_sampler") is None:
                    new = self.scale("batch", batch_size, "DataLoader(batch_size)")
                    batch_size = batch_size if new is None else new
                init(loader, dataset, batch_size, *args, **kwargs)
                if self.fake:  # tensors without data cannot come from other processes
                    loader.num_workers, loader.prefetch_factor, loader.timeout = 0, None, 0
                    loader.__dict__["persistent_workers"] = False

            return wrapper

        wrap(module.DataLoader, "__init__", make)

    # -- what is seen

    def watch_passes(self, torch: Any) -> None:
        """Watches the inputs of embeddings; without a GPU also counts the bytes of tensors."""

        def enters(module: Any, inputs: Any) -> None:
            if isinstance(module, torch.nn.Embedding) and module.training and inputs and inputs[0].dim() == 2:
                shape = tuple(int(side) for side in inputs[0].shape)
                if self.shape is None or shape[0] * shape[1] > self.shape[0] * self.shape[1]:
                    self.shape = shape[0], shape[1]

        torch.nn.modules.module.register_module_forward_pre_hook(enters)
        if self.fake:
            from ..base.fake_tensors import without_data  # which imports torch

            without_data()
        if self.fake or not has_gpu():
            self.counter = counter(torch)

    def watch_optimizers(self, module: Any) -> None:
        """Restarts the peak at the first steps, so that it does not include loading the model."""
        seen: list[bool] = []

        def after(*_: Any) -> None:
            if self.counter is not None and not seen:
                seen.append(True)
                self.counter.restart()

        after._torchdynamo_disable = True  # type: ignore[attr-defined]
        module.register_optimizer_step_post_hook(after)

    def proof(self) -> Proof:
        found = {"by": self.by, "shape": self.shape, "tensors": None if self.counter is None else self.counter.peak}
        asked = [kind for kind, factor in self.factors.items() if factor != 1]
        missing = [kind for kind in asked if kind not in self.by]
        return Proof(not missing, json.dumps(found))


def apply(context: Context) -> Callable[[], Proof]:
    """Hooks in everywhere a program may set its batch size and length."""
    probe = Probe(context)
    if probe.fake:
        # No GPU is used, and weights are loaded in this thread, in which tensors have no data.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    context.on_import("argparse", probe.watch_argparse)
    context.hub.set_arguments(probe.chosen)
    context.on_import("torch.utils.data.dataloader", probe.watch_loaders)
    context.on_import("torch", probe.watch_passes)
    context.on_import("torch.optim.optimizer", probe.watch_optimizers)
    return probe.proof


def counter(torch: Any) -> Any:
    """Counts the bytes of all tensors that are alive, from now on, in this thread."""
    import weakref

    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves
    from torch.utils.weak import WeakIdKeyDictionary

    class Counter(TorchDispatchMode):
        """The bytes of storages, each once."""

        def __init__(self) -> None:
            super().__init__()
            self.alive = WeakIdKeyDictionary()
            self.bytes = self.peak = 0

        def restart(self) -> None:
            """Restarts the peak, including all existing weights: another thread may have loaded them."""
            for module in gc.get_objects():
                if issubclass(type(module), torch.nn.Module):
                    for one in (*module._parameters.values(), *module._buffers.values()):
                        if one is not None and one.device.type != "meta":
                            with contextlib.suppress(RuntimeError, NotImplementedError):  # sparse: it has no storage
                                self.add(one.untyped_storage())
            self.peak = self.bytes

        def freed(self, size: int) -> None:
            self.bytes -= size

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            made = func(*args, **(kwargs or {}))
            for one in tree_leaves(made):
                if isinstance(one, torch.Tensor):
                    self.add(one.untyped_storage())
            return made

        def add(self, storage: Any) -> None:
            if storage in self.alive:
                return
            size = storage.nbytes()
            self.alive[storage] = size
            self.bytes += size
            self.peak = max(self.peak, self.bytes)
            weakref.finalize(storage, self.freed, size).atexit = False

    found = Counter()
    found.__enter__()
    return found
