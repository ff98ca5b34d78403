"""The reader for small traces, and for single events of others: msgspec, one typed object per event.

Above about 100 MB of text, or if a document is damaged, `stream` takes over; otherwise this reader finishes before
numba would be imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import islice
from typing import Any

import msgspec
import numpy as np

from gpuprof.tracefile.kineto import layout
from gpuprof.tracefile.kineto.columns import KinetoTables
from gpuprof.tracefile.kineto.envelope import object_end
from gpuprof.tracefile.kineto.microseconds import INT64, nanoseconds
from gpuprof.tracefile.kineto.repair import repair
from gpuprof.tracefile.kineto.usual_args import FLOAT32, INT32, USUAL, defaults
from gpuprof.tracefile.trace import ABSENT

NO_END = "the event list has no end"

_EMPTY = msgspec.Raw()


class Event(msgspec.Struct, gc=False):
    """One event as in the file; `Any` where real files disagree on the type."""

    ph: Any = ""
    cat: Any = ""
    name: Any = ""
    pid: msgspec.Raw = _EMPTY
    tid: msgspec.Raw = _EMPTY
    ts: msgspec.Raw = _EMPTY
    dur: msgspec.Raw = _EMPTY
    id: Any = None
    args: msgspec.Raw = _EMPTY


def _args_struct(table: str) -> tuple[type, list[tuple[str, str, str]]]:
    """The msgspec type of a table's args, and for each of its fields (attribute, row field, kind)."""
    fields, renames, plan = [], {}, []
    row = layout.ROWS[table].names or ()
    groups = [
        ("number", layout.NUMBER_KEYS, Any),
        ("text", layout.TEXT_KEYS, msgspec.Raw),
        ("float", layout.FLOAT_KEYS, Any),
    ]
    for kind, keys, type_ in groups:
        for key, target in keys.items():
            if target in row:
                name = f"f{len(fields)}"
                fields.append((name, type_, _EMPTY if type_ is msgspec.Raw else None))
                renames[name] = key
                plan.append((name, target, kind))
    for key, target in layout.VECTOR_KEYS.items():
        if f"{target}_x" in row:
            name = f"f{len(fields)}"
            fields.append((name, Any, None))
            renames[name] = key
            plan.append((name, target, "vector"))
    if "extra" in row:
        fields.append(("extra", Any, None))
        renames["extra"] = layout.EXTRA_KEY
    return msgspec.defstruct(f"Args_{table}", fields, rename=renames, gc=False), plan


_ARGS = {table: _args_struct(table) for table in layout.TABLES}
_ARGS_DECODERS = {table: msgspec.json.Decoder(struct).decode for table, (struct, _) in _ARGS.items()}
_EVENT = msgspec.json.Decoder(Event).decode
_EVENTS = msgspec.json.Decoder(list[Event]).decode
_DOCUMENT = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_ANY = msgspec.json.Decoder().decode


class StringIds(dict):
    """Text → id, in order of first sight."""

    def __missing__(self, text: str) -> int:
        self[text] = number = len(self)
        return number


class TextIds(dict):
    """JSON value (see `_inner`) → id of its text."""

    def __init__(self, strings: StringIds) -> None:
        self._strings = strings

    def __missing__(self, text: bytes) -> int:
        self[text] = number = self._strings[_text_of(text)]
        return number


@dataclass
class Parsed:
    """A reader's result for `build`: columns per table, their strings, the envelope, and statistics of the reading."""

    tables: KinetoTables
    strings: StringIds | list[str]
    keys: dict
    """Top-level keys around the events."""
    metadata: dict[tuple[str, str, str], list[Any]] = field(default_factory=dict)
    """Args of the `ph: M` events by (name, pid, tid): process and thread names, as often as the file
    has them."""
    metadata_events: int = 0
    text_bytes: int = 0
    truncated: str | None = None
    repaired: int = 0
    dropped: int = 0
    dropped_sample: str = ""
    rounded: int = 0
    more: str = ""
    """What the file holds in addition to one document with one event list, see `trace.Reading`."""
    reader: str = ""


