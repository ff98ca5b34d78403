"""Waits, in a process of a run, until the training's own libraries are imported, and only then hooks into them.

Nothing is imported on the target's behalf: the order of its imports matters to some (unsloth must come before
transformers), and a process that never trains should never notice.
"""

from __future__ import annotations

import os
import sys

# Every Python of a run loads this file; importing `typing` alone would take longer than everything done here.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def arm(run: str, notes_writes: bool = True) -> None:
    """Lets the imports of this process report when a library that can be hooked has arrived.

    notes_writes: whether to note which files the program changes; not where a scratch folder does that already.
    """
    if notes_writes:
        from ..files.written import Written

        try:
            Written(run).watch()
        except OSError:  # for example, the working directory is gone: the run is recorded anyway
            pass

    def optimizers(module: Any) -> None:
        from ..base.import_time import imported
        from ..model.performance_warnings import warned
        from .attach import holder

        imported.mark()
        holder.record_into(run)
        holder.attach_optimizers(module)
        warned.listen()

    def loader(module: Any) -> None:
        from ..model.loader_meter import meter

        meter.watch(module)

    def sampler(module: Any) -> None:
        from ..model.samples import sampled

        sampled.watch(module)

    def trainer(module: Any) -> None:
        from ..base.import_time import imported
        from .attach import holder

        imported.mark()
        holder.attach_trainer(module)

    def dynamo(module: Any) -> None:
        from ..model.compiler import keep_more

        keep_more(module)

    def argparse(module: Any) -> None:
        from ..model.flags import flags

        flags.watch_argparse(module)

    def click(module: Any) -> None:
        from ..model.flags import flags

        flags.watch_click(module)

    wanted = {
        "argparse": argparse,
        "click.core": click,
        "torch._dynamo.utils": dynamo,
        "torch.optim.optimizer": optimizers,
        "torch.utils.data._utils.fetch": loader,
        "torch.utils.data.dataloader": sampler,
        "transformers.trainer": trainer,
    }
    if "argparse" in sys.modules:  # by a .pth file of the environment
        argparse(sys.modules["argparse"])
        del wanted["argparse"]
    sys.meta_path.insert(0, ImportWatch(wanted, run))


class ImportWatch:
    """An import hook that finds nothing itself; it calls back once a module of a given name has been executed."""

    def __init__(self, wanted: dict[str, Callable[[Any], None]], run: str) -> None:
        self._wanted, self._run = wanted, run

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        # Popped first: another import hook that looks for the module on our behalf may call us again.
        callback = self._wanted.pop(name, None)
        if callback is None:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find else None
            if spec is not None:
                if hasattr(spec.loader, "exec_module"):
                    spec.loader = _Afterwards(spec.loader, callback, self._run)
                return spec
        self._wanted[name] = callback
        return None


class _Afterwards:
    """A loader that does what the real one does, then calls back; it leaves no trace in the module."""

    def __init__(self, loader: Any, callback: Callable[[Any], None], run: str) -> None:
        self._loader, self._callback, self._run = loader, callback, run

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        spec = module.__spec__
        spec.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        try:
            self._callback(module)
        except Exception as error:  # whatever it is, the training continues
            if not self._run:  # armed for `gpuprof attach`: there is no log yet
                return
            from pathlib import Path

            from ...runfile import log

            log(Path(self._run), f"process {os.getpid()} is not hooked into {module.__name__}: {error!r}")
