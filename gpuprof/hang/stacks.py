"""Parses Python stacks printed by faulthandler and py-spy, and infers what the process is doing."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuprof.hang.dump import DumpFrame

_FAULT_THREAD = re.compile(r"(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):", re.IGNORECASE)
_FAULT_FRAME = re.compile(r'\s*File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)')
_SPY_THREAD = re.compile(r"Thread (?:0x)?\w+ \((?P<state>[\w+]+)\)(?:: \"(?P<name>.*)\")?")
_SPY_FRAME = re.compile(r"\s+(?P<function>.+) \((?P<file>[^()]+):(?P<line>\d+)\)")
_LIBRARY = re.compile(
    r"(?:site-packages|dist-packages)/|/lib/python\d[\d.]*/|^<(?:frozen|string)"
    r"|^(?:torch|accelerate|transformers|trl|peft|deepspeed|lightning|pytorch_lightning)/"
)
"""Files of packages and of the standard library; py-spy shortens paths to `torch/serialization.py` and `queue.py`."""
_ALONE = re.compile(r"(\w+)\.py$")
_DOING: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("collective", re.compile(r"torch/distributed/(?:distributed_c10d|c10d_logger|_functional_collectives)\.py")),
    ("loader", re.compile(r"torch/utils/data/(?:dataloader|_utils/)")),
    (
        "save",
        re.compile(
            r"torch/serialization\.py|safetensors/\w+\.py|torch/distributed/checkpoint/|:(?:torch\.)?(?:save|_save"
            r"|save_checkpoint|save_pretrained|save_model|_save_checkpoint|save_state|save_file)$"
        ),
    ),
    ("compile", re.compile(r"torch/_(?:dynamo|inductor)/|triton/(?:compiler|backends)/")),
)
"""Activity of a process → pattern of a frame (`file:function`); the first match counts."""


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """The stack of the training thread, innermost frame first."""

    frames: tuple[DumpFrame, ...]

    @property
    def doing(self) -> str:
        """collective, loader, save, compile; python if none of these."""
        texts = [f"{frame.file}:{frame.function}" for frame in self.frames]
        return next((what for what, pattern in _DOING if any(pattern.search(text) for text in texts)), "python")

    @property
    def own(self) -> DumpFrame | None:
        """The innermost frame outside of installed packages and the standard library; else the innermost."""
        return own_frame(self.frames)


def own_frame(frames: Sequence[DumpFrame]) -> DumpFrame | None:
    """The innermost frame that is neither of an installed package nor of the standard library; else the innermost."""
    return next((one for one in frames if not _is_library(one.file)), frames[0] if frames else None)


def _is_library(file: str) -> bool:
    alone = _ALONE.match(file)
    return bool(_LIBRARY.search(file)) or (alone is not None and alone[1] in sys.stdlib_module_names)


def is_stack(text: str) -> bool:
    """Whether a text looks like the output of faulthandler or py-spy."""
    return bool(_FAULT_THREAD.search(text) or (_SPY_THREAD.search(text) and "Python" in text))


def parse(text: str) -> ThreadStack | None:
    """The main thread's stack: with py-spy the one named MainThread; faulthandler lists it last. None if the text
    contains no stack."""
    threads = [(name, frames) for name, frames in _threads(text) if frames]
    main = [frames for name, frames in threads if name == "MainThread"] or [frames for _, frames in threads]
    return ThreadStack(tuple(main[-1])) if main else None


def _threads(text: str) -> Iterable[tuple[str, list[DumpFrame]]]:
    """(name if known, frames) of each thread."""
    name, frames, begun = "", list[DumpFrame](), False
    for line in text.splitlines():
        spy = _SPY_THREAD.match(line)
        if spy or _FAULT_THREAD.match(line):
            if begun:
                yield name, frames
            name, frames, begun = (spy["name"] or "") if spy else "", [], True
            continue
        match = _FAULT_FRAME.match(line) or (_SPY_FRAME.match(line) if begun else None)
        if match and begun:
            line_number = int(match["line"]) if match["line"].isdigit() else 0
            frames.append(DumpFrame(match["file"], line_number, match["function"]))
    if begun:
        yield name, frames
