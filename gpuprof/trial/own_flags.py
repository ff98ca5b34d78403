"""The program's own flags for a fix, if it declares any: flags that a user would type are tried before a patch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpuprof.diagnosis.run.stack import Stack
from gpuprof.record.patches.context import Known, Settings
from gpuprof.tracefile.run_folder.program import Program
from gpuprof.trial.patches import patch_for
from gpuprof.trial.trial import TriedFix

_ATTENTION = "attn_implementation"


@dataclass(frozen=True, slots=True)
class OwnFlags:
    """What a fix adds to the command line, and which switches it removes."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    """The fields that they set, by transformers' names."""

    def applied_to(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The command line with the flags. If a flag is given twice, argparse and click take the last one."""
        return (*(word for word in argv if word not in self.drop), *self.add)

    def __str__(self) -> str:
        return " ".join((*self.add, *(f"without {word}" for word in self.drop)))


def own_flags(fix: TriedFix, program: Program | None, argv: Sequence[str]) -> OwnFlags | None:
    """The declared flags of `program` that apply this fix.
    None if they do not cover all of it, if it is already set, or if words after `--` would swallow them.
    """
    if program is None or not program.flags or "--" in argv:
        return None
    wanted = patch_for(fix.name).fields(fix.value, Known(program.settings, program.fields))
    if wanted is None or all(program.settings.get(name) == value for name, value in wanted[0].items()):
        return None
    # The word for an attention implementation is transformers' own wherever a flag has this very name.
    stack = Stack("torch", False, fields=frozenset((*program.fields, _ATTENTION)), flags=program.flags)
    return _of(stack, *wanted, argv)


def _of(stack: Stack, needed: Settings, further: Settings, argv: Sequence[str]) -> OwnFlags | None:
    flags = [stack.flag(name, value) for name, value in needed.items()]
    if None in flags:
        return None
    flags += [stack.flag(name, value) for name, value in further.items()]
    found = [flag for flag in flags if flag is not None]
    drop = tuple(flag.name for flag in found if not flag.words)
    if any(word not in argv for word in drop):
        return None
    return OwnFlags(tuple(word for flag in found for word in flag.words), drop, tuple(needed.items()))