def read_small(data: bytes) -> Parsed | None:
    """Reads a whole document; None if it is damaged (not valid JSON, or without an event list) or has two event lists,
    of which a JSON parser would keep one."""
    keys, events = {}, None
    if data.count(b'"traceEvents"') > 1:
        return None
    try:
        _check_encoding(data)
        if data.lstrip()[:1] == b"[":
            events = _EVENTS(data)
        else:
            members = _DOCUMENT(data)
            if "traceEvents" in members:
                events = _EVENTS(members["traceEvents"])
                keys = {k: _any(v) for k, v in members.items() if k != "traceEvents"}
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors
        events = None
    if events is None:
        return None
    parsed = Parsed(tables=KinetoTables(), strings=StringIds(), keys=keys, text_bytes=len(data), reader="small")
    add_events(events, parsed)
    return parsed


def add_events(events: Iterable[Event], parsed: Parsed) -> None:
    """Turns events into rows and appends them to `parsed`."""
    strings = parsed.strings
    assert isinstance(strings, StringIds)
    rows: dict[str, list[tuple]] = {table: [] for table in layout.TABLES}
    texts = TextIds(strings)
    for event in events:
        try:
            table = _add(event, rows, strings, texts, parsed)
        except (ValueError, TypeError, OverflowError, RecursionError):
            table = None
        if table is None:
            drop(parsed, repr(event.name))
    for table, values in rows.items():
        if values:
            parsed.tables[table].add(np.array(values, dtype=layout.ROWS[table]), len(values))


def add_texts(texts: Iterable[bytes], parsed: Parsed) -> None:
    """The same for events as text, valid or not: mended if possible, else dropped and counted."""
    add_events(_decode_each(texts, parsed), parsed)


def drop(parsed: Parsed, sample: str) -> None:
    """Counts an event that could not be read."""
    parsed.dropped += 1
    parsed.dropped_sample = parsed.dropped_sample or sample[:120]


def classify(ph: str, cat: str, name: str) -> tuple[int, int]:
    """Table index and row kind of an event that is not metadata."""
    if ph == "X":
        table, kind = layout.CATEGORIES.get(cat, (layout.OTHER, 0))
        return (layout.OTHER, 0) if table == layout.FLOWS else (table, kind)
    if ph in ("s", "f", "t"):
        table, kind = layout.CATEGORIES.get(cat, (layout.FLOWS, 2))
        return (layout.FLOWS, kind if table == layout.FLOWS else 2)
    if ph == "i" and name == "[memory]":
        return layout.MEMORY, 0
    return layout.OTHER, 0


_classified = lru_cache(1 << 10)(classify)


def _add(event: Event, rows: dict[str, list[tuple]], strings: StringIds, texts: TextIds, parsed: Parsed) -> str | None:
    """Appends the event's row; the table's name, "metadata", or None if it cannot be read."""
    ph, cat, name = event.ph, event.cat, event.name
    if not type(ph) is type(cat) is type(name) is str:
        ph, cat, name = _text(ph), _text(cat), _text(name)
    if ph == "M":
        parsed.metadata.setdefault((name, _inner(event.pid), _inner(event.tid)), []).append(_any(event.args))
        parsed.metadata_events += 1
        return "metadata"
    index, kind = _classified(ph, cat, name if ph == "i" else "")
    table = layout.TABLES[index]
    start = nanoseconds(bytes(event.ts))
    if start is None:
        return None
    parsed.rounded += start[1]
    track = (texts[bytes(event.pid)], texts[bytes(event.tid)])
    if table == "flows":
        rows[table].append((start[0], *track, _int(event.id), kind, ph == "s"))
        return table
    values = USUAL[table].values(event.args, texts)
    if values is None:
        values = _args(event.args, table, strings).values()
    if table == "memory":
        rows[table].append((start[0], *track, *values))
        return table
    end = start[0]
    if took := bytes(event.dur):
        duration = nanoseconds(took)
        if duration is None or start[0] + duration[0] not in INT64:
            return None
        parsed.rounded += duration[1]
        end += duration[0]
    first = (strings[cat],) if table == "other" else ()
    last = (kind,) if table in _OF_KINDS else ()
    rows[table].append((start[0], end, strings[name], *track, *first, *values, *last))
    return table


_OF_KINDS = frozenset(table for table in layout.TABLES if "kind" in (layout.ROWS[table].names or ()))
_NOT_FROM_ARGS = frozenset(("start_ns", "end_ns", "time_ns", "name", "pid", "tid", "kind", "category"))


