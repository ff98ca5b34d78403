"""With what a training was written, as far as the run or the trace tells: fixes are written for it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from gpuprof.diagnosis.run_model import Run
from gpuprof.tracefile.model import Trace

KINDS = ("unsloth", "trl", "transformers", "lightning", "inference", "torch")
_IN_TRACE = (
    ("unsloth", re.compile(r"unsloth", re.IGNORECASE)),
    ("trl", re.compile(r"(^|/)trl/")),
    ("transformers", re.compile(r"transformers/trainer\.py|^Trainer\b")),
    ("lightning", re.compile(r"(^|/)(pytorch_)?lightning/|\[pl\]\[")),
)


@dataclass(frozen=True, slots=True)
class Stack:
    """What drives the training loop. `torch`: a loop of one's own, or one that leaves no mark in the trace.
    `inference`: nothing is trained."""

    kind: str
    peft: bool

    def fix(self, torch: str, **others: str) -> str:
        """The text for this stack; of one that has none of its own, the one of the stack that it builds on."""
        order = {
            "unsloth": ("unsloth", "trl", "transformers"),
            "trl": ("trl", "transformers"),
            "transformers": ("transformers",),
            "lightning": ("lightning",),
            "inference": ("inference",),
        }
        for kind in order.get(self.kind, ()):
            if kind in others:
                return others[kind]
        return torch

    @property
    def arguments(self) -> str:
        """The class that holds the training arguments."""
        return "SFTConfig" if self.kind in ("trl", "unsloth") else "TrainingArguments"


def stack_of(
    trace: Trace, run: Run | None, packages: frozenset[str] = frozenset(), *, inference: bool = False
) -> Stack:
    """From what the run imported and how its steps were told; without a run from names in the trace."""
    if inference:
        return Stack("inference", peft=False)
    if run is not None:
        by_trainer = run.step_source == "trainer"
        kind = next((k for k in ("unsloth", "trl", "transformers") if k in packages and by_trainer), "torch")
        if "unsloth" in packages:
            kind = "unsloth"
        if run.step_source and "lightning" in run.step_source:
            kind = "lightning"
        return Stack(kind, "peft" in packages)
    names = np.unique(np.concatenate([trace.ops.name, trace.frames.name]))
    texts = [trace.strings[i] for i in names.tolist() if i >= 0]
    kind = next((k for k, pattern in _IN_TRACE if any(pattern.search(t) for t in texts)), "torch")
    return Stack(kind, any("lora" in t.lower() or "peft/" in t for t in texts))
