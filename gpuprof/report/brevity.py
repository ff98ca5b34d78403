"""What the answer on a terminal leaves out where its lines are too few: the least important first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from gpuprof.diagnosis.diagnosis import Diagnosis
from gpuprof.report import words


@dataclass(frozen=True, slots=True)
class Brevity:
    """How much is said. As it is, everything that belongs to the answer."""

    fixes: int = 3
    """Written out, with their code."""
    titles: bool = True
    """Of the other fixes; else only how many there are."""
    least_part: float = 0.005
    """Share of the step from which on a part of the bar has an entry in the legend."""
    sentences: int | None = None
    """Of the verdict's explanation; None: all."""
    comments: bool = True
    """Of a fix's code."""
    alternatives: bool = True
    """Lines of a fix that say what else would do."""
    warnings_first: bool = True
    """Warnings about the recording stand above the step; else below the fixes. Errors always stand above."""
    tries: int = 2
    """Lines for what is worth trying."""
    together: bool = True
    """What the fixes gain together."""


_LESS: tuple[dict[str, Any], ...] = (
    {"fixes": 2},
    {"fixes": 1},
    {"warnings_first": False},
    {"titles": False},
    {"least_part": 0.05},
    {"sentences": 2},
    {"comments": False},
    {"sentences": 1},
    {"tries": 1},
    {"together": False},
    {"least_part": 0.1},
    {"alternatives": False},
    {"tries": 0},
)
"""What is given up, one after the other."""


def shorter_and_shorter() -> Iterator[Brevity]:
    """From a little less than everything to the least that still answers."""
    now = Brevity()
    for less in _LESS:
        now = replace(now, **less)
        yield now


def summary(diagnosis: Diagnosis, brevity: Brevity) -> str:
    """The verdict's explanation, in as many sentences as are wanted."""
    return " ".join(words.sentences(diagnosis)[: brevity.sentences])
