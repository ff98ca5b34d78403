"""Keeps torch.compile from compiling gpuprof's own functions.
After a graph break torch.compile tries to compile every Python function that is called, ours included: that takes time,
and it would recompile for every new state that it finds in them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def run_as_is(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function, marked not to be compiled. Functions that it calls may be: see `without_compiling`."""
    try:
        from torch._C._dynamo import eval_frame

        code: Any = function.__code__
        if hasattr(eval_frame, "set_code_exec_strategy"):
            action = eval_frame._FrameAction
            eval_frame.set_code_exec_strategy(code, eval_frame._FrameExecStrategy(action.SKIP, action.DEFAULT))
        else:  # torch before 2.7
            eval_frame.skip_code(code)  # pyright: ignore[reportAttributeAccessIssue]
    except (ImportError, AttributeError, TypeError):  # it is compiled, and still does the same
        pass
    return function


def without_compiling(call: Callable[[], None]) -> Callable[[], None]:
    """The call with compilation disabled for everything it calls."""
    try:
        from torch._C._dynamo.eval_frame import set_eval_frame
    except ImportError:
        return call

    def wrapper() -> None:
        before = set_eval_frame(None)  # pyright: ignore[reportArgumentType]
        try:
            call()
        finally:
            set_eval_frame(before)

    return run_as_is(wrapper)
