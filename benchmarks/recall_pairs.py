"""Measured changes of programs, what gpuprof says of each, and where both are kept; counted by `recall`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

KEPT = Path(__file__).with_name("recall.json")
FIRST_CONTACT = Path(__file__).with_name("recall_first_contact.json")
Where = Literal["fixes", "worth_trying", "considered", "absent"]


@dataclass(frozen=True, slots=True)
class Gain:
    """The measured gain of one change: step as it is / step with the change, for equal work; 0 if it did not run."""

    low: float
    middle: float
    high: float
    scatter: float | None = None
    """The slowest of the processes as they are over the quickest, which nothing was changed between; None of one, and
    of pairs that were kept without."""

    @property
    def stands_out(self) -> bool:
        """Whether it is more than unchanged processes differ by."""
        return self.scatter is not None and self.middle > self.scatter


@dataclass(frozen=True, slots=True)
class Timed:
    """One change whose gain was measured."""

    name: str
    finding: str | None
    """The finding of gpuprof that would propose it; None from outside its catalogue."""
    title: str | None
    work: float
    gain: Gain
    also: tuple[str, ...] = ()
    """Findings whose fixes were made at the same time: all of them have to be shown."""
    form: str = ""
    """`part` or `more` for another form of the finding's fix, whose gain is not compared."""


@dataclass(frozen=True, slots=True)
class Program:
    """One recorded program and the measured changes."""

    name: str
    role: str
    path: Path
    changes: tuple[Timed, ...]
    differs: bool = False
    """Whether its recording holds the steps that were timed, which are not alike."""


@dataclass(frozen=True, slots=True)
class Pair:
    """A measured change and what gpuprof says about it."""

    program: str
    role: str
    change: str
    finding: str | None
    gain: Gain
    where: Where
    rank: int | None
    """Among all that is shown, from 1; fixes that take off mostly the same time share a place."""
    predicted: tuple[float, float, float] | None
    """Low, expected, high gain, where that is of the same work."""
    probability: float | None
    why: str = ""
    """Reason for not showing it."""

    @property
    def shown(self) -> bool:
        return self.where in ("fixes", "worth_trying")

    @property
    def held(self) -> bool | None:
        """Whether the predicted interval meets what the turns measured."""
        if self.predicted is None:
            return None
        return self.predicted[0] <= self.gain.high and self.predicted[2] >= self.gain.low


def gain_of(before: Sequence[float], after: Sequence[float], work: float = 1.0) -> Gain:
    """From step times, ms, of the turns as it is and with a change; turn by turn where there are as many of each."""
    if not before or not after:
        return Gain(0.0, 0.0, 0.0)
    turns = list(zip(before, after, strict=False))
    each = sorted(work * a / b for a, b in turns)
    tenth = len(each) // 10
    middle = work * statistics.median(before) / statistics.median(after)
    scatter = max(before) / min(before) if len(before) > 1 else None
    return Gain(min(each[tenth], middle), middle, max(each[-1 - tenth], middle), scatter)


def keep(found: Sequence[Pair], path: Path) -> None:
    """Writes pairs, one a line."""
    rows = ",\n".join(json.dumps(asdict(pair)) for pair in found)
    path.write_text(f"[\n{rows}\n]\n", encoding="utf-8")


def not_met(found: Iterable[Program]) -> list[Program]:
    """Of some programs those of which neither recall.json nor recall_first_contact.json has pairs."""
    seen = {pair.program for pair in (*kept(), *met_before())}
    return [one for one in found if one.name not in seen]


def met_before() -> list[Pair]:
    return kept(FIRST_CONTACT) if FIRST_CONTACT.exists() else []


def kept(path: Path | None = None) -> list[Pair]:
    """The pairs of a file, by default of recall.json."""
    rows = json.loads((path or KEPT).read_text(encoding="utf-8"))
    return [
        Pair(**{**row, "gain": Gain(**row["gain"]), "predicted": row["predicted"] and tuple(row["predicted"])})
        for row in rows
    ]
