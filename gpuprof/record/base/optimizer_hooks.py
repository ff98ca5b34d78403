"""torch's global hooks before and after the step of every optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

Counter = Callable[[Any, Any, Any], Any]
"""Called like a hook, with an optimizer that has done its step, its positional arguments and its keywords."""
NOTHING: Any = ().__init__
"""Does nothing, in C: a Python function that is called once a step takes some microseconds."""


class OptimizerHooks:
    """The two hooks of this process. While steps are only counted, a counter takes the place of both.

    module: torch.optim.optimizer. before, after: what is called otherwise.
    """

    def __init__(self, module: Any, before: Counter, after: Counter) -> None:
        for hook in (before, after):
            # torch.compile does not trace it: it runs as plain Python, outside the graph.
            hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        self._handles = module.register_optimizer_step_pre_hook(before), module.register_optimizer_step_post_hook(after)
        self._usual = before, after

    def count_by(self, counter: Counter | None, before: Counter = NOTHING) -> None:
        """From now on `before` and `counter` are called in place of both hooks; counter None: both hooks are called
        again. May be called on any thread: it replaces values of dictionaries, which is safe while others iterate over
        them."""
        wanted = self._usual if counter is None else (before, counter)
        for hook in wanted:
            if hook is not NOTHING:
                hook._torchdynamo_disable = True  # type: ignore[attr-defined]
        for handle, hook in zip(self._handles, wanted, strict=True):
            hooks = handle.hooks_dict_ref()
            if hooks is not None and handle.id in hooks:
                hooks[handle.id] = hook

    def remove(self) -> None:
        """Removes both."""
        for handle in self._handles:
            with contextlib.suppress(Exception):
                handle.remove()
