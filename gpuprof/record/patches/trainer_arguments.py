"""Sets fields of a trainer's arguments: how gpuprof's fixes for RL trainings are applied."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from .context import Context, Known, Patch, Proof, Settings

_NAME = re.compile(r"[A-Za-z_]\w{0,99}")
_WORD = re.compile(r"[A-Za-z][\w.-]*")
_NO_WORDS = ("true", "false", "null", "NaN", "Infinity")
"""Strings that JSON would read as other types."""
BETWEEN = "+"
"""Joins several fields in a value."""


def as_value(given: Mapping[str, Any]) -> str:
    """The patch's value for these fields: `use_vllm=true+vllm_mode=colocate`, which needs no quoting in a shell."""
    return BETWEEN.join(f"{name}={_written(value)}" for name, value in given.items())


def given_in(value: str) -> Settings | None:
    """The fields in a patch's value; None if it is not valid."""
    found: Settings = {}
    for part in value.split(BETWEEN):
        name, equals, text = part.partition("=")
        if not _NAME.fullmatch(name) or not equals or not text:
            return None
        try:
            found[name] = json.loads(text)
        except ValueError:
            if not _WORD.fullmatch(text):
                return None
            found[name] = text
    return found


def _written(value: Any) -> str:
    if isinstance(value, str) and _WORD.fullmatch(value) and value not in _NO_WORDS:
        return value
    return json.dumps(value, separators=(",", ":"))


def _fields(value: str, known: Known) -> tuple[Settings, Settings] | None:
    found = given_in(value)
    return None if found is None else (found, {})


PATCH = Patch(
    name="trainer_arguments",
    does="fields of the trainer's arguments get other values",
    line="{value}, in the trainer's arguments",
    cannot="your own training loop; fields that the trainer's arguments do not have",
    values="NAME=VALUE, several joined by +",
    check=lambda value: given_in(value) is not None,
    fields=_fields,
)


def apply(context: Context) -> Callable[[], Proof]:
    """Sets them when the arguments are created, and again when a trainer takes them."""
    wanted = given_in(context.value) or {}

    def choose(arguments: Any) -> Settings:
        missing = [name for name in wanted if not hasattr(arguments, name)]
        if missing:
            context.refuse(f"{type(arguments).__name__} has no {missing[0]}")
        return {} if missing or context.only_looks else dict(wanted)

    context.hub.set_arguments(choose)

    def look(found: Any) -> Proof:
        if context.refusal:
            return Proof(False, context.refusal)
        now = {name: getattr(found, name, None) for name in wanted}
        if now != wanted:
            return Proof(False, "the program changed the arguments after the patch")
        return Proof(True, ", ".join(f"{name}={value!r}" for name, value in now.items()))

    return context.proof_of_arguments(look)
