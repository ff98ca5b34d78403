"""Arms a process: once it trains, its steps are counted, and `gpuprof attach` can record some of them.

Every Python that is armed by its environment loads this file before the program begins, so it imports next to nothing.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

VARIABLE = "GPUPROF_ON_DEMAND"
"""Environment variable that arms the processes of a job."""
_ARMED = "_gpuprof_on_demand"
"""Key in sys.modules: this process is armed, by any copy of this package."""


def is_wanted(value: str | None) -> bool:
    """Whether this value of the variable arms the job."""
    return (value or "").strip().lower() not in ("", "0", "false", "no", "off")


def on_demand() -> None:
    """Lets `gpuprof attach` record steps of this process later, until it ends. Call it before the training begins.

    Until then its steps are counted, which costs a few microseconds a step. A process that takes no optimizer step is
    not listed. Under `gpuprof trace`, and where the environment has armed the process, this does nothing. Never raises.
    """
    try:
        if not os.environ.get("GPUPROF_RUN"):
            arm()
    except Exception as error:
        from ..base.say import say

        say(f"not armed: {error}")


def arm() -> None:
    """Follows the optimizers and trainers of this process, now or once they are imported."""
    if _ARMED in sys.modules or not sys.platform.startswith("linux"):
        return
    sys.modules[_ARMED] = sys.modules[__name__]
    # Without it launch-bound steps would stay slower after a recording; torch reads it when it tears CUPTI down.
    os.environ.setdefault("TEARDOWN_CUPTI", "1")

    def optimizers(module: Any) -> None:
        from .armed import armed

        armed.follow_optimizers(module)

    def trainers(module: Any) -> None:
        from .armed import armed

        armed.follow_trainers(module)

    def loader(module: Any) -> None:
        from ..model.loader_meter import meter

        meter.watch(module)
        meter.only_workers = True

    def argparse(module: Any) -> None:
        from ..model.flags import flags

        flags.watch_argparse(module)

    def click(module: Any) -> None:
        from ..model.flags import flags

        flags.watch_click(module)

    wanted: dict[str, Callable[[Any], None]] = {
        "argparse": argparse,
        "click.core": click,
        "torch.optim.optimizer": optimizers,
        "torch.utils.data._utils.fetch": loader,
        "transformers.trainer": trainers,
    }
    for name in list(wanted):
        if name in sys.modules:
            wanted.pop(name)(sys.modules[name])
    from .arm import ImportWatch

    sys.meta_path.insert(0, ImportWatch(wanted, ""))


def _disarm() -> None:
    """Undoes what `arm` did in the process, except the hooks, which `armed` removes itself."""
    from ..model.flags import flags
    from .arm import ImportWatch

    flags.stop()
    sys.modules.pop(_ARMED, None)
    sys.meta_path[:] = [one for one in sys.meta_path if not isinstance(one, ImportWatch)]


def join() -> None:
    """Arms a training from outside, for one recording: when that is over, the process is left as it was found."""
    if _ARMED in sys.modules:
        return
    arm()
    from .armed import armed

    armed.on_leaving = _disarm
