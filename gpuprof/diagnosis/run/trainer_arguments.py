"""The class that holds a trainer's settings: its name and fields.

They come from the recorder; otherwise, for TRL's trainers, from file and class names in the trace; otherwise from what
programs of that kind usually have.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpuprof.record.model.trainer_arguments import CLASS as USUAL
from gpuprof.tracefile.run_folder.program import Program
from gpuprof.tracefile.trace import Trace
from gpuprof.units import Characters, Convention

_FILE = re.compile(r"(?:^|/)trl/(?:trainer|experimental/\w+)/(\w+)_trainer\.py\b(?!.*<module>)")
_CLASS = re.compile(r"\b([A-Z]\w*)Trainer\b(?!.*<module>)")
_WORDS = frozenset(("async", "distillation", "iterative", "nash", "online", "reward", "server"))
"""Parts of file names that are words; the others are acronyms."""
_LONGEST_ACRONYM: Convention[Characters] = 5
_BASE = "base"

INFERRED = ("SFTConfig", USUAL)
"""Classes that fixes name if the program's own is unknown."""
_COPY = "Unsloth"
"""Prefix of unsloth's copies of TRL's classes; programs use them by TRL's names."""
_OF_TRL = ("trl", "unsloth")
"""Kinds of programs that use one of TRL's argument classes."""


@dataclass(frozen=True, slots=True)
class TrainerArguments:
    """A program's trainer and the class of its arguments, as far as known."""

    name: str | None = None
    """Name of the arguments' class; None if unknown."""
    fields: frozenset[str] | None = None
    """Its fields; None where they are not known."""
    trainer: str | None = None
    """The trainer's class; None if unknown."""


def trainer_arguments(kind: str, program: Program, trace: Trace) -> TrainerArguments:
    """The arguments of a program of this kind (see `stack`), as recorded or else as the trace shows."""
    arguments, trainer = program.arguments, program.trainer
    name = trainer and trainer.name.removeprefix(_COPY)
    if arguments is not None:
        fields = frozenset(program.fields) if program.fields else None
        return TrainerArguments(arguments.name.removeprefix(_COPY), fields, name)
    shown = trl_trainer(trace) if kind in _OF_TRL else None
    if shown is None:
        return TrainerArguments(trainer=name)
    return TrainerArguments(f"{shown}Config", None, name or f"{shown}Trainer")


def shown_name(own: str | None, kind: str) -> str:
    """The class to name in advice: the program's own, or else the usual one; empty if it is one of TRL's and it is
    unknown which one."""
    return own or ("" if kind in _OF_TRL else USUAL)


def trl_trainer(trace: Trace) -> str | None:
    """`DPO` for DPOTrainer, whose arguments are a DPOConfig; None if the trace shows no trainer of TRL."""
    names, counts = np.unique(np.concatenate([trace.ops.name, trace.frames.name]), return_counts=True)
    found: Counter[str] = Counter()
    for name, count in zip(names.tolist(), counts.tolist(), strict=True):
        trainer = _named(trace.strings[name]) if name >= 0 else None
        if trainer is not None:
            found[trainer] += count
    return max(found, key=lambda one: found[one], default=None)


def _named(text: str) -> str | None:
    in_file, in_class = _FILE.search(text), _CLASS.search(text)
    if in_file is not None:
        return of_file(in_file[1])
    return None if in_class is None else in_class[1].removeprefix(_COPY).lstrip("_") or None


def of_file(name: str) -> str | None:
    """The class for `online_dpo`, without Trainer: `OnlineDPO`; None if its spelling is unknown."""
    parts = name.split("_")
    if name == _BASE or any(part not in _WORDS and len(part) > _LONGEST_ACRONYM for part in parts):
        return None
    return "".join(part.capitalize() if part in _WORDS else part.upper() for part in parts)
