"""The args of an event in their usual form: each key that fills a field of the row has a value of the field's type.

msgspec checks the types and gives the values in the row's order. Args of any other form are read key by key in
`msgspec_reader`, with the same result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
import numpy as np

from gpuprof.tracefile.kineto import layout
from gpuprof.tracefile.kineto.microseconds import INT64
from gpuprof.tracefile.trace import ABSENT, NO_TEXT

ABSENT32 = np.iinfo(np.int32).min
INT32 = range(-(2**31) + 1, 2**31)
FLOAT32 = float(np.finfo(np.float32).max)

_TYPES = {
    "i8": Annotated[int, msgspec.Meta(ge=INT64.start, le=INT64.stop - 1)],
    "i4": Annotated[int, msgspec.Meta(ge=INT32.start, le=INT32.stop - 1)],
    "f4": Annotated[float, msgspec.Meta(gt=-FLOAT32, lt=FLOAT32)],
}
_THREE: Any = tuple.__class_getitem__((_TYPES["i4"],) * 3)
_UNUSUAL = Literal["\0"]
"""Type of a key that makes args unusual: no value has it."""
_NAMED_LATER = ("memory",)
"""Tables whose events use the later of two names of a key."""


def defaults(table: str) -> dict[str, Any]:
    """The value of every row field that an event does not give."""
    out: dict[str, Any] = {}
    for name, (dtype, *_) in (layout.ROWS[table].fields or {}).items():
        if name in layout.TEXT_FIELDS:
            out[name] = NO_TEXT
        else:
            out[name] = {"i8": ABSENT, "i4": ABSENT32, "f4": float("nan"), "u1": 0}[dtype.str[1:]]
    return out


class UsualArgs:
    """Reads the args of one table's events."""

    def __init__(self, table: str) -> None:
        row, given, keys = layout.ROWS[table], defaults(table), dict[str, list[str]]()
        for of in (layout.NUMBER_KEYS, layout.TEXT_KEYS, layout.FLOAT_KEYS, layout.VECTOR_KEYS):
            for key, field in of.items():
                keys.setdefault(field, []).append(key)
        fields: list[tuple[str, Any, Any]] = []
        renames: dict[str, str] = {}
        self._texts: list[int] = []
        self._vectors = slice(0, 0)
        """The fields of three numbers, which follow each other."""
        for name in row.names or ():
            field = name.removesuffix("_x")
            if field not in keys:
                continue
            if field in layout.TEXT_FIELDS:
                self._texts.append(len(fields))
                fields.append((field, msgspec.Raw, msgspec.Raw()))
            elif field != name:
                self._vectors = slice(self._vectors.start or len(fields), len(fields) + 1)
                fields.append((field, _THREE, (ABSENT32,) * 3))
            else:
                fields.append((field, _TYPES[row[field].str[1:]], given[field]))
            renames[field] = keys[field].pop(-1 if table in _NAMED_LATER else 0)
        self._count = len(fields)
        others = [key for field in renames for key in keys[field]]
        for at, key in enumerate([*others, *([layout.EXTRA_KEY] if "extra" in given else ())]):
            fields.append((f"other{at}", _UNUSUAL | None, None))
            renames[f"other{at}"] = key
        self._decode = msgspec.json.Decoder(
            msgspec.defstruct(f"Usual_{table}", fields, rename=renames, gc=False)
        ).decode
        self._last = (NO_TEXT,) if "extra" in given else ()

    def values(self, raw: msgspec.Raw, text_ids: Mapping[bytes, int]) -> list[Any] | None:
        """The row's fields from the first that args fill to `extra`, in order; None if the args are unusual. text_ids:
        the ids of JSON values that are kept as text."""
        try:
            values = list(msgspec.structs.astuple(self._decode(raw))[: self._count])
        except ValueError:
            return None
        for at in self._texts:
            text = bytes(values[at])
            values[at] = text_ids[text] if text else NO_TEXT
        vectors = self._vectors
        if vectors.stop:
            values[vectors] = [number for vector in values[vectors] for number in vector]
        values += self._last
        return values


USUAL = {table: UsualArgs(table) for table in layout.TABLES if table != "flows"}
"""By table."""
