"""How often verdicts are right, by the confidence that they come with.

    python -m benchmarks.confidence [--shared FOLDER]

The truth of a recording is the resource whose measured removal gained most (two within 5 %: either), as its scenario,
its pair or benchmarks/test_truth.json says.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy import ROOT, Case, cases
from benchmarks.out_of_sample import other_projects, program_of, wilson
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
    """Of one recording; nothing where its truth or the confidence is not known."""
    verdict = diagnosis.verdict
    if case.verdict is not None and verdict.confidence is not None:
        yield Judged(case.name, verdict.confidence, verdict.bound in case.verdict)


def brier(found: list[Judged]) -> float:
    """Mean square of confidence less truth: 0 is perfect, 0.25 is always saying 0.5."""
    return statistics.mean((one.confidence - one.right) ** 2 for one in found)


def lines(found: list[Judged]) -> Iterator[str]:
    """The bins, the Brier score and how many are confident."""
    for low, high in BINS:
        mine = [one for one in found if low <= one.confidence < high]
        right = sum(one.right for one in mine)
        ends = "–".join(f"{100 * end:.0f}" for end in wilson(right, len(mine)))
        share = f"{100 * right / len(mine):.0f} % right ({ends} %)" if mine else "none"
        label = f"{low:.1f} and more" if low == 0.9 else f"{low:.1f} to {high:.1f}"
        programs = len({program_of(one.name) for one in mine})
        yield f"confidence {label:14} {len(mine):3} recordings of {programs:2} programs: {share}"
    confident = sum(one.confidence >= 0.7 for one in found)
    yield f"Brier score {brier(found):.3f}; {confident} of {len(found)} at 0.7 or more"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    args = parser.parse_args()
    found = list(judged([*cases(args.shared), *other_projects(args.shared)]))
    print("\n".join(lines(found)))
    for one in sorted(found, key=lambda one: one.confidence):
        print(f"  {one.confidence:.2f} {'right' if one.right else 'WRONG'} {one.name}")


if __name__ == "__main__":
    main()
