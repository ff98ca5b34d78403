"""With what a training was written, as far as the run or the trace tells: fixes are written for it.

A run of `gpuprof trace` tells the class of the trainer's arguments with its fields, the flags that the program
declared, and where the model's class comes from: then a fix names nothing else. Older runs, and traces alone, tell the
kind, and TRL's trainer where its files or class are among the recorded names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gpuprof.diagnosis.run_model import Run
from gpuprof.diagnosis.trainer_names import trl_trainer
from gpuprof.tracefile.program import Flag, Program
from gpuprof.tracefile.trace import Trace

KINDS = ("unsloth", "trl", "transformers", "lightning", "inference", "torch")
_IN_TRACE = (
    ("unsloth", re.compile(r"unsloth", re.IGNORECASE)),
    ("trl", re.compile(r"(^|/)trl/")),
    ("transformers", re.compile(r"transformers/trainer\.py|^Trainer\b")),
    ("lightning", re.compile(r"(^|/)(pytorch_)?lightning/|\[pl\]\[")),
)
_BUILDS_ON = {
    "unsloth": ("unsloth", "trl", "transformers"),
    "trl": ("trl", "transformers"),
    "transformers": ("transformers",),
    "lightning": ("lightning",),
    "inference": ("inference",),
}
"""Kinds whose text fits a kind, the best first."""
_LIGHTNING = frozenset(("lightning", "pytorch_lightning"))
_SAME = {
    "torch_compile": ("compile", "use_compile"),
    "gradient_checkpointing": ("use_gradient_checkpointing", "activation_checkpointing"),
    "activation_checkpointing": ("gradient_checkpointing", "use_gradient_checkpointing"),
    "dataloader_num_workers": ("num_workers", "workers"),
    "dataloader_pin_memory": ("pin_memory", "pin_mem"),
    "per_device_train_batch_size": ("micro_batch_size", "train_batch_size", "batch_size"),
    "gradient_accumulation_steps": ("accumulation_steps", "grad_accum_steps", "accumulate_grad_batches"),
    "tf32": ("allow_tf32",),
    "use_liger_kernel": ("use_liger",),
}
"""Field of transformers' arguments → names that programs' own flags have for the same."""
_CALL = re.compile(r"\b([A-Z]\w*(?:Config|Arguments))\(")
_INFERRED = ("SFTConfig", "TrainingArguments")
"""Classes of arguments that texts name where the program's own is not known."""
_UNNAMED = "in the trainer's arguments:\n"
"""Before settings of a class that is not known."""
_TASK = re.compile(r"For(CausalLM|MaskedLM|SequenceClassification|TokenClassification|QuestionAnswering)$")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)


class Code(str):
    """A value that is an expression, such as `8 * batch_size`; a number in digits is one."""


