"""The bars of a comparison: both steps on one scale, and the waterfall from one to the other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuprof.diagnosis.comparison.comparison import Comparison, Term
from gpuprof.diagnosis.verdict.step_parts import Bar, BarPart
from gpuprof.report.words import comparison_words as words

_COPIES = ("memcpy", "memset")


def step_bars(comparison: Comparison) -> tuple[Bar, Bar]:
    """Both steps as work of three kinds and idle time by cause, in the same order."""
    keys: dict[tuple[str, bool], list[int]] = {}
    for term in comparison.terms:
        sums = keys.setdefault(_key(term), [0, 0])
        sums[0] += term.a_ns
        sums[1] += term.b_ns
    work = [(key, False) for key in ("compute", "communication", "copy") if (key, False) in keys]
    waits = sorted((key for key in keys if key[1]), key=lambda key: -max(keys[key]))
    parts = [tuple(BarPart(key[0], keys[key][side], key[1]) for key in (*work, *waits)) for side in (0, 1)]
    step = comparison.step
    return Bar(comparison.a.device, step.a_ns, parts[0]), Bar(comparison.b.device, step.b_ns, parts[1])


def _key(term: Term) -> tuple[str, bool]:
    """(name of the colour, whether it is waiting)."""
    if term.kind == "idle":
        return term.name, True
    return ("communication" if term.name == "communication" else "copy" if term.name in _COPIES else "compute"), False


@dataclass(frozen=True, slots=True)
class Fall:
    """One row of the waterfall: its start and end on the time axis, ns."""

    kind: Literal["total", "less", "more"]
    label: str
    from_ns: int
    to_ns: int
    term: Term | None = None

    @property
    def difference_ns(self) -> int:
        return self.to_ns - self.from_ns


def waterfall(comparison: Comparison) -> tuple[Fall, ...]:
    """A's step, the terms that are worth a bar, the rest, B's step. Each begins where the last one ended."""
    step = comparison.step
    big, rest = words.shown_terms(comparison)
    found, at = [Fall("total", "A", 0, step.a_ns)], step.a_ns
    for label, difference, term in [*((words.term(t), t.difference_ns, t) for t in big), ("all else", rest, None)]:
        if difference:
            found.append(Fall("less" if difference < 0 else "more", label, at, at + difference, term))
            at += difference
    return (*found, Fall("total", "B", 0, step.b_ns))


def extent(falls: tuple[Fall, ...]) -> int:
    """End of the axis."""
    return max((max(fall.from_ns, fall.to_ns) for fall in falls), default=0)


def lowest(falls: tuple[Fall, ...]) -> int:
    """Start of the axis: below zero if the sum of what got faster exceeds the step before what got slower is added."""
    return min(0, min((min(fall.from_ns, fall.to_ns) for fall in falls), default=0))
