"""Recall, precision and reliability (see `recall`), as lines and as their section of docs/accuracy.md."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks.out_of_sample import wilson
from benchmarks.recall_pairs import Gain, Pair, met_before
from scenarios.catalogue import campaign_names, scenario, scenarios

HEADING = "## Recall: how much of what gains is shown\n"
GAINS = 1.10
"""From which measured gain on a change must be shown."""
GAINED = 1.02
"""From which measured gain on a shown change was worth showing."""
LOST = 0.97
"""A shown fix that measures below this made the training slower."""
FIRST = 3
"""Fixes that a person reads."""
AGAIN = "_again"
"""How the name of a second run of a program ends."""
BINS = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)
"""Ends of the probabilities' classes."""


@dataclass(frozen=True, slots=True)
class Share:
    """How many of how many, with the 80 % interval of the share."""

    hits: int
    of: int

    @property
    def interval(self) -> tuple[float, float]:
        return wilson(self.hits, self.of)

    def __str__(self) -> str:
        low, high = self.interval
        return f"{self.hits} of {self.of} ({100 * low:.0f}–{100 * high:.0f} %)" if self.of else "none"


def share(found: Iterable[Pair], holds: Callable[[Pair], object]) -> Share:
    """Of some pairs, those for which it holds."""
    each = [bool(holds(pair)) for pair in found]
    return Share(sum(each), len(each))


def summary(found: Sequence[Pair]) -> dict[str, Share]:
    """Name of a figure → its share."""
    gaining = [pair for pair in found if pair.gain.middle >= GAINS]
    fixes = [pair for pair in found if pair.where == "fixes"]
    worth = [pair for pair in found if pair.where == "worth_trying"]
    return {
        "shown": share(gaining, lambda pair: pair.shown),
        "shown, of those that stand out": share(
            [pair for pair in gaining if pair.gain.stands_out], lambda pair: pair.shown
        ),
        "shown in Fixes": share(gaining, lambda pair: pair.where == "fixes"),
        "in the first three": share(gaining, lambda pair: pair.rank is not None and pair.rank <= FIRST),
        "gain in the interval": share([pair for pair in gaining if pair.predicted is not None], lambda pair: pair.held),
        "Fixes that gained": share(fixes, lambda pair: pair.gain.middle >= GAINED),
        "Fixes that failed or lost": share(fixes, lambda pair: pair.gain.middle < LOST),
        "Worth trying that gained": share(worth, lambda pair: pair.gain.middle >= GAINED),
    }


def reliability(found: Iterable[Pair]) -> list[tuple[float, float, float, Share]]:
    """By class of probability: its ends, the mean probability, and the share that gained 2 %."""
    known = [(pair.probability, pair) for pair in found if pair.probability is not None]
    rows = []
    for low, high in itertools.pairwise(BINS):
        mine = [(p, pair) for p, pair in known if low <= p < high or (high == 1.0 and p == 1.0)]
        if mine:
            mean = statistics.mean(p for p, _ in mine)
            rows.append((low, high, mean, share((pair for _, pair in mine), lambda pair: pair.gain.middle >= GAINED)))
    return rows


def report(found: Sequence[Pair]) -> Iterator[str]:
    """The pairs and the figures, line by line."""
    for pair in sorted(found, key=lambda pair: (pair.program, pair.change)):
        gain = f"{pair.gain.middle:.2f} ({pair.gain.low:.2f}–{pair.gain.high:.2f})"
        said = "" if pair.predicted is None else "{1:.2f} ({0:.2f}–{2:.2f})".format(*pair.predicted)
        sure = "" if pair.probability is None else f"p {pair.probability:.2f}"
        rank = "" if pair.rank is None else f"#{pair.rank}"
        mark = "" if pair.gain.middle < GAINS or pair.shown else "MISSED "
        mark += "WRONG " if pair.where == "fixes" and pair.gain.middle < LOST else ""
        mark += "OUTSIDE " if pair.held is False else ""
        head = f"{pair.program:28.28} {pair.role:5}{pair.change:18.18} {pair.finding or '–':20}"
        yield f"{head}{gain:20} {pair.where:13}{rank:4}{said:20} {sure:7}{mark}{pair.why}"
    for role in ("fit", "test"):
        mine = [pair for pair in found if pair.role == role]
        if mine:
            yield f"\n{role}: {len(mine)} pairs of {len({pair.program for pair in mine})} programs"
            yield from (f"  {name:30} {value}" for name, value in summary(mine).items())
            for low, high, mean, hits in reliability(mine):
                yield f"  probability {low:.1f}–{high:.1f}: said {mean:.2f}, gained {hits}"