@dataclass(frozen=True, slots=True)
class Stack:
    """What drives the training loop. `torch`: a loop of one's own, or one that leaves no mark in the trace.
    `inference`: nothing is trained."""

    kind: str
    peft: bool
    own_arguments: str | None = None
    """Class of the trainer's arguments, where the run has it or the trace shows the trainer."""
    fields: frozenset[str] | None = None
    """Its fields; None where they are not known."""
    trainer: str | None = None
    """Class of the trainer, where the run has it or the trace shows it."""
    flags: tuple[Flag, ...] = ()
    """That the program declared."""
    model_class: str | None = None
    package: str | None = None
    """The package that made the model's class; None where it is not known."""
    attentions: frozenset[str] | None = None
    """What `attn_implementation` of the model's class may be; None where that is not known."""

    def takes_attention(self, name: str) -> bool:
        """Whether the model can be loaded with this `attn_implementation`, or that is not known."""
        has_option = self.from_transformers or self.package == "sentence_transformers"
        return has_option and (self.attentions is None or name in self.attentions)

    def fix(self, torch: str, setting: str = "", **others: str) -> str:
        """The text for this stack.

        setting: what `setting` returned; it counts for every kind that has no text of its own. others: texts by kind.
        One that names a class of arguments that the program is not known to use, or a field that this class lacks, is
        not taken. Of a kind without a text, that of the kind that it builds on.
        """
        if setting and self.kind in ("lightning", "torch"):
            return setting
        for kind in _BUILDS_ON.get(self.kind, ()):
            text = others.get(kind, "")
            if text and self.fits(text):
                return text
        return setting or torch

    @property
    def arguments(self) -> str:
        """The class that holds the training arguments; empty where it is one of TRL's, and not known which."""
        return self.own_arguments or ("" if self.kind in ("trl", "unsloth") else "TrainingArguments")

    def has(self, name: str) -> bool | None:
        """Whether the arguments have a field; None where they are not known."""
        return None if self.fields is None else name in self.fields

    @property
    def checkpointing(self) -> str:
        """The field for gradient checkpointing, which transformers renamed."""
        return "activation_checkpointing" if self.has("activation_checkpointing") else "gradient_checkpointing"

    def setting(self, values: Mapping[str, Any], extra: Mapping[str, Any] | None = None, note: str = "") -> str:
        """How these fields are set: by the program's own flags if it declared one for each, else in the class of its
        arguments. Empty where they cannot be set so.

        extra: further fields, left out where there are none of that name. note: put behind, where there is a text.
        """
        flags = [self.flag(name, value) for name, value in values.items()]
        if all(flags):
            flags += [self.flag(name, value) for name, value in (extra or {}).items()]
            return " ".join(filter(None, flags)) + note
        if "transformers" not in _BUILDS_ON.get(self.kind, ()) or any(self.has(name) is False for name in values):
            return ""
        given = {**values, **{name: value for name, value in (extra or {}).items() if self.has(name) is not False}}
        fields = ", ".join(f"{name}={_code(value)}" for name, value in given.items())
        call = f"{self.arguments}({fields})" if self.arguments else f"{_UNNAMED}{fields}"
        return f"{call}{note}"

    def flag(self, name: str, value: Any) -> str:
        """`--compile=True`: a field's value by the program's own flag; empty without one that is known to take it."""
        for wanted in (name, *_SAME.get(name, ())):
            for flag in self.flags:
                names = [each for each in flag.names if each.lstrip("-").replace("-", "_").lower() == wanted]
                if names:
                    return self._flagged(flag, max(names, key=len), name, value)
        return ""

    def _flagged(self, flag: Flag, name: str, field: str, value: Any) -> str:
        if isinstance(value, Code):
            if not value.isdecimal():
                return ""
            value = int(value)
        if flag.kind == "assigned":
            return f"{name}={value!r}" if isinstance(value, (bool, int, float)) else ""
        if isinstance(value, bool):
            opposite = next((each for each in flag.names if re.match(r"--no[-_]", each)), "")
            by_kind = {
                "switch": name if value else f"without {name}",
                "on_off": name if value else opposite,
                "boolean": f"{name} {str(value).lower()}",
            }
            return by_kind.get(flag.kind, "")
        if flag.kind != "value":
            return ""
        # Words mean what the field's do only where the flag is the field's own.
        known = isinstance(value, int) or (isinstance(value, str) and bool(self.has(field)))
        return f"{name} {json.dumps(value) if ' ' in str(value) else value}" if known else ""

    def fits(self, text: str) -> bool:
        """Whether a text names no arguments but the program's own, and of these no field that they lack."""
        for call in _CALL.finditer(text):
            if call[1] != self.arguments and call[1] in _INFERRED:
                return False
            lacks = self.fields is not None and not self.fields.issuperset(_keywords(text[call.end() :]))
            if call[1] == self.arguments and lacks:
                return False
        return True

    @property
    def from_transformers(self) -> bool:
        """Whether transformers made the model's class, or that is not known."""
        return self.package in (None, "transformers")

    @property
    def is_causal(self) -> bool:
        """Whether the model is transformers' for the next token, or that is not known."""
        name = self.model_class
        known = name is not None and _TASK.search(name) is not None
        return self.from_transformers and (not known or str(name).endswith("ForCausalLM"))

    @property
    def labels_rows(self) -> bool:
        """Whether the model is known to give one output for each row of a batch (a classifier, a reward model): then a
        row cannot hold several samples."""
        return bool(re.search(r"For(SequenceClassification|MultipleChoice)$", self.model_class or ""))

    def loaded(self, **options: Any) -> str:
        """How the model is loaded with these options of `from_pretrained`; empty where transformers did not make it."""
        if "attn_implementation" in options and not self.takes_attention(options["attn_implementation"]):
            return ""
        given = ", ".join(f"{name}={_code(value)}" for name, value in options.items())
        if self.package == "sentence_transformers":
            return f"SentenceTransformer(..., model_kwargs={_code(options)})"
        if not self.from_transformers:
            return ""
        task = _TASK.search(self.model_class or "")
        own = self.model_class if self.package and self.model_class and "For" in self.model_class else None
        return f"{f'AutoModelFor{task[1]}' if task else own or 'AutoModelForCausalLM'}.from_pretrained(..., {given})"


