"""Arguments fit to be kept: whatever looks like a secret, by its name or by its shape, is masked.

Better one word too many than one secret: the command is kept to be read, not to be run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "<redacted>"

_NAME = (
    r"token(?!i[sz])|key|secret|pass(?:w|phrase)|credential|auth(?!or)|signature"
    r"|(?<![a-z])(?:pat|pass|pw|pwd|sig)(?![a-z])"
)
_ALWAYS = re.compile(r"secret|pass(?:w|phrase)|credential", re.IGNORECASE)
"""Names whose value is a secret even if it is a number."""
_NAMED = re.compile(_NAME, re.IGNORECASE)
_SHORT = re.compile(r"-[tp]")
"""Options of one letter that take a token or a password in common tools; numbers and switches are kept."""
_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_ASSIGNED = re.compile(
    rf"(?P<name>[\w.+-]*(?:{_NAME})[\w.-]*)(?P<is>[\"'\])]*\s*[=:]\s*[\"']?)(?P<value>[^\"'\s,;&}}\])]+)",
    re.IGNORECASE,
)
"""`name=value` or `"name": "value"` anywhere in a word: overrides, variables, JSON, the code of `-c`."""

_HARMLESS = re.compile(r"true|false|yes|no|on|off|none|null", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d{1,9}(\.\d*)?([eE][-+]?\d+)?")
_BEARER = re.compile(r"\b(bearer|basic)(\s+)\S+", re.IGNORECASE)
_LOGIN = re.compile(r"([a-z][a-z0-9+.-]*://)[^/\s@]+@", re.IGNORECASE)
"""The user and password of an address."""
_SHAPE = re.compile(
    r"(?<![A-Za-z0-9])(?:"
    r"hf_[A-Za-z0-9]{10,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{10,}|github_pat_\w{10,}|glpat-[\w-]{10,}"
    r"|xox[a-z]-[\w-]{10,}|nvapi-[\w-]{10,}|r8_\w{20,}|AIza[\w-]{30,}|(?:AKIA|ASIA)[A-Z0-9]{12,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*|[0-9a-fA-F]{40}"
    r")(?![A-Za-z0-9])"
)


def redact(words: Iterable[str]) -> list[str]:
    """The words with every secret masked; never a word more or less."""
    kept: list[str] = []
    waiting: str | None = None  # the option whose value the next word may be
    for word in words:
        if waiting is not None and not _is_option(word):
            kept.append(_value(waiting, word))
            waiting = None
            continue
        option = _OPTION.fullmatch(word)
        waiting = None
        if option and (_NAMED.search(option[1]) or _SHORT.fullmatch(option[1])):
            if option[2] is None:
                waiting = option[1]
                kept.append(_plain(word))
            else:
                kept.append(f"{option[1]}={_value(option[1], option[2])}")
        else:
            kept.append(_plain(word))
    return kept


def _is_option(word: str) -> bool:
    return word.startswith("--") or (len(word) == 2 and word[0] == "-" and word[1].isalpha())


def _value(name: str, value: str) -> str:
    """What may be kept of the value of something that is named like a secret."""
    if not value or _HARMLESS.fullmatch(value):
        return value
    return value if _NUMBER.fullmatch(value) and _counts(name) else MASK


def _counts(name: str) -> bool:
    """Whether a number is what the option wants: `--max_tokens 512`, but not `--token 512`."""
    if _ALWAYS.search(name):
        return False
    parts = [part for part in re.split(r"[^a-z0-9]+", name.lower()) if part]
    return not re.search(r"(token|key|auth)$", parts[-1]) or bool({"max", "min", "num", "n", "per"} & set(parts[:-1]))


def _plain(word: str) -> str:
    """A word that no name gives away: what is inside it may."""
    word = _ASSIGNED.sub(lambda m: m["name"] + m["is"] + _value(m["name"], m["value"]), word)
    word = _LOGIN.sub(rf"\1{MASK}@", word)
    word = _BEARER.sub(rf"\1\2{MASK}", word)
    return _SHAPE.sub(MASK, word)