SECTION = """{heading}
A pair is a program and one change of it whose gain was measured in fresh processes, `python -m benchmarks.recall`; the
changes are fixes of gpuprof's catalogue and edits from outside it, which count as missed. Of those that gained 10 % or
more: how many stand in *Fixes* or *Worth trying*, how many among the first three (fixes that take off mostly the same
time are one entry), and how many gains lie in the predicted 80 % interval. Of what is shown and was measured: how much
gained 2 % or more. With 80 % intervals of the shares. Recordings of the role `test` only; next to them, for comparison,
those that numbers may be fitted to. {missing} more measured changes, of {without} programs whose recordings are not
kept, are not counted.

| | role test: {tested} pairs of {programs} programs | role fit: {fitted} pairs |
|---|---|---|
"""
ROWS = {
    "shown": "gained 10 %: shown in either list",
    "shown, of those that stand out": "… of those that gained more than unchanged processes differ by",
    "in the first three": "… among the first three",
    "gain in the interval": "… with the gain in the interval, of those predicted",
    "Fixes that gained": "*Fixes* that gained 2 %",
    "Fixes that failed or lost": "*Fixes* that failed or lost more than 3 %",
    "Worth trying that gained": "*Worth trying* that gained 2 %",
}
RELIABILITY = """
| probability that is stated | role test: mean, and share that gained 2 % | role fit |
|---|---|---|
"""
ONE_SIDED = """
Fixes with a condition that the recording does not show gain more often here than stated: where the condition does not
hold, the change alters the training or fails, and is not measured. These numbers do not show how often conditions hold
in other programs.
"""
MISSED = """
Gained 10 % and not shown (role test):

"""
CONTACT = """
Rules are improved once their misses are known, including misses on programs of role test. What gpuprof said of
{programs} of them before anyone had looked at what they measured ({pairs} pairs) is counted separately.

Whoever wrote the last twelve of them did not know the list of findings, and left six changes without one that a
finding proposes (expanded_product twice, frozen_encoder twice, odd_sizes and separate_passes). Here they count as
missed, although all six were shown, five of them with what they measured in the interval; in the table above they count
as shown.

| first contact | role test |
|---|---|
"""
OUTSIDE = """
Predicted, and outside of the interval at first contact:

"""


def section(found: Sequence[Pair]) -> str:
    """The section of docs/accuracy.md."""
    test, fit = ([pair for pair in found if pair.role == role] for role in ("test", "fit"))
    text = SECTION.format(
        heading=HEADING,
        tested=len(test),
        programs=len({pair.program for pair in test}),
        fitted=len(fit),
        missing=not_recorded()[0],
        without=not_recorded()[1],
    )
    sums = summary(test), summary(fit)
    text += "".join(f"| {title} | {sums[0][key]} | {sums[1][key]} |\n" for key, title in ROWS.items())
    text += RELIABILITY
    rows = [{row[0]: row for row in reliability(pairs)} for pairs in (test, fit)]
    for low, high in itertools.pairwise(BINS):
        if any(low in one for one in rows):
            cells = [f"{one[low][2]:.2f}: {one[low][3]}" if low in one else "–" for one in rows]
            text += f"| {low:.1f} to {high:.1f} | {cells[0]} | {cells[1]} |\n"
    return text + ONE_SIDED + _missed(test) + _first_contact()


def _missed(found: Sequence[Pair]) -> str:
    missed = [pair for pair in found if pair.gain.middle >= GAINS and not pair.shown]
    return (MISSED if missed else "") + "".join(
        f"- {pair.program}, {pair.change}: {pair.gain.middle:.2f}×{_scatter(pair.gain)}{_again(pair, found)};"
        f" {pair.why or 'nothing is said of it'}\n"
        for pair in missed
    )


def _again(pair: Pair, found: Sequence[Pair]) -> str:
    """What another run of the same program measured of the same change; empty where there is none."""
    other = pair.program.removesuffix(AGAIN) if pair.program.endswith(AGAIN) else pair.program + AGAIN
    same = next((one for one in found if (one.program, one.change) == (other, pair.change)), None)
    return "" if same is None else f" (another run of the program: {same.gain.middle:.2f}×)"


def _scatter(gain: Gain) -> str:
    return (
        "" if gain.scatter is None or gain.stands_out else f" (unchanged processes differ by up to {gain.scatter:.2f}×)"
    )


def _first_contact() -> str:
    """What was said of programs before what they measured was known; empty where none is kept."""
    found = [pair for pair in met_before() if pair.role == "test"]
    if not found:
        return ""
    text, of = CONTACT.format(programs=len({pair.program for pair in found}), pairs=len(found)), summary(found)
    text += "".join(f"| {title} | {of[key]} |\n" for key, title in ROWS.items() if of[key].of) + _missed(found)
    outside = [pair for pair in found if pair.held is False and pair.gain.middle >= GAINS]
    return text + (OUTSIDE if outside else "") + "".join(map(_outside, outside))


def _outside(pair: Pair) -> str:
    assert pair.predicted is not None
    low, expected, high = pair.predicted
    return f"- {pair.program}, {pair.change}: {pair.gain.middle:.2f}×; {expected:.2f}× ({low:.2f} to {high:.2f})\n"


def not_recorded() -> tuple[int, int]:
    """(measured changes, programs) of scenarios whose recording is not kept: gpuprof cannot be asked about them."""
    each = [
        sum(any(process["fix"] == fix.name for process in one.truth["processes"]) for fix in one.fixes)
        for one in (*scenarios(), *map(scenario, campaign_names()))
        if one.truth is not None and one.recording is None
    ]
    return sum(each), sum(count > 0 for count in each)


def with_section(page: str, text: str) -> str:
    """A page with this section in place of the one of the same heading, or else before its second heading."""
    before, found, rest = page.partition(HEADING)
    if not found:
        before, _, rest = page.partition("\n## ")
        return f"{before}\n{text}\n## {rest}"
    return f"{before}{text}\n## {rest.partition(chr(10) + '## ')[2]}"
