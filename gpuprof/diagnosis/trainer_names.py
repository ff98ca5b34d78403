"""Which of TRL's trainers ran, by the names in a trace: their files, and their classes."""

from __future__ import annotations

import re
from collections import Counter

import numpy as np

from gpuprof.tracefile.trace import Trace

_FILE = re.compile(r"(?:^|/)trl/(?:trainer|experimental/\w+)/(\w+)_trainer\.py\b(?!.*<module>)")
_CLASS = re.compile(r"\b([A-Z]\w*)Trainer\b(?!.*<module>)")
_WORDS = frozenset(("async", "distillation", "iterative", "nash", "online", "reward", "server"))
"""Parts of files' names that are words; the others are acronyms."""
_LONGEST_ACRONYM = 5
_BASE = "base"


def trl_trainer(trace: Trace) -> str | None:
    """`DPO` of DPOTrainer, whose arguments are a DPOConfig; None where the trace shows none."""
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
    return None if in_class is None else in_class[1].removeprefix("Unsloth").lstrip("_") or None


def of_file(name: str) -> str | None:
    """The class of `online_dpo`, without Trainer; None where its spelling is not known."""
    parts = name.split("_")
    if name == _BASE or any(part not in _WORDS and len(part) > _LONGEST_ACRONYM for part in parts):
        return None
    return "".join(part.capitalize() if part in _WORDS else part.upper() for part in parts)
