"""What follows from a trace, a timeline or a graph is derived once, however often it is asked for."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

Of = TypeVar("Of")
Others = ParamSpec("Others")
Found = TypeVar("Found")


def remembered(derive: Callable[Concatenate[Of, Others], Found]) -> Callable[Concatenate[Of, Others], Found]:
    """Keeps what a function of an object with a `memo` returns there; a copy made by `dataclasses.replace` starts
    without.

    Further arguments must follow from the object: they are looked at the first time only. An array that is kept is
    read-only.
    """
    name = f"{derive.__module__}.{derive.__qualname__}"

    @functools.wraps(derive)
    def once(of: Of, /, *others: Others.args, **named: Others.kwargs) -> Found:
        memo: dict[str, Any] = of.memo  # type: ignore[attr-defined]
        if name not in memo:
            found = derive(of, *others, **named)
            if isinstance(found, np.ndarray):
                found.flags.writeable = False
            memo[name] = found
        return memo[name]

    return once
