"""Mends the text of one event that is not valid JSON, as real profilers have written it.

Control characters and invalid UTF-8 in names (pytorch#64345, #121219), Windows backslashes (#98432), bare nan and
inf (kineto#105), trailing commas, unescaped quotes in names (#146900).
"""

from __future__ import annotations

import re

import msgspec

_STRING = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_STRING_OR_REST = re.compile(r'"(?:[^"\\]|\\.)*"|[^"]+|"', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_BAD_ESCAPE = re.compile(r'\\(?:u(?![0-9a-fA-F]{4})|(?!["\\/bfnrtu]))')
_PAIRED = re.compile(r"\\\\")
_NOT_A_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:nan|inf|infinity)(?:\(ind\))?(?![\w.])", re.IGNORECASE)
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_NAME = re.compile(
    r'("name"\s*:\s*")(.*?)("\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|s|id|bp)"\s*:|\}\s*\Z))', re.DOTALL
)
_decode = msgspec.json.Decoder().decode


def repair(text: bytes) -> bytes | None:
    """Valid JSON for an event's text, or None if no known damage explains it."""
    first = _mend(text.decode("utf-8", "replace"))
    if _is_object(first):
        return first.encode()
    quoted = _NAME.sub(lambda m: m[1] + _escape_quotes(m[2]) + m[3], text.decode("utf-8", "replace"), count=1)
    second = _mend(quoted)
    return second.encode() if _is_object(second) else None


def _mend(text: str) -> str:
    parts = []
    for part in _STRING_OR_REST.findall(text):
        if len(part) > 1 and part[0] == '"':
            part = _CONTROL.sub(lambda m: f"\\u{ord(m[0]):04x}", _mend_escapes(part))
        else:
            part = _NOT_A_NUMBER.sub("null", _CONTROL.sub(" ", part))
        parts.append(part)
    # Strings are whole parts, so a comma before a bracket at the end of a part is outside them.
    joined = "".join(parts)
    return "".join(
        p if p[0] == '"' else _TRAILING_COMMA.sub("", p) for p in _STRING_OR_REST.findall(joined) if p
    )


def _mend_escapes(text: str) -> str:
    # Split at `\\` first: the second backslash of a pair begins no escape.
    return r"\\".join(_BAD_ESCAPE.sub(lambda m: "\\" + m[0], part) for part in _PAIRED.split(text))


def _escape_quotes(name: str) -> str:
    return re.sub(r'(?<!\\)"', r"\"", name)


def _is_object(text: str) -> bool:
    try:
        return isinstance(_decode(text.encode()), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
