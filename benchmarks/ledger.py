"""The ledger of what is above a step's reach, compared with the measured gain of removing each item.

    python -m benchmarks.ledger
    python -m benchmarks.ledger --contact
    python -m benchmarks.ledger --truth [--page]

For every recorded scenario: the share of the usual step that the ledger explains, and for each fix whose finding has an
item what the step lost when it was measured, in fresh processes, against the item's time and its place among the
items. Steps are medians over processes on one host, at most some per cent apart from those of the recording.

`--contact`: of each program that nothing was fitted to, the largest item of at least 5 % of the step whose removal was
measured, whether its finding is the first or among the advice shown, and whether the 80 % interval of its gain holds
the measured one.

`--truth`: of each program whose author wrote down what it wastes (`largest` and `where` in scenario.json) before
gpuprof saw it: the first line that has a word of it (items above reach by size, after what some steps add to the mean
step if that is more than any item), and whether the interval of the gain holds what taking it out by hand measured. The
interval is that of the finding where a finding is the advice, else that of the line, as wide as measured gains scatter
around replayed ones.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.accuracy import ROOT
from gpuprof import diagnose
from gpuprof.diagnosis.reach.ledger import explained, gain_without
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.words.above_words import MOST_SHOWN, text
from gpuprof.report.words.rare_words import rare
from scenarios import catalogue

MS = 1e6


LARGE = 0.05
"""Share of the step from which on an item counts as found."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--contact", action="store_true", help="largest item, advice and measured gain of test programs"
    )
    parser.add_argument("--truth", action="store_true", help="what authors of programs wrote them to waste")
    parser.add_argument("--page", action="store_true", help="with --truth: write docs/ledger.md")
    given = parser.parse_args()
    if given.contact:
        contact()
        return
    if given.truth:
        found = list(written_down())
        print_named(found)
        if given.page:
            write_page(found)
        return
    places: Counter[int] = Counter()
    open_share = 0.0
    print(f"{'scenario':32s} {'role':5s} {'explained':>9s}  {'fix':22s} {'measured':>9s} {'ledger':>8s}  place")
    for scenario in (*catalogue.scenarios(), *map(catalogue.scenario, catalogue.campaign_names())):
        recording, truth = (scenario.folder / name for name in ("recording", "truth.json"))
        if not recording.exists():
            continue
        found = diagnose(recording).above_reach
        if found is None:
            continue
        lead = f"{scenario.name:32s} {scenario.role:5s} {100 * explained(found):7.0f} %"
        steps = _steps_ms(json.loads(truth.read_text(encoding="utf-8"))) if truth.exists() else {}
        rows = 0
        for fix in scenario.fixes:
            mine = [item for item in found.items if item.finding is not None and item.finding == fix.finding]
            if "" not in steps or fix.name not in steps or not mine:
                continue
            lost = steps[""] - steps[fix.name]
            place = [item.finding for item in found.largest].index(fix.finding) + 1
            said = sum(item.ns for item in mine) / MS
            print(f"{lead}  {fix.name:22s} {lost:6.1f} ms {said:5.1f} ms  {place}")
            places[place] += 1
            rows += 1
        if not rows:
            print(lead)
        if scenario.role == "test":
            open_share = max(open_share, 1 - explained(found))
    print(f"{places.total()} fixes with an item: {places[1]} are the largest, {places[2]} the second")
    print(f"recordings that only test: residual and unknown are at most {100 * open_share:.0f} % of the usual step")


def contact() -> None:
    """Prints a line for each program of role test, and how many of them are named and predicted."""
    named = held = count = 0
    print(f"{'program':28s} {'item':46s} {'share':>6s}  {'advice':18s} {'predicted':>13s} {'measured':>9s}")
    for name in (*catalogue.names(), *catalogue.campaign_names()):
        scenario = catalogue.scenario(name)
        truth, recording = scenario.truth, scenario.recording
        if scenario.role != "test" or truth is None or recording is None:
            continue
        diagnosis, steps = diagnose(recording), _steps_ms(truth)
        found = diagnosis.above_reach
        fixes = {fix.finding: fix.name for fix in reversed(scenario.fixes) if fix.name in steps and fix.work == 1.0}
        items = [
            item
            for item in (found.largest if found else ())
            if found and item.ns >= LARGE * found.usual_ns and item.finding in fixes
        ]
        if "" not in steps or found is None or not items:
            continue
        item = items[0]
        advice = [one for one in (*diagnosis.findings, *diagnosis.worth_trying) if one.id == item.finding]
        ids = [one.id for one in diagnosis.findings]
        rank = ids.index(item.finding) + 1 if item.finding in ids else 0
        gain = steps[""] / steps[fixes[item.finding]]
        if not advice:
            continue
        low, high = advice[0].speedup.low, advice[0].speedup.high
        count += 1
        named += item is found.largest[0]
        held += low <= gain <= high
        share = f"{100 * item.ns / found.usual_ns:.0f} %"
        print(
            f"{name:28s} {item.what[:46]:46s} {share:>6s}  {rank}. {item.finding or '':15s}"
            f" {low:5.2f}–{high:5.2f}× {gain:7.2f}×  {'' if low <= gain <= high else 'outside'}"
        )
    print(f"{count} programs: the item is the largest in {named}, the interval holds the gain in {held}")


