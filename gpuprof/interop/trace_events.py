"""Formats columns as lines of Chrome's trace format: one event per line, times in µs with three decimals."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.tracefile.trace import I64, Mask
from gpuprof.units import Convention, WholeNs

Texts = NDArray[np.object_]
"""Per row a JSON text."""

FARTHEST_NS: Convention[WholeNs] = 2**61
"""Larger times are damage, and their difference would not fit into 64 bits: they are clipped to this."""


@dataclass(frozen=True, slots=True)
class Field:
    """One argument of the events: integers, floats, or JSON texts; left out where it is not given."""

    key: str
    values: NDArray
    given: Mask | None = None
    """Rows that have a value; None: all."""

    def take(self, rows: NDArray) -> Field:
        return Field(self.key, self.values[rows], None if self.given is None else self.given[rows])


@dataclass(frozen=True, slots=True)
class Spans:
    """Spans of one kind, as columns. `lane`: number of their lane."""

    lane: I64
    start_ns: I64
    end_ns: I64
    name: Texts
    category: Texts
    fields: tuple[Field, ...] = ()
    whole: Texts | None = None
    """JSON text of all arguments, used instead of the fields if it is not ""."""
    rank: I64 | None = None
    """Of spans with the same times, the one with the lowest rank encloses the others."""

    def __len__(self) -> int:
        return len(self.lane)


@dataclass(slots=True)
class JsonTexts:
    """The strings of a trace as JSON texts, each created once, on demand."""

    strings: Sequence[str]
    _plain: dict[int, str] = field(default_factory=dict)
    _values: dict[int, str] = field(default_factory=dict)

    def plain(self, ids: NDArray) -> Texts:
        """The JSON string of each id; the empty string for ids below 0."""
        return self._all(ids, self._plain, json_text)

    def values(self, ids: NDArray) -> Texts:
        """The JSON value in each id's text; a text that is not JSON becomes a string."""
        return self._all(ids, self._values, _value_text)

    def _all(self, ids: NDArray, known: dict[int, str], make: Any) -> Texts:
        distinct, inverse = np.unique(ids, return_inverse=True)
        texts = np.empty(len(distinct), object)
        for i, string_id in enumerate(distinct.tolist()):
            if string_id not in known:
                known[string_id] = make(self.strings[string_id]) if string_id >= 0 else '""'
            texts[i] = known[string_id]
        return texts[inverse]


def json_text(text: str) -> str:
    """The text as an ASCII JSON string that every parser accepts: a lone surrogate becomes U+FFFD."""
    if not text.isascii():
        text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return json.dumps(text)


def json_texts(texts: Iterable[str]) -> Texts:
    """The texts as JSON strings."""
    found = [json_text(text) for text in texts]
    out = np.empty(len(found), object)
    out[:] = found
    return out


def constant(text: str, size: int) -> Texts:
    """The same JSON string for every row."""
    return np.full(size, json_text(text), object)


def json_value(value: Any) -> str | None:
    """The value as ASCII JSON that every parser accepts; None if it cannot be written."""
    import msgspec

    try:
        text = json.dumps(value, allow_nan=False, separators=(",", ":"))
        msgspec.json.decode(text)  # rejects what Python accepts, such as a lone surrogate
    except (ValueError, TypeError, RecursionError):
        return None
    return text


def _value_text(text: str) -> str:
    import msgspec

    try:
        value = msgspec.json.decode(text)
    except (ValueError, RecursionError):
        return json_text(text)
    return text if text.isascii() else json_value(value) or json_text(text)


def micros(ns: I64) -> tuple[list[NDArray], str]:
    """(columns, template that formats them): times in µs, exact."""
    size = np.abs(ns)
    columns: list[NDArray] = [size // 1000, size % 1000]
    if np.any(ns < 0):
        return [np.where(ns < 0, "-", "").astype(object), *columns], "%s%d.%03d"
    return columns, "%d.%03d"


def lines(spans: Spans, rows: I64, pid: I64, tid: I64, start_ns: I64) -> Texts:
    """The complete events ("X") of `rows`; pid, tid and start are in the order of `rows`."""
    fields = tuple(f.take(rows) for f in spans.fields)
    ns = durations(spans.start_ns[rows], spans.end_ns[rows])
    whole = None if spans.whole is None else spans.whole[rows]
    patterns = np.zeros(len(rows), np.int64)
    for bit, f in enumerate(fields):
        patterns |= (1 << bit) * (True if f.given is None else f.given)
    if whole is not None:
        patterns[whole != ""] = -1
    out = np.empty(len(rows), object)
    for pattern in np.unique(patterns).tolist():
        at = np.flatnonzero(patterns == pattern)
        used = [f for bit, f in enumerate(fields) if pattern >= 0 and pattern >> bit & 1]
        times, ts = micros(start_ns[at])
        lengths, dur = micros(ns[at])
        args = "%s" if pattern < 0 else "{" + ",".join(f"{_escaped(f.key)}:{_mark(f.values)}" for f in used) + "}"
        template = f'{{"ph":"X","cat":%s,"name":%s,"pid":%d,"tid":%d,"ts":{ts},"dur":{dur},"args":{args}}}'
        values = [whole[at]] if pattern < 0 and whole is not None else [f.values[at] for f in used]
        columns = [spans.category[rows[at]], spans.name[rows[at]], pid[at], tid[at], *times, *lengths, *values]
        out[at] = filled(template, columns)
    return out


def durations(start_ns: I64, end_ns: I64) -> I64:
    """Length of each span; 0 for one that ends before it begins, as viewers need."""
    return (end_ns - start_ns).clip(0)


def filled(template: str, columns: Sequence[NDArray]) -> list[str]:
    """The template filled with every row of the columns."""
    return list(map(template.__mod__, zip(*(c.tolist() for c in columns), strict=True)))


def _mark(values: NDArray) -> str:
    return "%d" if values.dtype.kind in "iu" else "%s"


def _escaped(key: str) -> str:
    return json_text(key).replace("%", "%%")
