"""Fills the types that say what a run's files hold. The files cannot be trusted: an invalid value counts as missing.

The fields of a dataclass or msgspec struct say what an object in a file holds: names, types, and limits in the types.
msgspec converts an object as a whole or refuses it, so one damaged number, or a key that a later version writes in
another way, would cost the run all that a file says. Here each value is converted on its own:

- A field without a valid value gets its default, or None where its type has that.
- An object without a valid value for any other field is invalid itself.
- A list (`tuple[X, ...]`) or a mapping loses its invalid items; other types are taken whole or not at all.
- A number is rounded where its type is `int`. A text, list or mapping is cut to its `max_length`.
- A function among the annotations of a type is given the value first, whatever it is.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from functools import cache, partial
from typing import Annotated, Any, TypeVar, Union

import msgspec
from msgspec import Meta, ValidationError, convert

from gpuprof.tracefile.trace import LATEST_NS
from gpuprof.units import Assumed, Characters, Convention, Entries, Levels, Values

LARGEST_NUMBER: Assumed[Values] = 2**53
"""Larger numbers are damage: as nanoseconds this is 104 days, as bytes 9 PB."""
_LARGEST_INDEX: Convention[Values] = 2**31 - 1
_DEEPEST: Assumed[Levels] = 6
_MOST_ITEMS: Assumed[Entries] = 1000
_LONGEST_TEXT: Assumed[Characters] = 2000
_LONGEST_LINE: Convention[Characters] = 300

Made = TypeVar("Made")
_Read = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class Key:
    """Where the value of a field stands, if not under the field's name: the keys that lead to it, the outermost first.
    Without any, it is the object that has the field."""

    names: tuple[str, ...]

    def __init__(self, *names: str) -> None:
        object.__setattr__(self, "names", names)

    def find(self, value: Any) -> Any:
        """The value in an object; None where it is missing."""
        for name in self.names:
            value = value.get(name) if isinstance(value, dict) else None
        return value


def one_line(value: Any) -> Any:
    """A text without line breaks and other runs of white space."""
    return " ".join(value.split()) if isinstance(value, str) else value


def counts(value: Any, depth: int = 0) -> Any:
    """A description whose numbers are counts, so negative ones are unknown; bounded in size."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value if 0 <= value < LATEST_NS else None  # None for NaN
    if depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        first = list(value.items())[:_MOST_ITEMS]
        return {key[:_LONGEST_TEXT]: counts(item, depth + 1) for key, item in first}
    return [counts(item, depth + 1) for item in value[:_MOST_ITEMS]]


Whole = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
Positive = Annotated[int, Meta(ge=1, le=LARGEST_NUMBER)]
Index = Annotated[int, Meta(ge=0, le=_LARGEST_INDEX)]
Moment = Annotated[int, Meta(ge=0, le=LATEST_NS)]
Text = Annotated[str, Meta(min_length=1, max_length=_LONGEST_TEXT)]
Line = Annotated[str, one_line, Meta(min_length=1, max_length=_LONGEST_LINE)]
Counts = Annotated[dict[str, Any], counts]


def read(kind: type[Made], value: Any) -> Made | None:
    """A JSON value as this type; None where it is no such value."""
    try:
        return _reader(kind)(value)
    except ValueError:
        return None


def read_all(kind: type[Made], values: typing.Iterable[Any]) -> list[Made]:
    """Those of some JSON values that are of this type."""
    return [found for value in values if (found := read(kind, value)) is not None]


@cache
def _reader(hint: Any) -> _Read:
    """Makes a value of this type of a JSON value. Raises ValueError, for half a letter UnicodeEncodeError."""
    base, notes = (hint.__origin__, hint.__metadata__) if typing.get_origin(hint) is Annotated else (hint, ())
    limits = next((note for note in notes if isinstance(note, Meta)), Meta())
    made = _of_type(base, hint, limits)
    for prepare in notes:
        if isinstance(prepare, types.FunctionType):
            made = partial(_prepared, prepare, made)
    return made


def _of_type(base: Any, hint: Any, limits: Meta) -> _Read:
    origin, inside = typing.get_origin(base), typing.get_args(base)
    if origin in (Union, types.UnionType):
        others = [one for one in inside if one is not type(None)]
        return _reader(others[0]) if len(others) == 1 else partial(convert, type=hint)
    if origin is tuple and inside[1:] == (...,):
        return partial(_items, _reader(inside[0]), limits)
    if origin is dict and inside[1] is not Any:
        return partial(_entries, _reader(inside[0]), _reader(inside[1]), limits)
    if dataclasses.is_dataclass(base):
        return partial(_object, base)
    if isinstance(base, type) and issubclass(base, msgspec.Struct):
        return partial(_struct, base)
    return partial({int: _whole, str: _text}.get(base, _other), hint, limits)


def _prepared(prepare: _Read, made: _Read, value: Any) -> Any:
    return made(prepare(value))


def _other(hint: Any, limits: Meta, value: Any) -> Any:
    return convert(value, hint)


def _whole(hint: Any, limits: Meta, value: Any) -> Any:
    return convert(round(value) if isinstance(value, float) and math.isfinite(value) else value, hint)


def _text(hint: Any, limits: Meta, value: Any) -> Any:
    return convert(value[: limits.max_length] if isinstance(value, str) else value, hint)


def _items(made: _Read, limits: Meta, values: Any) -> tuple[Any, ...]:
    if not isinstance(values, list):
        raise ValidationError("no list")
    found = []
    for value in values[: limits.max_length or _MOST_ITEMS]:
        try:
            found.append(made(value))
        except ValueError:
            continue
    if len(found) < (limits.min_length or 0):
        raise ValidationError("too few items")
    return tuple(found)


def _entries(name: _Read, made: _Read, limits: Meta, values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise ValidationError("no object")
    found = {}
    for key, value in list(values.items())[: limits.max_length or _MOST_ITEMS]:
        try:
            found[name(key)] = made(value)
        except ValueError:
            continue
    return found


def _struct(kind: Any, value: Any) -> Any:
    """Sound objects, of which files of lines hold many, are converted as a whole."""
    try:
        return convert(value, kind)
    except ValueError:
        return _object(kind, value)


def _object(kind: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValidationError("no object")
    found = {}
    for name, (key, made, instead) in _fields(kind).items():
        try:
            found[name] = made(key.find(value))
        except ValueError:
            if instead is _REQUIRED:
                raise
            if instead is not _DEFAULT:
                found[name] = instead
    return kind(**found)


_REQUIRED, _DEFAULT = object(), object()


@cache
def _fields(kind: Any) -> Mapping[str, tuple[Key, _Read, Any]]:
    """Field → where its value stands, how it is read, and what it is otherwise: _DEFAULT, None, or _REQUIRED."""
    hints = typing.get_type_hints(kind, include_extras=True)
    if dataclasses.is_dataclass(kind):
        required = {one.name: one.default is one.default_factory is MISSING for one in dataclasses.fields(kind)}
    else:
        required = {one.name: one.required for one in msgspec.structs.fields(kind)}
    found = {}
    for name, is_required in required.items():
        hint = hints[name]
        notes = hint.__metadata__ if typing.get_origin(hint) is Annotated else ()
        key = next((note for note in notes if isinstance(note, Key)), Key(name))
        plain = hint.__origin__ if notes else hint
        instead = _REQUIRED if type(None) not in typing.get_args(plain) else None
        instead = instead if is_required else _DEFAULT
        found[name] = key, _reader(hint), instead
    return found
