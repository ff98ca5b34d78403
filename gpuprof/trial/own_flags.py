"""The program's own flags for a fix, where it declared them: what a user would type is tried before a patch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuprof.diagnosis.stack import Stack
from gpuprof.tracefile.program import Program
from gpuprof.trial.trial import Fix

SELDOM = 100
"""`logging_steps` of the fix `syncs`, as its patch has it."""
_ATTENTION = "attn_implementation"

Settings = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OwnFlags:
    """What a fix adds to the command line, and which of its switches it leaves out."""

    add: tuple[str, ...] = ()
    drop: tuple[str, ...] = ()
    settings: tuple[tuple[str, Any], ...] = ()
    """What they set, by transformers' names."""

    def applied_to(self, argv: Sequence[str]) -> tuple[str, ...]:
        """The command line with them. Of a flag that is given twice, argparse and click take the last."""
        return (*(word for word in argv if word not in self.drop), *self.add)

    def __str__(self) -> str:
        return " ".join((*self.add, *(f"without {word}" for word in self.drop)))


def own_flags(fix: Fix, program: Program | None, argv: Sequence[str]) -> OwnFlags | None:
    """The flags of `program`, as a recording saw them declared, that make this fix.

    None where there are none for all of it, where the run says that it is set already, or where words after `--` would
    take them for something else.
    """
    if program is None or not program.flags or "--" in argv:
        return None
    wanted = _wanted(fix, program)
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


def _wanted(fix: Fix, program: Program) -> tuple[Settings, Settings] | None:
    """Settings that the fix needs, and those that it is better with, by transformers' names; None where only a patch
    makes it."""
    now = program.settings
    if fix.name == "input_workers":
        return {"dataloader_num_workers": int(fix.value)}, {"dataloader_persistent_workers": True}
    if fix.name == "recompute":
        newer = "activation_checkpointing" in program.fields
        return {"activation_checkpointing" if newer else "gradient_checkpointing": False}, {}
    if fix.name == "larger_batch":
        return _larger(now, int(fix.value))
    if fix.name == "syncs":
        steps = now.get("logging_steps")
        seldom = {"logging_steps": SELDOM} if isinstance(steps, (int, float)) and 0 < steps < SELDOM else {}
        return {"logging_nan_inf_filter": False}, seldom
    simple: Mapping[str, Settings] = {
        "autocast": {"bf16": True},
        "tf32": {"tf32": True},
        "eager_attention": {_ATTENTION: fix.value},
        "pad_to_multiple": {"pad_to_multiple_of": int(fix.value) if fix.value.isdigit() else 0},
        "cuda_graphs": _compiled("reduce-overhead"),
    }
    if fix.name == "compile" and fix.value != "blocks":
        return _compiled(fix.value), {}
    return (simple[fix.name], {}) if fix.name in simple else None


def _compiled(mode: str) -> Settings:
    return {"torch_compile": True} | ({} if mode == "default" else {"torch_compile_mode": mode})


def _larger(now: Mapping[str, Any], factor: int) -> tuple[Settings, Settings] | None:
    """Where the run knows the batch and its accumulation, and this can be divided."""
    names = "per_device_train_batch_size", "gradient_accumulation_steps"
    batch, accumulation = (now.get(name) for name in names)
    if not isinstance(batch, int) or not isinstance(accumulation, int) or accumulation % factor:
        return None
    return {names[0]: batch * factor, names[1]: accumulation // factor}, {}
