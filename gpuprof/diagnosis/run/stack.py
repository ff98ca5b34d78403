"""The libraries a training was written with, from the run or the trace: fixes are written for them.

A run of `gpuprof trace` has the class of the trainer's arguments with its fields, the flags that the program declared,
and the origin of the model's class: a fix then names nothing else. Older runs, and traces alone, only show the kind,
and TRL's trainer if its files or class are among the recorded names."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpuprof.diagnosis.result.fix import Code, Fix, arguments, as_fix, call, joined, option
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.diagnosis.run.trainer_arguments import INFERRED, shown_name, trainer_arguments
from gpuprof.tracefile.run_folder.program import Flag, Program
from gpuprof.tracefile.trace import Trace

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
"""Kind → kinds whose fixes fit it, the best first."""
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
"""Field of transformers' arguments → names of programs' own flags for the same."""
CAUSAL = "AutoModelForCausalLM"
_TASK = re.compile(r"For(CausalLM|MaskedLM|SequenceClassification|TokenClassification|QuestionAnswering)$")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,99}", re.ASCII)


@dataclass(frozen=True, slots=True)
class OwnFlag:
    """An option of the program that sets a field, with its value."""

    name: str
    value: Any
    words: tuple[str, ...]
    """Words to type; empty: the option is removed."""

    @property
    def fix(self) -> Fix:
        """The flag as a fix; a word with blanks is quoted."""
        text = " ".join(json.dumps(word) if " " in word else word for word in self.words) or f"without {self.name}"
        return option(text, self.name, self.value if self.words else None)


@dataclass(frozen=True, slots=True)
class Stack:
    """What drives the training loop. `torch`: the user's own loop, or one that cannot be recognised in the trace.
    `inference`: nothing is trained."""

    kind: str
    peft: bool
    own_arguments: str | None = None
    """Class of the trainer's arguments; None unless the run has it or the trace shows the trainer."""
    fields: frozenset[str] | None = None
    """Its fields; None if unknown."""
    trainer: str | None = None
    """Class of the trainer; None unless the run has it or the trace shows it."""
    flags: tuple[Flag, ...] = ()
    """Flags that the program declared."""
    model_class: str | None = None
    package: str | None = None
    """The package that defines the model's class; None if unknown."""
    attentions: frozenset[str] | None = None
    """Values that `attn_implementation` of the model's class may have; None if unknown."""

    def takes_attention(self, name: str) -> bool:
        """Whether the model can be loaded with this `attn_implementation`; True if unknown."""
        has_option = self.from_transformers or self.package == "sentence_transformers"
        return has_option and (self.attentions is None or name in self.attentions)

    def fix(self, torch: Fix | str, setting: Fix | str = "", **others: Fix | str) -> Fix:
        """The fix for this stack.

        setting: the result of `setting`, used for every kind without a fix of its own. others: fixes by kind. A fix is
        not used if it names a class of arguments that the program is not known to use, or a field that this class
        lacks. A kind without a fix gets that of the kind it builds on.
        """
        if setting and self.kind in ("lightning", "torch"):
            return as_fix(setting)
        for kind in _BUILDS_ON.get(self.kind, ()):
            found = as_fix(others.get(kind, ""))
            if found and self.fits(found):
                return found
        return as_fix(setting) or as_fix(torch)

    def builds_on(self, kind: str) -> bool:
        """Whether fixes for this kind fit: unsloth builds on TRL, and TRL on transformers."""
        return kind in _BUILDS_ON.get(self.kind, ())

    @property
    def arguments(self) -> str:
        """The class that holds the training arguments; empty if it is one of TRL's and it is unknown which one."""
        return shown_name(self.own_arguments, self.kind)

    def has(self, name: str) -> bool | None:
        """Whether the arguments have a field; None if unknown."""
        return None if self.fields is None else name in self.fields

    @property
    def checkpointing(self) -> str:
        """The field for gradient checkpointing, which transformers renamed."""
        return "activation_checkpointing" if self.has("activation_checkpointing") else "gradient_checkpointing"

    def setting(self, values: Mapping[str, Any], extra: Mapping[str, Any] | None = None, note: Fix | str = "") -> Fix:
        """The fix that sets these fields: by the program's own flags if it declared one for each, else in the class of
        its arguments. Empty if they cannot be set in either way.

        extra: further fields, left out if they do not exist. note: prose to append to a fix.
        """
        flags = [self.flag(name, value) for name, value in values.items()]
        if all(flags):
            flags += [self.flag(name, value) for name, value in (extra or {}).items()]
            return joined([flag.fix for flag in flags if flag is not None], " ") + note
        if not self.builds_on("transformers") or any(self.has(name) is False for name in values):
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
        # A text value means the same only if the flag is the field's own.
        elif flag.kind == "value" and (isinstance(value, int) or (isinstance(value, str) and self.has(field))):
            words = name, str(value)
        return None if words is None else OwnFlag(name, value, words)

    def fits(self, fix: Fix) -> bool:
        """Whether a fix names only the program's own arguments, and only fields that they have."""
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
        """Whether transformers defines the model's class; True if unknown."""
        return self.package in (None, "transformers")

    @property
    def is_causal(self) -> bool:
        """Whether the model is one of transformers' causal language models; True if unknown."""
        name = self.model_class
        known = name is not None and _TASK.search(name) is not None
        return self.from_transformers and (not known or str(name).endswith("ForCausalLM"))

    @property
    def labels_rows(self) -> bool:
        """Whether the model is known to give one output per row of a batch (a classifier, a reward model), so that a
        row cannot hold several samples."""
        return bool(re.search(r"For(SequenceClassification|MultipleChoice)$", self.model_class or ""))

    def loaded(self, causal: bool = True, **options: Any) -> Fix:
        """The fix that loads the model with these options of `from_pretrained`; empty if it is not a transformers
        model. causal: whether it predicts the next token, used if its class is unknown."""
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
    """The stack, from what the run recorded about its program, else from its imports and how its steps were counted;
    without a run from names in the trace. inference: nothing is trained."""
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
    """The attention implementations of a model's class, from the run: empty for a class without that option. None if
    the run does not say, as for older runs."""
    if "attention_options" not in model:
        return None
    options = model["attention_options"]
    return frozenset(one for one in options if isinstance(one, str)) if isinstance(options, list) else frozenset()


def _identifier(value: Any) -> str | None:
    return value if isinstance(value, str) and _IDENTIFIER.fullmatch(value) else None
