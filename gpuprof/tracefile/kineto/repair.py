"""Mends the text of one event that is not valid JSON, as real profilers have written such events.

Control characters and invalid UTF-8 in names (pytorch#64345, #121219), Windows backslashes (#98432), bare nan and
inf (kineto#105), trailing commas, unescaped quotes in names (#146900).
"""

from __future__ import annotations

import re

import msgspec

# Linear in the length of any text: an unterminated string is one part, up to the end of the text.
_STRING_OR_REST = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)|[^"]+', re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f]")
_BAD_ESCAPE = re.compile(r'\\(?:u(?![0-9a-fA-F]{4})|(?!["\\/bfnrtu]))')
_LONE_SURROGATE = re.compile(r"\\u[dD][89abAB]\w\w(?!\\u[dD][c-fC-F]\w\w)|(?<!\\u[dD][89abAB]\w\w)\\u[dD][c-fC-F]\w\w")
_PAIRED = re.compile(r"\\\\")
_NOT_A_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:nan|inf|infinity)(?:\(ind\))?(?![\w.])", re.IGNORECASE)
_TRAILING_COMMA = re.compile(r",(?=\s*[}\]])")
_NAME_BEGIN = re.compile(r'"name"\s*:\s*"')
_NAME_END = re.compile(r'"\s*(?:,\s*"(?:ph|cat|pid|tid|ts|dur|args|s|id|bp)"\s*:|\}\s*\Z)')
_decode = msgspec.json.Decoder().decode


def repair(text: bytes) -> bytes | None:
    """Valid JSON for an event's text, or None if no known damage explains it."""
    plain = text.decode("utf-8", "replace")
    for attempt in (plain, _escape_quotes(plain)):
        mended = _mend(attempt)
        if _is_object(mended):
            return mended.encode()
    return None


def _mend(text: str) -> str:
    parts = []
    for part in _STRING_OR_REST.findall(text):
        if len(part) > 1 and part[0] == '"':
            part = mended_string(part)
        else:
            part = _NOT_A_NUMBER.sub("null", _CONTROL.sub(" ", part))
        parts.append(part)
    # Strings are whole parts, so a comma before a bracket at the end of a part is outside of strings.
    joined = "".join(parts)
    return "".join(p if p[0] == '"' else _TRAILING_COMMA.sub("", p) for p in _STRING_OR_REST.findall(joined) if p)


def mended_string(text: str) -> str:
    """A string in its quotes with invalid characters escaped."""
    return _CONTROL.sub(lambda m: f"\\u{ord(m[0]):04x}", _mend_escapes(text))


def _mend_escapes(text: str) -> str:
    # Split at `\\` first: the second backslash of a pair begins no escape.
    parts = (_BAD_ESCAPE.sub(lambda m: "\\" + m[0], part) for part in _PAIRED.split(text))
    return r"\\".join(_LONE_SURROGATE.sub(r"\\ufffd", part) for part in parts)


def _escape_quotes(text: str) -> str:
    """The text with the quotes inside its name escaped: the name ends where another key of an event follows."""
    begin = _NAME_BEGIN.search(text)
    end = _NAME_END.search(text, begin.end()) if begin else None
    if not begin or not end:
        return text
    name = re.sub(r'(?<!\\)"', r"\"", text[begin.end() : end.start()])
    return text[: begin.end()] + name + text[end.start() :]


def _is_object(text: str) -> bool:
    try:
        return isinstance(_decode(text.encode()), dict)
    except (msgspec.DecodeError, RecursionError):
        return False
