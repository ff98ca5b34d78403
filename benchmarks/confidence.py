"""How often verdicts are right, by the confidence that they come with.

    python -m benchmarks.confidence [--shared FOLDER]

The truth of a recording is the resource whose measured removal gained most (two within 5 %: either), as its scenario,
its pair or benchmarks/test_truth.json says. Leave-one-program-out: each bin's share of right verdicts, counted on the
other programs, is the probability that is scored on the one left out. Copies from which evidence
was left out (`benchmarks.poorer_recordings`) show whether confidence falls with it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.accuracy import ROOT, Case, cases
from benchmarks.out_of_sample import other_projects, program_of, wilson
from benchmarks.poorer_recordings import poorer
from gpuprof import Diagnosis, diagnose

BINS = ((0.9, 1.01), (0.7, 0.9), (0.0, 0.7))


@dataclass(frozen=True)
class Judged:
    """A verdict with its confidence, and whether it is right."""

    name: str
    confidence: float
    right: bool


def judged(found: Iterable[Case]) -> Iterator[Judged]:
    """Every recording whose truth is known and that has a confidence."""
    for case in found:
        yield from judgement(case, diagnose(case.path))


def judgement(case: Case, diagnosis: Diagnosis) -> Iterator[Judged]:
    """The judged verdict of one recording; nothing if its truth or the confidence is not known."""
    verdict = diagnosis.verdict
    if case.verdict is not None and verdict.confidence is not None:
        yield Judged(case.name, verdict.confidence, verdict.bound in case.verdict)


def brier(found: list[Judged]) -> float:
    """Mean square of confidence minus truth: 0 is perfect, always saying 0.5 gives 0.25."""
    return statistics.mean((one.confidence - one.right) ** 2 for one in found)


def left_out(found: list[Judged]) -> list[Judged]:
    """Each verdict with the probability that the other programs give it: how often theirs in the same bin are right
    (with Jeffreys' half a case each way, so that few cases claim little)."""
    result = []
    for one in found:
        others = [
            o.right for o in found if program_of(o.name) != program_of(one.name) and bin_of(o) == bin_of(one)
        ]  # fmt: skip
        result.append(replace(one, confidence=(sum(others) + 0.5) / (len(others) + 1)))
    return result


def bin_of(one: Judged) -> int:
    """Index of the bin of a verdict's confidence."""
    return next(number for number, (low, high) in enumerate(BINS) if low <= one.confidence < high)


def lines(found: list[Judged]) -> Iterator[str]:
    """The bins, the Brier score and how many are confident."""
    for number, (low, high) in enumerate(BINS):
        mine = [one for one in found if bin_of(one) == number]
        right = sum(one.right for one in mine)
        ends = "–".join(f"{100 * end:.0f}" for end in wilson(right, len(mine)))
        share = f"{100 * right / len(mine):.0f} % right ({ends} %)" if mine else "none"
        label = f"{low:.1f} and more" if low == 0.9 else f"{low:.1f} to {high:.1f}"
        programs = len({program_of(one.name) for one in mine})
        yield f"confidence {label:14} {len(mine):3} recordings of {programs:2} programs: {share}"
    confident = sum(one.confidence >= 0.7 for one in found)
    yield f"Brier score {brier(found):.3f}; {confident} of {len(found)} at 0.7 or more"


def left_out_lines(found: list[Judged]) -> Iterator[str]:
    """Bin by bin the probability that the other programs give a verdict, and how many are right; the Brier score."""
    scored = left_out(found)
    for number, (low, high) in enumerate(BINS):
        mine = [after for before, after in zip(found, scored, strict=True) if bin_of(before) == number]
        label = f"{low:.1f} and more" if low == 0.9 else f"{low:.1f} to {high:.1f}"
        given = f"{100 * statistics.mean(one.confidence for one in mine):.0f} %" if mine else "–"
        yield f"confidence {label:14} others give {given:>4}, {sum(one.right for one in mine)} of {len(mine)} right"
    yield f"Brier score {brier(scored):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    args = parser.parse_args()
    found = list(judged([*cases(args.shared), *other_projects(args.shared)]))
    poor = list(judged(poorer()))
    for title, text in (("", lines(found)), ("leave-one-program-out:", left_out_lines(found)),
                        ("with evidence left out:", lines(poor))):  # fmt: skip
        print("\n".join((title, *text)).strip())
    for one in sorted(found, key=lambda one: one.confidence):
        print(f"  {one.confidence:.2f} {'right' if one.right else 'WRONG'} {one.name}")


if __name__ == "__main__":
    main()
