"""With what a training was written, as far as the run or the trace tells: fixes are written for it.

A run of `gpuprof trace` tells the class of the trainer's arguments with its fields, the flags that the program
declared, and where the model's class comes from: then a fix names nothing else. Older runs, and traces alone, tell the
kind, and TRL's trainer where its files or class are among the recorded names.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.diagnosis.fix import Code, Fix, arguments, as_fix, call, joined, option
from gpuprof.diagnosis.run_model import Run
from gpuprof.diagnosis.trainer_arguments import INFERRED, shown_name, trainer_arguments
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
CAUSAL = "AutoModelForCausalLM"
_TASK = re.compile(r"For(CausalLM|MaskedLM|SequenceClassification|TokenClassification|QuestionAnswering)$")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class OwnFlag:
    """An option of the program that sets a field, with its value."""

    name: str
    value: Any
    words: tuple[str, ...]
    """What is typed; empty: the option is left out."""

    @property
    def fix(self) -> Fix:
        """The same as a fix; a word with blanks is quoted."""
        text = " ".join(json.dumps(word) if " " in word else word for word in self.words) or f"without {self.name}"
        return option(text, self.name, self.value if self.words else None)


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

    def fix(self, torch: Fix | str, setting: Fix | str = "", **others: Fix | str) -> Fix:
        """The fix for this stack.

        setting: what `setting` returned; it counts for every kind that has no text of its own. others: fixes by kind.
        One that names a class of arguments that the program is not known to use, or a field that this class lacks, is
        not taken. Of a kind without a fix, that of the kind that it builds on.
        """
        if setting and self.kind in ("lightning", "torch"):
            return as_fix(setting)
        for kind in _BUILDS_ON.get(self.kind, ()):
            found = as_fix(others.get(kind, ""))
            if found and self.fits(found):
                return found
        return as_fix(setting) or as_fix(torch)

    @property
    def arguments(self) -> str:
        """The class that holds the training arguments; empty where it is one of TRL's, and not known which."""
        return shown_name(self.own_arguments, self.kind)

    def has(self, name: str) -> bool | None:
        """Whether the arguments have a field; None where they are not known."""
        return None if self.fields is None else name in self.fields

    @property
    def checkpointing(self) -> str:
        """The field for gradient checkpointing, which transformers renamed."""
        return "activation_checkpointing" if self.has("activation_checkpointing") else "gradient_checkpointing"

    def setting(self, values: Mapping[str, Any], extra: Mapping[str, Any] | None = None, note: Fix | str = "") -> Fix:
        """How these fields are set: by the program's own flags if it declared one for each, else in the class of its
        arguments. Empty where they cannot be set so.

        extra: further fields, left out where there are none of that name. note: prose behind it, where there is a fix.
        """
        flags = [self.flag(name, value) for name, value in values.items()]
        if all(flags):
            flags += [self.flag(name, value) for name, value in (extra or {}).items()]
            return joined([flag.fix for flag in flags if flag is not None], " ") + note
        if "transformers" not in _BUILDS_ON.get(self.kind, ()) or any(self.has(name) is False for name in values):
            return Fix()
        given = {**values, **{name: value for name, value in (extra or {}).items() if self.has(name) is not False}}
        return arguments(self.arguments, given) + note

    def flag(self, name: str, value: Any) -> OwnFlag | None:
        """`--compile=True`: a field's value by the program's own flag; None without one that is known to take it."""
        for wanted in (name, *_SAME.get(name, ())):
            for flag in self.flags:
                names = [each for each in flag.names if each.lstrip("-").replace("-", "_").lower() == wanted]
                if names:
                    return self._flagged(flag, max(names, key=len), name, value)
        return None

    def _flagged(self, flag: Flag, name: str, field: str, value: Any) -> OwnFlag | None:
        if isinstance(value, Code):
            if not value.isdecimal():
                return None
            value = int(value)
        words: tuple[str, ...] | None = None
        if flag.kind == "assigned":
            words = (f"{name}={value!r}",) if isinstance(value, (bool, int, float)) else None
        elif isinstance(value, bool):
            opposite = next((each for each in flag.names if re.match(r"--no[-_]", each)), None)
            by_kind: dict[str, tuple[str, ...] | None] = {
                "switch": (name,) if value else (),
                "on_off": (name,) if value else None if opposite is None else (opposite,),
                "boolean": (name, str(value).lower()),
            }
            words = by_kind.get(flag.kind)
        # Words mean what the field's do only where the flag is the field's own.
        elif flag.kind == "value" and (isinstance(value, int) or (isinstance(value, str) and self.has(field))):
            words = name, str(value)
        return None if words is None else OwnFlag(name, value, words)

    def fits(self, fix: Fix) -> bool:
        """Whether a fix names no arguments but the program's own, and of these no field that they lack."""
        for one in fix.settings:
            if one.surface != "argument" or one.of is None:
                continue
            if one.of != self.arguments and one.of in INFERRED:
                return False
            if one.of == self.arguments and self.has(one.name) is False:
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

    def loaded(self, causal: bool = True, **options: Any) -> Fix:
        """How the model is loaded with these options of `from_pretrained`; empty where transformers did not make it.
        causal: whether it predicts the next token, where its own class is not known."""
        if "attn_implementation" in options and not self.takes_attention(options["attn_implementation"]):
            return Fix()
        if self.package == "sentence_transformers":
            return call("SentenceTransformer", ..., model_kwargs=options)
        if not self.from_transformers:
            return Fix()
        task = _TASK.search(self.model_class or "")
        own = self.model_class if self.package and self.model_class and "For" in self.model_class else None
        loader = f"AutoModelFor{task[1]}" if task else own or (CAUSAL if causal else "AutoModel")
        return call(f"{loader}.from_pretrained", ..., **options)


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
        found = trainer_arguments(kind, Program(), trace)
        peft = any("lora" in t.lower() or "peft/" in t for t in texts)
        return Stack(kind, peft, own_arguments=found.name, trainer=found.trainer)
    program, model = run.program or Program(), run.model or {}
    kind = _kind(run, program, packages)
    found = trainer_arguments(kind, program, trace)
    return Stack(
        kind,
        "peft" in packages,
        own_arguments=found.name,
        fields=found.fields,
        trainer=found.trainer,
        flags=program.flags,
        model_class=_identifier(model.get("class")),
        package=_identifier(model.get("library")),
        attentions=_attentions(model),
    )


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