def _defaults(table: str) -> dict[str, Any]:
    given = defaults(table)
    return {name: given[name] for name in layout.ROWS[table].names or () if name not in _NOT_FROM_ARGS}


_DEFAULTS = {table: _defaults(table) for table in layout.TABLES}


def _args(raw: msgspec.Raw, table: str, strings: StringIds) -> dict[str, Any]:
    """Row fields from an event's args; values of an unexpected type count as not given."""
    values = dict(_DEFAULTS[table])
    text = bytes(raw)
    if not text.startswith(b"{"):
        return values
    try:
        args = _ARGS_DECODERS[table](raw)
    except ValueError:  # a number beyond the range of floats
        args = _ARGS_DECODERS[table](_readable(text))
    dtype = layout.ROWS[table]
    for attribute, target, kind in _ARGS[table][1]:
        value = getattr(args, attribute)
        if value is None:
            continue
        if kind == "number":
            limits = INT32 if dtype[target] == np.int32 else INT64
            if type(value) is int and value in limits:
                values[target] = value
        elif kind == "text":
            if len(bytes(value)):
                values[target] = strings[_inner(value)]
        elif kind == "float":
            if type(value) in (int, float) and abs(value) < FLOAT32:
                values[target] = value
        elif isinstance(value, list) and len(value) == 3 and all(type(v) is int and v in INT32 for v in value):
            values |= zip((f"{target}_x", f"{target}_y", f"{target}_z"), value, strict=True)
    if "extra" in values and args.extra is not None:  # type: ignore[attr-defined]
        values["extra"] = strings[text.decode()]
    return values


def _readable(text: bytes) -> bytes:
    """The object without the members whose values cannot be read."""
    members = ((json.dumps(key).encode(), value) for key, value in _DOCUMENT(text).items() if _any(value) is not None)
    return b"{" + b",".join(key + b":" + bytes(value) for key, value in members) + b"}"


_LIST_END = re.compile(rb"\}(?=[\s\x00]*\])")


def event_then_close(text: bytes) -> int | None:
    """Where the event ends, if the list's `]` follows it in this text (or the text is only the `]`)."""
    if text.startswith(b"]"):
        return 0
    end = object_end(text)
    if end is not None:
        return end if text[end:].lstrip(b" \t\r\n\x00,").startswith(b"]") else None
    # A stray quote in a name hides the end of the event.
    ends = (found.end() for found in islice(_LIST_END.finditer(text), 4))
    return next((end for end in ends if repair(text[:end]) is not None), None)


def is_whole(text: bytes) -> bool:
    """Whether the text is a complete event, and not only the beginning of one."""
    return object_end(text) == len(text) or repair(text) is not None


def _decode_each(texts: Iterable[bytes], parsed: Parsed) -> Iterable[Event]:
    for text in texts:
        try:
            _check_encoding(text)
            yield _EVENT(text)
            continue
        except (ValueError, RecursionError):
            mended = repair(text)
        event = None
        if mended is not None:
            try:
                event = _EVENT(mended)
            except (ValueError, RecursionError):
                event = None
        if event is None:
            drop(parsed, text.decode("utf-8", "replace"))
        else:
            parsed.repaired += 1
            yield event


def _check_encoding(text: bytes) -> None:
    """Raises UnicodeDecodeError if the text is not UTF-8: msgspec does not validate values that it keeps raw."""
    if not text.isascii():
        text.decode()


def _any(raw: msgspec.Raw) -> Any:
    try:
        return _ANY(raw)
    except (ValueError, RecursionError):
        return None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)


def _inner(raw: msgspec.Raw) -> str:
    """A JSON value as text: a string without its quotes, anything else as written."""
    return _text_of(bytes(raw))


@lru_cache(maxsize=1 << 14)
def _text_of(text: bytes) -> str:
    if not text.startswith(b'"'):
        return text.decode()
    try:
        return _text(_ANY(text))
    except ValueError:
        mended = repair(b'{"":' + text + b"}")
        if mended is None:
            raise
        return _text(_ANY(mended)[""])


def _int(value: Any) -> int:
    return value if type(value) is int and value in INT64 else ABSENT
