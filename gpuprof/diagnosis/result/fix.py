"""A fix as data: what is set, where and to which value; the patch with which `gpuprof try` applies it; and its text.

A fix is a sequence of parts in reading order: settings, each with the place where it is made, and prose between them.
`str(fix)` is what a report shows. That text is never parsed: code that needs a value takes it from the settings.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gpuprof.bounds import Words

Surface = Literal["argument", "flag", "environment", "call", "assignment", "file"]
"""Where a setting is made: a field of the trainer's arguments, a command-line option, an environment variable, a call
in the program, a value that the program assigns, a line of a file."""

UNNAMED = "in the trainer's arguments:\n"
"""Text before settings whose class is unknown."""


class Code(str):
    """A value that is an expression, such as `8 * batch_size`; a number in digits is one."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One thing to set."""

    surface: Surface
    """A field of the trainer's arguments, a command-line option, an environment variable, a call in the program, a
    value that the program assigns, an entry of a file."""
    name: Words
    """Name of the field, option, variable, function or assignment target."""
    value: Any = None
    """The value to set; for a call its arguments by name, positional ones by number ("0", "1"). An expression is
    {"expression": text}."""
    of: str | None = None
    """Class of the arguments, or the command that has the option; None if unknown, or if it is the program's own."""
    remove: bool = False
    """Whether it is taken out rather than set."""
    instead: bool = False
    """Whether it belongs to an alternative way to make the same fix."""


@dataclass(frozen=True, slots=True)
class PatchValue:
    """A patch of `gpuprof.record.patches` or of a plug-in, with its value; empty: the patch's default."""

    name: Words
    value: str = ""

    def command(self, training: Sequence[str] | None = None) -> str:
        """The shell command that measures whether the fix gains; `training`: the words of the training's own command,
        appended if known."""
        head = f"gpuprof try --fix {shlex.quote(f'{self.name}={self.value}' if self.value else self.name)}"
        return f"{head} -- {shlex.join(training)}" if training else head


@dataclass(frozen=True, slots=True)
class TextPart:
    """A piece of the text, with the settings it makes."""

    text: str
    settings: tuple[Setting, ...] = ()
    prose: bool = False
    """Whether it is prose; otherwise it is code that can be pasted."""
    other: bool = False
    """Whether it names an alternative to what comes before it."""


@dataclass(frozen=True, slots=True)
class FixLine:
    """A line of a fix as it is shown: code that can be pasted, or prose that says where it belongs."""

    text: str
    code: bool
    comment_at: int | None = None
    """Index in the text at which the comment after the code begins; None without one."""
    other: bool = False
    """Whether it belongs to an alternative way of making the fix, used instead of what comes before it."""

    @property
    def bare(self) -> str:
        """The text without its comment."""
        return self.text if self.comment_at is None else self.text[: self.comment_at].rstrip()


@dataclass(frozen=True, slots=True)
class Fix:
    """What to do about a finding, for the recorded program. Falsy if empty."""

    parts: tuple[TextPart, ...] = ()
    patch: PatchValue | None = None
    """None: applied by hand."""

    def __str__(self) -> str:
        return "".join(part.text for part in self.parts)

    def __bool__(self) -> bool:
        return any(part.text for part in self.parts)

    def __add__(self, more: Fix | str) -> Fix:
        return Fix((*self.parts, *as_fix(more).parts), self.patch)

    def __radd__(self, before: str) -> Fix:
        return Fix((*as_fix(before).parts, *self.parts), self.patch)

    @property
    def settings(self) -> tuple[Setting, ...]:
        """All settings, in the order of the text."""
        return tuple(setting for part in self.parts for setting in part.settings)

    def by(self, patch: str, value: object = "") -> Fix:
        """The same fix with the patch that applies it."""
        return replace(self, patch=PatchValue(patch, str(value)))

    @property
    def lines(self) -> tuple[FixLine, ...]:
        """Code and prose, each in lines of its own; a comment stays with its code."""
        found: list[FixLine] = []
        for pieces in _by_line(self.parts):
            found += _lines(pieces)
        return _introduced(found)

    def otherwise(self) -> Fix:
        """This fix marked as an alternative to what comes before it."""
        return replace(
            self,
            parts=tuple(
                replace(part, settings=tuple(replace(one, instead=True) for one in part.settings))
                for part in self.parts
            ),
        )


def as_fix(text: Fix | str) -> Fix:
    """Prose as a fix."""
    if isinstance(text, Fix):
        return text
    return Fix((TextPart(text, prose=True),)) if text else Fix()


def other_way(text: str) -> Fix:
    """An alternative in words that begin a line: `or larger save_steps`."""
    return Fix((TextPart(f"or {text}", prose=True, other=True),))


def code(text: str) -> Fix:
    """Code that sets nothing by itself, such as an import."""
    return Fix((TextPart(text),))


def joined(fixes: Sequence[Fix | str], between: str = "\n") -> Fix:
    """Several fixes applied together, as one."""
    whole = Fix()
    for at, fix in enumerate(fixes):
        whole = whole + (between if at else "") + fix
    return whole


def arguments(owner: str | None, values: Mapping[str, Any]) -> Fix:
    """Fields of a trainer's arguments: `TrainingArguments(tf32=True)`."""
    fields = ", ".join(f"{name}={in_code(value)}" for name, value in values.items())
    found = tuple(Setting("argument", name, in_json(value), owner or None) for name, value in values.items())
    if owner:
        return Fix((TextPart(f"{owner}({fields})", found),))
    return Fix((TextPart(UNNAMED, prose=True), TextPart(fields, found)))


