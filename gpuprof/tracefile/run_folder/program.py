"""Facts about a run's training program, from its run folder and validated: classes, fields, flags and warnings.
Names end up in the code of fixes, so only valid names are accepted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from gpuprof.tracefile.run_folder.untrusted import LARGEST_NUMBER, dicts, whole
from gpuprof.units import Characters, Convention, Entries, Names

MOST_NAMES: Convention[Names] = 1000
MOST_WARNINGS: Convention[Entries] = 20
LONGEST_TEXT: Convention[Characters] = 300
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)
_DOTTED = re.compile(r"[A-Za-z_][\w.]{0,199}", re.ASCII)
_FLAG = re.compile(r"--?[A-Za-z][\w.-]{0,99}", re.ASCII)
_CHOICE = re.compile(r"[\w.-]{1,40}", re.ASCII)
KINDS = ("switch", "on_off", "boolean", "value", "assigned")
"""What a flag takes: nothing; nothing, with an opposite flag; true or false; a value; a value after `=`."""

SWITCHES = ("anomaly", "deterministic", "cudnn_benchmark", "cudnn_deterministic")
"""Of torch: anomaly detection, deterministic algorithms, cuDNN's search for the quickest algorithm, and its restriction
to deterministic ones."""


@dataclass(frozen=True, slots=True)
class ClassName:
    """A class of the program."""

    name: str
    module: str | None
    bases: tuple[str, ...] = ()
    """Base classes with their modules, nearest first."""

    @property
    def packages(self) -> frozenset[str]:
        """Top-level packages of the class and of its bases."""
        return frozenset(each.partition(".")[0] for each in (self.module or "", *self.bases))


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag that the program declared."""

    names: tuple[str, ...]
    kind: str
    """One of KINDS."""


@dataclass(frozen=True, slots=True)
class Warned:
    """A warning about a slow path."""

    source: str | None
    text: str
    count: int


@dataclass(frozen=True, slots=True)
class Reference:
    """Modules of one class that use a function that a library warned is slow."""

    name: str
    """Name of the class."""
    function: str
    modules: int


@dataclass(frozen=True, slots=True)
class Program:
    """A rank's facts about its program."""

    trainer: ClassName | None = None
    arguments: ClassName | None = None
    fields: tuple[str, ...] = ()
    """Field names of the arguments' class."""
    settings: dict[str, bool | int | float | str] = field(default_factory=dict)
    """Values of some fields."""
    autocast: str | None = None
    """`bfloat16` or another dtype, or `off`; None if no forward pass was seen."""
    switches: tuple[str, ...] | None = None
    """Switches of torch that are on, of SWITCHES; None where the recorder did not look."""
    flags: tuple[Flag, ...] = ()
    warnings: tuple[Warned, ...] = ()
    reference: tuple[Reference, ...] = ()


def program_of(value: Any) -> Program | None:
    """The program section of rank<N>.json; None where there is none."""
    if not isinstance(value, dict):
        return None
    arguments = value.get("arguments")
    arguments = arguments if isinstance(arguments, dict) else {}
    return Program(
        trainer=_class(value.get("trainer")),
        arguments=_class(arguments),
        fields=_names(arguments.get("fields"), _IDENTIFIER),
        settings=_settings(arguments.get("set")),
        autocast=_name(value.get("autocast"), _CHOICE),
        switches=_switches(value.get("switches")),
        flags=tuple(flag for each in dicts(value.get("flags")) if (flag := _flag(each))),
        warnings=tuple(warning for each in dicts(value.get("warnings"))[:MOST_WARNINGS] if (warning := _warned(each))),
        reference=tuple(one for each in dicts(value.get("reference")) if (one := _reference(each))),
    )


def _switches(value: Any) -> tuple[str, ...] | None:
    return tuple(name for name in SWITCHES if name in value) if isinstance(value, list) else None


def _class(value: Any) -> ClassName | None:
    found = value if isinstance(value, dict) else {}
    name = _name(found.get("class"), _IDENTIFIER)
    if name is None:
        return None
    return ClassName(name, _name(found.get("module"), _DOTTED), _names(found.get("bases"), _DOTTED))


def _flag(found: dict[str, Any]) -> Flag | None:
    names, kind = _names(found.get("names"), _FLAG), found.get("kind")
    return Flag(names, kind) if names and isinstance(kind, str) and kind in KINDS else None


def _warned(found: dict[str, Any]) -> Warned | None:
    text, source, count = found.get("text"), found.get("source"), found.get("count")
    if not isinstance(text, str) or not text.strip():
        return None
    source = source[:100] if isinstance(source, str) and source else None
    return Warned(source, " ".join(text.split())[:LONGEST_TEXT], whole(count, least=1) or 1)


def _reference(found: dict[str, Any]) -> Reference | None:
    name, function = _name(found.get("class"), _IDENTIFIER), _name(found.get("function"), _IDENTIFIER)
    return (
        None
        if name is None or function is None
        else Reference(name, function, whole(found.get("modules"), least=1) or 1)
    )


def _settings(value: Any) -> dict[str, bool | int | float | str]:
    found = list(value.items())[:MOST_NAMES] if isinstance(value, dict) else []
    return {name: each for name, each in found if _IDENTIFIER.fullmatch(name) and _is_setting(each)}


def _is_setting(value: Any) -> bool:
    if isinstance(value, str):
        return _CHOICE.fullmatch(value) is not None
    return isinstance(value, (bool, int, float)) and -LARGEST_NUMBER < value < LARGEST_NUMBER  # False for NaN


def _name(value: Any, pattern: re.Pattern[str]) -> str | None:
    return value if isinstance(value, str) and pattern.fullmatch(value) else None


def _names(value: Any, pattern: re.Pattern[str]) -> tuple[str, ...]:
    found = value[:MOST_NAMES] if isinstance(value, list) else []
    return tuple(name for each in found if (name := _name(each, pattern)))
