"""Masks everything in a text that looks like a secret, by its name or by its shape.
Masking too much is better than keeping a secret: the command is kept to be read, not to be run again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from .secret_shapes import HOOK, PRIVATE_KEY, SHAPE

MASK = "<redacted>"

_NAME = (
    r"token(?!i[sz])|key(?!error|word|board|frame|point)|secret|pass(?:w|phrase)|credential|auth(?!or)|signature|cookie|bearer|webhook|connection[_-]?str"
    r"|(?<![a-z])(?:pat|pass|pw|pwd|sig|sas|jwt|otp|dsn)(?![a-z])"
)
_ALWAYS = re.compile(r"secret|pass(?:w|phrase)|credential", re.IGNORECASE)
"""Names whose value is a secret even if it is a number."""
_NAMED = re.compile(_NAME, re.IGNORECASE)
_SEVERAL = re.compile(r"(?:token|key|secret|password|credential|cookie)s$", re.IGNORECASE)
"""Names of options that may take several values."""
_SHORT = re.compile(r"-[tp]")
"""Options of one letter that take a token or a password in common tools; numbers and switches are kept."""
_LOGIN_OPTION = re.compile(r"-u|--(?:proxy-)?user(?:pwd)?")
"""Options that may take `user:password`."""
_SETTER = re.compile(r"--?(?:set|override|overrides|opt|opts|option|options|define|conf|config|cfg|env|o|O|D|e|c)")
"""Options after which the name of a setting and its value may be two words."""
_SETTING = re.compile(rf"[\w.+/-]*(?:{_NAME})[\w./-]*", re.IGNORECASE)
_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_WHOLE = re.compile(rf"(?P<name>[\w.+-]*(?:{_NAME})[\w.-]*)=(?P<value>[^\"'\s&\[{{][^\"'\s&]*)", re.IGNORECASE)
"""A word that is only `name=value`: the value extends to its end."""
_QUOTED = r"\"(?:[^\"\\]|\\.)*\"?|'(?:[^'\\]|\\.)*'?"
_ASSIGNED = re.compile(
    rf"(?P<name>[\w.+-]*(?:{_NAME})[\w.-]*)"
    r"(?P<is>[\"'\])\\]*(?:\s+provided)?\s*(?:=>|:=|=|:)\s*|[\"']\s*,\s*(?=[\"']))"
    rf"(?P<value>{_QUOTED}|\\+\"[^\"\\]*|\\+'[^'\\]*|\[[^\]]*\]?|[|>][+-]?\d?[ \t]*\n(?:[ \t]+\S.*(?:\n|\Z))+"
    r"|(?:-[ \t]+\S+(?:\s+|\Z))+|[^\"'\s,;&}\])]+)",
    re.IGNORECASE,
)
"""`name=value` or `"name": "value"` anywhere in a word: overrides, variables, JSON, YAML, the code of `-c`."""
_HEADER = re.compile(
    r"(?P<name>\b(?:(?:proxy-)?authorization|(?:set-)?cookie2?|x-[\w-]*(?:token|key|auth|secret)[\w-]*|private-token"
    r"|[\w-]*api-?key)\s*:\s*)(?P<value>[^\"'\n\r\[{][^\"'\n\r]*)",
    re.IGNORECASE,
)
"""A header of a request, to the end of its line."""
_INSIDE = re.compile(
    rf"(?<![\w-])(?P<name>--?[A-Za-z][\w.-]*)(?P<is>\s*=\s*|\s+)(?P<value>{_QUOTED}|[^\s\"'-][^\s\"']*)"
)
"""An option with its value inside a longer text, such as the command of a shell."""
_SAID = re.compile(
    r"\b(?P<name>password|passwd|passphrase)(?P<is>[ \t]+(?:is[ \t]+|was[ \t]+)?)(?P<value>[^\s\"',;=:]+)", re.I
)
"""A password after its name, as .netrc and messages have it."""

_HARMLESS = re.compile(r"true|false|yes|no|on|off|none|null", re.IGNORECASE)
_NUMBER = re.compile(r"[-+]?\d{1,9}(\.\d*)?([eE][-+]?\d+)?")
_BEARER = re.compile(r"\b(bearer|basic)(\s+)[^\s\"']+", re.IGNORECASE)
_LOGIN = re.compile(r"([a-z][a-z0-9+.-]*://)(?:[^/\s\"'<>]*|[^\s\"'<>/@]+:[^\s\"'<>]*)@", re.IGNORECASE)
"""The user and password of an address."""
_BARE_LOGIN = re.compile(r"(?<![\w.+%/-])[\w.+%-]+:[^\s@/:\"'<>]+@(?=[\w-]+(?:\.[\w-]|:\d|/|$))")
"""The same without the address's scheme."""