def call(name: str, *positional: Any, **named: Any) -> Fix:
    """A call: `call("DataLoader", ..., num_workers=8)` is `DataLoader(..., num_workers=8)`; the dots mean the existing
    arguments."""
    given = ["..." if one is ... else in_code(one) for one in positional]
    given += [f"{key}={in_code(value)}" for key, value in named.items()]
    values = {str(at): in_json(one) for at, one in enumerate(positional) if one is not ...}
    values |= {key: in_json(value) for key, value in named.items()}
    return Fix((TextPart(f"{name}({', '.join(given)})", (Setting("call", name, values),)),))


def without_call(text: str, *names: str) -> Fix:
    """Calls to remove; `text` says so."""
    return Fix((TextPart(text, tuple(Setting("call", name, remove=True) for name in names), prose=True),))


def assigned(name: str, value: Any) -> Fix:
    """A value that the program assigns: `model = torch.compile(model)`."""
    return Fix((TextPart(f"{name} = {in_code(value)}", (Setting("assignment", name, in_json(value)),)),))


def environment(name: str, value: str) -> Fix:
    """An environment variable: `NAME=value`."""
    return Fix((TextPart(f"{name}={value}", (Setting("environment", name, value),)),))


def option(text: str, name: str, value: Any = True, of: str | None = None) -> Fix:
    """A command-line option, written as `text`; value None: the option is to be removed, and the text says so in
    words."""
    is_absent = value is None
    return Fix((TextPart(text, (Setting("flag", name, value, of, remove=is_absent),), prose=is_absent),))


def in_file(text: str, name: str, value: Any, of: str) -> Fix:
    """An entry of a file, or of options passed like one, written as `text`."""
    return Fix((TextPart(text, (Setting("file", name, value, of),)),))


def described(text: str, name: str, **named: Any) -> Fix:
    """Arguments of a call that the program already makes, in words: `a collator with padding=True`."""
    given = ", ".join(f"{key}={in_code(value)}" for key, value in named.items())
    setting = Setting("call", name, {key: in_json(value) for key, value in named.items()})
    return Fix((TextPart(f"{text}{given}", (setting,), prose=True),))


def in_code(value: Any) -> str:
    """A value as Python source, strings in double quotes."""
    if isinstance(value, (Code, Fix)):
        return str(value)
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{in_code(k)}: {in_code(v)}" for k, v in value.items()) + "}"
    return repr(value)


def in_json(value: Any) -> Any:
    """A value as JSON."""
    if isinstance(value, (Code, Fix)):
        text = str(value)
        return int(text) if text.isdecimal() else {"expression": text}
    if isinstance(value, Mapping):
        return {str(key): in_json(one) for key, one in value.items()}
    return value


_PLACES = {"flag": "on the command line", "environment": "in the environment"}
"""Where settings of one kind are made, if their text does not say so."""

_Pieces = list[tuple[TextPart, str]]


def _by_line(parts: Sequence[TextPart]) -> list[_Pieces]:
    """The parts' text by line, each piece with its part."""
    lines: list[_Pieces] = [[]]
    for part in parts:
        for at, text in enumerate(part.text.split("\n")):
            if at:
                lines.append([])
            if text:
                lines[-1].append((part, text))
    return [line for line in lines if line]


def _lines(pieces: _Pieces) -> list[FixLine]:
    """One line of the text as lines of code and of prose."""
    found: list[FixLine] = []
    said, typed, surfaces = "", "", set[str]()
    other, comment_at = _is_other(pieces), None

    def say() -> None:
        nonlocal said
        if text := said.strip(" ,;:#"):
            found.append(FixLine(text, False, other=other))
        said = ""

    def type_out() -> None:
        nonlocal said, typed, comment_at
        if typed.strip():
            place = _PLACES.get(next(iter(surfaces)), "") if len(surfaces) == 1 else ""
            said = ", ".join(filter(None, (said.strip(" ,;:#"), place)))
            say()
            found.append(FixLine(typed.rstrip(), True, comment_at, other))
        typed, comment_at = "", None
        surfaces.clear()

    for at, (part, text) in enumerate(pieces):
        if not part.prose or (typed and not text.strip()):
            typed += text
            surfaces.update(one.surface for one in part.settings if one.of is None)
        elif typed and text.lstrip().startswith("#"):
            comment_at = len(typed) + len(text) - len(text.lstrip())
            typed += "".join(rest for _, rest in pieces[at:])
            break
        else:
            type_out()
            said += text
    type_out()
    say()
    return found


def _is_other(pieces: _Pieces) -> bool:
    """Whether a line belongs to an alternative fix: decided by its first piece, or by its first setting."""
    first = next((part.settings[0] for part, _ in pieces if part.settings), None)
    return pieces[0][0].other or (first is not None and first.instead)


def _introduced(lines: Sequence[FixLine]) -> tuple[FixLine, ...]:
    """The lines, with a colon at the end of prose that comes before code."""
    after = (*lines[1:], None) if lines else ()
    return tuple(
        replace(one, text=f"{one.text.rstrip(' ,:')}:") if not one.code and then is not None and then.code else one
        for one, then in zip(lines, after, strict=True)
    )
