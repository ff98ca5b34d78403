"""Methods of dataclasses that are compiled when they are first called.

A diagnosis imports 340 dataclasses. For each, Python writes and compiles six methods, which takes 0.27 s: 0.4 of the
time of all imports. Most are never called: few of these objects are compared, printed or hashed. From Python 3.13 on
the methods of a class are compiled together, and nothing is changed here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

_OURS = f"{__name__.partition('.')[0]}."


def compile_methods_when_called() -> None:
    """Changes how Python makes dataclasses of gpuprof from now on; only for processes that run nothing
    but the command."""
    create = getattr(dataclasses, "_create_fn", None)
    if create is not None:
        dataclasses._create_fn = partial(_method_made_later, create)  # type: ignore[attr-defined]


def _method_made_later(create: Callable[..., Any], name: str, *code: Any, **options: Any) -> Callable[..., Any]:
    """A method that puts the real one in its place when it is called, and calls that one. At once the real one where
    the class is not gpuprof's: others may read its signature."""
    if not (options.get("globals") or {}).get("__name__", "").startswith(_OURS):
        return create(name, *code, **options)

    @cache
    def made() -> Any:
        found = create(name, *code, **options)
        found.__qualname__ = method.__qualname__
        return found

    def method(self: Any, /, *arguments: Any, **named: Any) -> Any:
        for owner in type(self).__mro__:
            if owner.__dict__.get(name) is method:
                setattr(owner, name, made())
        return made()(self, *arguments, **named)

    method.__name__ = name
    return method