def stack_of(
    trace: Trace, run: Run | None, packages: frozenset[str] = frozenset(), *, inference: bool = False
) -> Stack:
    """From what the run says of its program, else from what it imported and how its steps were counted; without a run
    from names in the trace. inference: nothing is trained."""
    if inference:
        return Stack("inference", peft=False)
    if run is None:
        names = np.unique(np.concatenate([trace.ops.name, trace.frames.name]))
        texts = [trace.strings[i] for i in names.tolist() if i >= 0]
        kind = next((k for k, pattern in _IN_TRACE if any(pattern.search(t) for t in texts)), "torch")
        return _with_shown(Stack(kind, any("lora" in t.lower() or "peft/" in t for t in texts)), trace)
    program, model = run.program or Program(), run.model or {}
    arguments, trainer = program.arguments, program.trainer
    stack = Stack(
        _kind(run, program, packages),
        "peft" in packages,
        own_arguments=arguments and arguments.name.removeprefix("Unsloth"),
        fields=frozenset(program.fields) if arguments is not None and program.fields else None,
        trainer=trainer and trainer.name.removeprefix("Unsloth"),
        flags=program.flags,
        model_class=_identifier(model.get("class")),
        package=_identifier(model.get("library")),
        attentions=_attentions(model),
    )
    return stack if arguments is not None else _with_shown(stack, trace)


def _with_shown(stack: Stack, trace: Trace) -> Stack:
    """With TRL's trainer that the trace shows, and the class of its arguments."""
    shown = trl_trainer(trace) if stack.kind in ("trl", "unsloth") else None
    if shown is None:
        return stack
    return replace(stack, trainer=stack.trainer or f"{shown}Trainer", own_arguments=f"{shown}Config")


def _kind(run: Run, program: Program, packages: frozenset[str]) -> str:
    if "unsloth" in packages:
        return "unsloth"
    used = frozenset().union(*(each.packages for each in (program.trainer, program.arguments) if each is not None))
    if used & _LIGHTNING or (run.step_source and "lightning" in run.step_source):
        return "lightning"
    if program.arguments is not None:
        return "trl" if "trl" in used else "transformers"
    by_trainer = run.step_source == "trainer"
    return next((k for k in ("trl", "transformers") if k in packages and by_trainer), "torch")


def _attentions(model: Mapping[str, Any]) -> frozenset[str] | None:
    """The implementations of attention that a model's class offers, as the run has it: none for a class without that
    option. None where the run does not say, as older ones do not."""
    if "attention_options" not in model:
        return None
    options = model["attention_options"]
    return frozenset(one for one in options if isinstance(one, str)) if isinstance(options, list) else frozenset()


def _identifier(value: Any) -> str | None:
    return value if isinstance(value, str) and _IDENTIFIER.fullmatch(value) else None


def _code(value: Any) -> str:
    """A value as Python writes it, strings in double quotes."""
    if isinstance(value, Code):
        return value
    if isinstance(value, str):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_code(k)}: {_code(v)}" for k, v in value.items()) + "}"
    return repr(value)


def _keywords(text: str) -> set[str]:
    """Names of the keyword arguments of a call, from behind its parenthesis."""
    depth, words, found = 1, "", set()
    for at, sign in enumerate(text):
        if sign in "([{":
            depth += 1
        elif sign in ")]}":
            depth -= 1
            if depth == 0:
                break
        if depth > 1 or sign in ",([{)]}\"'":
            words = ""
        elif sign == "=" and words.strip().isidentifier() and text[at + 1 : at + 2] != "=":
            found.add(words.strip())
            words = ""
        else:
            words += sign
    return found
