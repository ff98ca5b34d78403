"""The JSON around the events: `{"schemaVersion": 1, …, "traceEvents": [` before, `], "traceName": …}` after."""

from __future__ import annotations

import json
import re

from gpuprof.errors import UnreadableTrace
from gpuprof.units import Assumed, Bytes

LONGEST_EVENT_BYTES: Assumed[Bytes] = 64 << 20
"""Longest header, tail or single event: real ones take a few MB at most."""

_SPACE = re.compile(rb"[\s\x00]*")
_STRING = re.compile(rb'"([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
# An unterminated string is one token, too: otherwise each of its quotes would be tried as a beginning.
_STRUCTURE = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[\[\]{}]', re.DOTALL)
_SCALAR = re.compile(rb"[^,\]}\s]+")
_EVENTS = re.compile(rb'"traceEvents"\s*:\s*\[')


class NeedMore(Exception):
    """The bytes end before the envelope does."""


def find_events(data: bytes) -> tuple[int, dict]:
    """Offset just after the `[` of the event list, and the top-level keys before it.

    Raises NeedMore when `data` ends first, UnreadableTrace when it is not a trace.
    """
    at = 3 if data.startswith(b"\xef\xbb\xbf") else 0
    at = _skip(data, at)
    if at >= len(data):
        raise NeedMore
    if data[at : at + 1] == b"[":
        return at + 1, {}
    if data[at : at + 1] != b"{":
        raise UnreadableTrace("not JSON")
    try:
        keys, at, events = _members(data, at + 1, stop_at="traceEvents")
    except ValueError:
        # A header that is not JSON is accepted if it names the event list.
        found = _EVENTS.search(data)
        if not found:
            raise NeedMore from None
        return found.end(), {}
    if not events:
        # So is one that damage has closed too early.
        found = _EVENTS.search(data, at)
        if not found and "traceEvents" in keys:
            raise UnreadableTrace('"traceEvents" is not a list')
        if not found:
            names = ", ".join(list(keys)[:5]) or "none"
            raise UnreadableTrace(f'JSON without a "traceEvents" list (top-level keys: {names})')
        at = found.end()
    return at, keys


def parse_tail(data: bytes) -> dict:
    """Top-level keys after the `]` of the event list; what cannot be read is left out."""
    try:
        return _members(data, 0)[0]
    except (NeedMore, ValueError):
        return {}


def may_be_tail(data: bytes) -> bool:
    """Whether `data` may be (the beginning of) what follows the `]` of the event list: other keys and `}`. Another
    document, or the rest of a longer one, may follow."""
    try:
        _, at, events = _members(data, 0, stop_at="traceEvents")
    except NeedMore:
        return True
    except ValueError:
        return False
    after = _skip(data, at)
    return not events and (
        after == len(data) or (data[at - 1 : at] == b"}" and data[after : after + 1] not in (b",", b"}"))
    )


def another_document(tail: bytes) -> bool:
    """Whether another document begins after the one that `tail`, what follows the `]` of its events, ends."""
    try:
        _, at, _ = _members(tail, 0)
    except (NeedMore, ValueError):
        return False
    return tail[_skip(tail, at) :][:1] in (b"{", b"[")


def another_list(between: bytes) -> bool:
    """Whether the text between the `]` of an event list and the next event begins another event list."""
    return bool(_EVENTS.search(between)) or between.lstrip().startswith(b"[")


def object_end(data: bytes, at: int = 0) -> int | None:
    """Offset just after the object or list that begins at `at`, or None if it does not end in `data`."""
    depth = 0
    for token in _STRUCTURE.finditer(data, at):
        first = data[token.start()]
        if first in b"[{":
            depth += 1
        elif first in b"]}":
            depth -= 1
            if depth <= 0:
                return token.end()
    return None


def _members(data: bytes, at: int, stop_at: str | None = None) -> tuple[dict, int, bool]:
    """Members of an object from `at`, where they end, and whether that is within the list under key `stop_at`.

    Else it is after the object's `}`.
    """
    keys: dict = {}
    while True:
        at = _skip(data, at)
        if data[at : at + 1] in (b"}", b"]"):
            return keys, at + 1, False
        if data[at : at + 1] == b",":
            at += 1
            continue
        key = _STRING.match(data, at)
        if not key:
            if at >= len(data) or data[at : at + 1] == b'"':
                raise NeedMore
            raise ValueError("no key")
        at = _skip(data, key.end())
        if at >= len(data):
            raise NeedMore
        if data[at : at + 1] != b":":
            raise ValueError("no colon")
        at = _skip(data, at + 1)
        name = _key(key[0])
        if name == stop_at and data[at : at + 1] == b"[":
            return keys, at + 1, True
        end = _value_end(data, at)
        keys[name] = _loads(data[at:end])
        at = end


def _key(quoted: bytes) -> str:
    """A key with its escapes decoded."""
    if b"\\" in quoted:
        try:
            return str(json.loads(quoted))
        except ValueError:
            pass
    return quoted[1:-1].decode("utf-8", "replace")


def _value_end(data: bytes, at: int) -> int:
    first = data[at : at + 1]
    if first == b'"':
        text = _STRING.match(data, at)
        if not text:
            raise NeedMore
        return text.end()
    if first in (b"[", b"{"):
        end = object_end(data, at)
        if end is None:
            raise NeedMore
        return end
    scalar = _SCALAR.match(data, at)
    if not scalar:
        if at >= len(data):
            raise NeedMore
        raise ValueError("no value")
    if scalar.end() >= len(data):
        raise NeedMore
    return scalar.end()


def _skip(data: bytes, at: int) -> int:
    match = _SPACE.match(data, at)
    return match.end() if match else at


def _loads(text: bytes) -> object:
    try:
        return json.loads(text.decode("utf-8", "replace"), strict=False)
    except (ValueError, RecursionError):
        return None
