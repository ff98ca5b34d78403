"""Keeps what goes wrong in gpuprof away from the training, and what goes wrong in the training away from gpuprof."""

from __future__ import annotations

import functools
import signal
from collections.abc import Callable
from typing import Any

Callback = Callable[..., Any]


def guarded(method: Callback) -> Callback:
    """Wraps a method of a session that the training calls, so that none of its errors reaches the training.
    An exception that a signal handler of the program raised while the method ran does: the program must see it.
    """

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any) -> Any:
        if self.ended:
            return None
        try:
            return method(self, *args)
        except Exception as error:
            failed(self, error)
            return None

    # torch.compile does not trace it: it runs as plain Python, outside the graph.
    wrapper._torchdynamo_disable = True  # type: ignore[attr-defined]
    return wrapper


def failed(owner: Any, error: Exception) -> None:
    """Called while an error of ours is handled: ends the recording; raises it if the program must see it."""
    if came_from_signal_handler(error):
        owner.close()
        raise error
    owner.fail(error)


def came_from_signal_handler(error: BaseException) -> bool:
    """Whether a signal handler that the program installed raised this."""
    codes = set()
    for number in signal.valid_signals():
        handler = signal.getsignal(number)
        codes.add(getattr(getattr(handler, "__func__", handler), "__code__", None))
    codes.discard(None)
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code in codes:
            return True
        traceback = traceback.tb_next
    return False
