"""Frozen dataclasses from plain JSON, by their type hints."""

from __future__ import annotations

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, TypeVar

Made = TypeVar("Made")


class NotOfType(ValueError):
    """A value does not have its type; the text says which value, and where."""


def typed(kind: type[Made], value: Any, names: Mapping[str, Any], where: str = "") -> Made:
    """A dataclass made from a JSON object; `names`: types in its hints that its module does not import.

    Unknown keys are ignored: newer versions write them. Missing keys get the field's default, or None if the type
    allows it: older versions did not write them. Raises NotOfType.
    """
    return _value(kind, value, _TypeNames(names), where or kind.__name__)


class _TypeNames(dict):
    """Names of types, hashed by identity for the cache."""

    def __hash__(self) -> int:  # type: ignore[override]
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other


def _value(hint: Any, value: Any, names: _TypeNames, where: str) -> Any:
    if hint is Any:
        return value
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _one_of(inside, value, names, where)
    if origin is typing.Literal:
        return _plain(str, value, where) if all(isinstance(one, str) for one in inside) else value
    if origin is tuple:
        if not isinstance(value, list):
            raise NotOfType(f"{where} is no list")
        if len(inside) == 2 and inside[1] is Ellipsis:
            return tuple(_value(inside[0], one, names, f"{where}[{i}]") for i, one in enumerate(value))
        if len(inside) != len(value):
            raise NotOfType(f"{where} has {len(value)} values, not {len(inside)}")
        return tuple(
            _value(one, of, names, f"{where}[{i}]") for i, (one, of) in enumerate(zip(inside, value, strict=True))
        )
    if origin in (dict, Mapping):
        if not isinstance(value, dict):
            raise NotOfType(f"{where} is no object")
        return {key: _value(inside[1], one, names, f"{where}.{key}") for key, one in value.items()}
    if dataclasses.is_dataclass(hint):
        return _object(hint, value, names, where)  # type: ignore[arg-type]
    return _plain(hint, value, where)


def _one_of(hints: tuple[Any, ...], value: Any, names: _TypeNames, where: str) -> Any:
    """The first type of a union that fits."""
    if value is None and type(None) in hints:
        return None
    wrong = NotOfType(f"{where} is missing")
    for hint in hints:
        if hint is not type(None):
            try:
                return _value(hint, value, names, where)
            except NotOfType as error:
                wrong = error
    raise wrong


def _object(kind: type, value: Any, names: _TypeNames, where: str) -> Any:
    if not isinstance(value, dict):
        raise NotOfType(f"{where} is no object")
    found = {}
    for name, (hint, optional, is_required) in _fields(kind, names).items():
        if name in value:
            found[name] = _value(hint, value[name], names, f"{where}.{name}")
        elif is_required and optional:
            found[name] = None
        elif is_required:
            raise NotOfType(f"{where}.{name} is missing")
    return kind(**found)


@cache
def _fields(kind: Any, names: _TypeNames) -> dict[str, tuple[Any, bool, bool]]:
    """Field → (its type, whether that may be None, whether it has no default); private ones are left out."""
    hints = typing.get_type_hints(kind, vars(sys.modules[kind.__module__]), dict(names))
    found = {}
    for one in dataclasses.fields(kind):
        if not one.name.startswith("_"):
            hint = hints[one.name]
            required = one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
            found[one.name] = hint, type(None) in typing.get_args(hint), required
    return found


def _plain(kind: Any, value: Any, where: str) -> Any:
    """A number, text or boolean; a float may be written as a whole number."""
    is_bool = isinstance(value, bool)
    if kind is float and isinstance(value, (int, float)) and not is_bool:
        return value
    if kind is int and isinstance(value, int) and not is_bool:
        return value
    if kind in (str, bool) and isinstance(value, kind):
        return value
    if isinstance(kind, type) and issubclass(kind, str) and isinstance(value, str):
        return kind(value)
    raise NotOfType(f"{where} is {str(value)[:40]!r}, not of type {getattr(kind, '__name__', kind)}")