@dataclass(frozen=True, slots=True)
class Named:
    """A program whose author wrote down what it wastes, and what the ledger says of it."""

    program: str
    line: str
    """The largest line that has a word of it; empty without any."""
    place: int
    """Rank of that line, from 1; 0 without any."""
    predicted: tuple[float, float] | None
    """80 % interval of the gain."""
    measured: tuple[float, float]
    """Least and greatest gain of the turns."""

    @property
    def holds(self) -> bool:
        """Whether the interval meets what the turns measured."""
        return (
            self.predicted is not None
            and self.predicted[0] <= self.measured[1]
            and self.measured[0] <= self.predicted[1]
        )


def written_down() -> Iterator[Named]:
    """Each recorded program whose largest waste was written down and measured."""
    for scenario in map(catalogue.scenario, catalogue.campaign_names()):
        measured = scenario.truth
        if scenario.role != "test" or not scenario.largest or measured is None or scenario.recording is None:
            continue
        steps, fix = _each_ms(measured), scenario.fix(scenario.largest)
        if fix is None or not {"", fix.name} <= steps.keys():
            continue
        diagnosis = diagnose(scenario.recording)
        said = _lines(diagnosis)
        mine = [line for line in said if any(_plain(word) in _plain(line.text) for word in scenario.where)]
        turns = sorted(a / b for a, b in zip(steps[""], steps[fix.name], strict=False))
        yield Named(
            scenario.name.removeprefix("programs/"),
            mine[0].text if mine else "",
            said.index(mine[0]) + 1 if mine else 0,
            interval(diagnosis, fix.finding, mine[0].ns if mine else 0),
            (turns[0], turns[-1]),
        )


def print_named(found: Sequence[Named]) -> None:
    """A line for each program, and how many are named and predicted."""
    print(f"{'program':20s} {'the line':58s} {'place':>5s} {'predicted':>13s} {'measured':>14s}")
    for one in found:
        said = f"{one.predicted[0]:5.2f}–{one.predicted[1]:5.2f}×" if one.predicted else "–"
        print(
            f"{one.program:20s} {one.line[:58] or 'none':58s} {one.place or '–':>5} {said:>13s}"
            f" {one.measured[0]:6.2f}–{one.measured[1]:5.2f}×  {'' if one.holds else 'outside'}"
        )
    print(_sums(found))


def _sums(found: Sequence[Named]) -> str:
    first, shown = (sum(0 < one.place <= most for one in found) for most in (1, MOST_SHOWN))
    held = sum(one.holds for one in found)
    return (
        f"{len(found)} programs: named first in {first}, in the {MOST_SHOWN} lines in {shown}, the interval holds in"
        f" {held}"
    )


PAGE = ROOT / "docs" / "ledger.md"
TEXT = """# How well the ledger names what a program wastes

Written by `python -m benchmarks.ledger --truth --page`. Each program was written to waste something, and its author
wrote down what, with words that a line has to have, before gpuprof saw it (`largest` and `where` in its
`scenario.json`). The lines are the items above [reach](diagnosis.md#what-the-step-should-cost) by size, as a report
has them; what only some steps do comes first if it costs the mean step more than any item. The gain is that of the fix
by hand, turn by turn in fresh processes without a profiler; the interval is that of the fix where it is advised, else
that of the line. All programs are of the role `test`; rules were improved after most of them had been seen.

{sums}.

| program | the line | place | predicted | measured | |
|---|---|---|---|---|---|
"""


def write_page(found: Sequence[Named]) -> None:
    """The page of docs that lists them."""
    text = TEXT.format(sums=_sums(found))
    for one in found:
        said = f"{one.predicted[0]:.2f} to {one.predicted[1]:.2f}×" if one.predicted else "–"
        text += (
            f"| {one.program} | {one.line or 'none'} | {one.place or '–'} | {said} |"
            f" {one.measured[0]:.2f} to {one.measured[1]:.2f}× | {'' if one.holds else 'outside'} |\n"
        )
    PAGE.write_text(text, encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Line:
    ns: int
    text: str


def _lines(diagnosis: Diagnosis) -> list[_Line]:
    """What is said to make a step longer, as the report says it: what some steps add to the mean step, if that is more
    than any item, and the items above reach, by size."""
    found = diagnosis.above_reach
    items = found.largest if found is not None else ()
    return [_Line(one.ns, text(one)) for one in (*rare(diagnosis), *items)]


def _plain(text: str) -> str:
    """Small letters and digits of a text: `one_hot` is `one-hot`."""
    return "".join(filter(str.isalnum, text.lower()))


def interval(diagnosis: Diagnosis, finding: str | None, ns: int) -> tuple[float, float] | None:
    """Of the gain without a line of this size: that of the finding that advises it, else of what the replay loses
    without it. None where neither says anything."""
    advice = [one for one in (*diagnosis.findings, *diagnosis.worth_trying) if one.id == finding and one.work == 1.0]
    if advice:
        return advice[0].speedup.low, advice[0].speedup.high
    found = diagnosis.above_reach
    gain = None if found is None else gain_without(ns, found.usual_ns)
    return None if gain is None else (gain.low, gain.high)


def _each_ms(truth: dict) -> dict[str, list[float]]:
    """Fix → its free-running steps, process by process; "" as it is."""
    each: dict[str, list[float]] = defaultdict(list)
    for process in truth.get("processes", []):
        if process.get("free_ms"):
            each[process["fix"]].append(process["free_ms"])
    return each


def _steps_ms(truth: dict) -> dict[str, float]:
    """Fix → its free-running step, the median over processes; "" as it is."""
    return {fix: statistics.median(values) for fix, values in _each_ms(truth).items()}


if __name__ == "__main__":
    main()