def redact(words: Iterable[str]) -> list[str]:
    """The words with every secret masked; their number stays the same."""
    kept: list[str] = []
    waiting: str | None = None  # the option whose value the next word may be
    before = ""
    for word in words:
        if waiting is not None and not _is_option(word):
            kept.append(_value(waiting, word))
            if not _SEVERAL.search(waiting):
                waiting = None
            before = word
            continue
        option = _OPTION.fullmatch(word)
        waiting = None
        if option and (_NAMED.search(option[1]) or _SHORT.fullmatch(option[1])):
            if option[2] is None:
                waiting = option[1]
                kept.append(redact_text(word))
            else:
                kept.append(f"{option[1]}={_value(option[1], option[2])}")
        elif _LOGIN_OPTION.fullmatch(before) and ":" in word:
            kept.append(MASK)
        else:
            if _SETTER.fullmatch(before) and _SETTING.fullmatch(word):
                waiting = word
            kept.append(redact_text(word))
        before = word
    return kept


def redact_text(text: str) -> str:
    """A text, such as a message or a word of a command, with every secret in it masked."""
    if whole := _WHOLE.fullmatch(text):
        return SHAPE.sub(MASK, f"{whole['name']}={_value(whole['name'], whole['value'])}")
    text = PRIVATE_KEY.sub(MASK, text)
    text = HOOK.sub(rf"\g<place>{MASK}", text)
    text = _BEARER.sub(rf"\1\2{MASK}", text)
    text = _HEADER.sub(_masked_header, text)
    if any(blank in text for blank in " \t\n"):
        text = _INSIDE.sub(_masked_option, text)
        text = _SAID.sub(_masked, text)
    text = _ASSIGNED.sub(_masked, text)
    text = _LOGIN.sub(rf"\1{MASK}@", text)
    text = _BARE_LOGIN.sub(f"{MASK}@", text)
    return SHAPE.sub(MASK, text)


def _is_option(word: str) -> bool:
    return word.startswith("--") or (len(word) == 2 and word[0] == "-" and word[1].isalpha())


def _masked_header(found: re.Match[str]) -> str:
    return found[0] if _keeps("header", found["value"].strip()) else f"{found['name']}{MASK}"


def _masked_option(found: re.Match[str]) -> str:
    name = found["name"]
    if _LOGIN_OPTION.fullmatch(name) and ":" in found["value"]:
        return f"{name}{found['is']}{MASK}"
    return _masked(found) if _NAMED.search(name) or _SHORT.fullmatch(name) else found[0]


def _masked(found: re.Match[str]) -> str:
    """`name`, the separator, and the part of the value that may be kept: quotes, brackets and line ends stay."""
    name, value = found["name"], found["value"]
    head = re.match(r"\\*[\"'\[]|[|>][^\n]*\n[ \t]*|", value)
    begin = head[0] if head else ""
    end = next((mark for mark in ('"', "'", "]", "\n") if len(value) > len(begin) and value.endswith(mark)), "")
    inner = value[len(begin) : len(value) - len(end)]
    parts = [part.strip(" \t\n\"'-") for part in inner.split(",")] if begin == "[" else [inner]
    if all(not part or _keeps(name, part) for part in parts):
        return found[0]
    return f"{name}{found['is']}{begin}{MASK}{end}"


def _value(name: str, value: str) -> str:
    """The part of a secret's value that may be kept."""
    return value if not value or _keeps(name, value) else MASK


def _keeps(name: str, value: str) -> bool:
    """Whether a value is not a secret: a switch, or a number where the option wants one."""
    return bool(_HARMLESS.fullmatch(value) or (_NUMBER.fullmatch(value) and _counts(name)))


def _counts(name: str) -> bool:
    """Whether the option expects a number: `--max_tokens 512`, but not `--token 512`."""
    if _ALWAYS.search(name):
        return False
    parts = [part for part in re.split(r"[^a-z0-9]+", name.lower()) if part]
    return not re.search(r"(token|key|auth)$", parts[-1]) or bool({"max", "min", "num", "n", "per"} & set(parts[:-1]))
