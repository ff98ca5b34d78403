"""What the answer on a terminal leaves out to fit its lines: the least important first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.words import words


@dataclass(frozen=True, slots=True)
class Brevity:
    """How much is said. The defaults are the complete answer."""

    fixes: int = 3
    """Number of fixes written out, with their code."""
    listed: int = 4
    """Number of fixes with their title and gain; of the others only the number is given."""
    least_part: float = 0.005
    """Smallest share of the step for which a part of the bar has an entry in the legend."""
    sentences: int | None = None
    """Sentences of the verdict's explanation; None: all."""
    comments: bool = True
    """Whether the comments in a fix's code are shown."""
    alternatives: bool = True
    """Whether a fix's alternatives are shown."""
    overlapping: bool = True
    """Whether fixes that take off mostly the same time are named with the first of them."""
    warnings_first: bool = True
    """Whether warnings about the recording come above the step; else below the fixes. Errors always come above."""
    tries: int = 2
    """Lines for what is worth trying."""
    together: bool = True
    """Whether the gain of all fixes together is shown."""


_LESS: tuple[dict[str, Any], ...] = (
    {"fixes": 2},
    {"fixes": 1},
    {"overlapping": False},
    {"warnings_first": False},
    {"listed": 3},
    {"listed": 2},
    {"least_part": 0.05},
    {"sentences": 2},
    {"comments": False},
    {"sentences": 1},
    {"tries": 1},
    {"together": False},
    {"least_part": 0.1},
    {"alternatives": False},
    {"listed": 1},
    {"tries": 0},
)
"""What is left out, one thing after the other."""


def shorter_and_shorter() -> Iterator[Brevity]:
    """From almost everything to the shortest useful answer."""
    now = Brevity()
    for less in _LESS:
        now = replace(now, **less)
        yield now


def summary(diagnosis: Diagnosis, brevity: Brevity) -> str:
    """The verdict's explanation, cut to `brevity.sentences`."""
    return " ".join(words.sentences(diagnosis)[: brevity.sentences])
