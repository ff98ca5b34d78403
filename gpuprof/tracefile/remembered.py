"""Caches what is derived from a trace, a timeline or a graph."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

Of = TypeVar("Of")
Others = ParamSpec("Others")
Found = TypeVar("Found")


def remembered(derive: Callable[Concatenate[Of, Others], Found]) -> Callable[Concatenate[Of, Others], Found]:
    """Decorator: caches a function's result in its first argument's `memo`; a copy made by `dataclasses.replace` starts
    with an empty one.
    Further arguments must follow from the object: only those of the first call are used. A cached array is read-only.
    """
    name = _name(derive)

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


def is_remembered(derive: Callable[..., object], of: Any) -> bool:
    """Whether the result of such a function is cached for an object."""
    return _name(derive) in of.memo


def remember(derive: Callable[..., Found], of: Any, found: Found) -> None:
    """Caches the result of such a function, a number, that was computed in another way."""
    of.memo[_name(derive)] = found


def _name(derive: Callable[..., object]) -> str:
    return f"{derive.__module__}.{derive.__qualname__}"
