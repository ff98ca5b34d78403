"""How right gpuprof is on recordings that no number was fitted to, and on fitted ones with their program left out.

    python -m benchmarks.out_of_sample [--shared FOLDER]

Test recordings are those whose role is `test` (benchmarks/fit_or_test.py): scenarios of that role, and programs of
other projects (benchmarks/test_truth.json). Errors are given twice: from the middle of what was measured, and 0
anywhere within its range. Coverage of the 80 % intervals comes with its own 80 % interval (Wilson's score interval),
over claims and over programs, since the claims of one program are wrong together.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.accuracy import MS, ROOT, Case, Fix, Result, error, predicted, run, scenarios
from benchmarks.same_steps import SameSteps, same_steps
from gpuprof.record.base.quantiles import Z80
from scenarios.catalogue import names, scenario

TRUTH = Path(__file__).with_name("test_truth.json")


@dataclass(frozen=True)
class Claim:
    """One predicted step and what was measured."""

    program: str
    what: str
    predicted_ms: float
    low_ms: float
    high_ms: float
    measured_ms: tuple[float, float]

    @property
    def from_middle(self) -> float:
        """Signed, relative to the middle of what was measured."""
        return self.predicted_ms / (sum(self.measured_ms) / 2) - 1

    @property
    def from_range(self) -> float:
        """0 within what was measured."""
        return error(self.predicted_ms, self.measured_ms)

    @property
    def held(self) -> bool:
        """Whether the predicted interval meets what was measured."""
        return self.low_ms <= self.measured_ms[1] and self.high_ms >= self.measured_ms[0]


def other_projects(folder: Path) -> Iterator[Case]:
    """Recorded programs of other projects with their measurements; none if FOLDER does not exist."""
    for name, found in json.loads(TRUTH.read_text(encoding="utf-8"))["runs"].items():
        path = folder / Path(found["place"]).relative_to("shared")
        if not path.exists():
            continue
        base = sum(found["mean_ms"]) / 2
        fixes = tuple(
            Fix(one["finding"], _range(base * after / before for before, after in one["pairs"]),
                gains=one.get("gains", True), name=one["name"])
            for one in found["fixes"]
        )  # fmt: skip
        verdict = tuple(found["verdict"]) if found["verdict"] else None
        yield Case(name, path, (base, base), verdict, None, fixes, run=True, steps_differ=True)


def _range(values: Iterable[float]) -> tuple[float, float]:
    found = list(values)
    return min(found), max(found)


def mean_steps() -> dict[str, tuple[float, float]]:
    """Name of a program of another project → its measured mean step, ms."""
    runs = json.loads(TRUTH.read_text(encoding="utf-8"))["runs"]
    return {name: tuple(found["mean_ms"]) for name, found in runs.items()}


def test_cases(folder: Path) -> list[Case]:
    """Every recording that only tests and has a measured truth."""
    return [*scenarios("test"), *other_projects(folder)]


test_cases.__test__ = False  # type: ignore[attr-defined]


def claims(results: Iterable[Result], means: dict[str, tuple[float, float]] | None = None) -> list[Claim]:
    """What gpuprof predicted for these recordings: fixes, including those that it does not advise, and with `means`
    also mean steps. Their truth is in `means`, else it is the measured step of the unchanged program, over the same
    steps if steps were timed one by one."""
    found = []
    for one in results:
        program, budget = program_of(one.case.name), one.diagnosis.budget
        measured = None if means is None else means.get(one.case.name, one.case.unprofiled_ms)
        if measured is not None and budget is not None:
            if common := same_steps_of(one.case.name):
                measured = common.of_stretch(budget.mean_ns / MS)
            low, high = budget.of_processes
            found.append(Claim(program, "mean step", budget.mean_ns / MS, low / MS, high / MS, measured))
        advised = [(fix, finding, "") for fix, finding in one.fixes if finding is not None]
        considered = [(fix, other, ", not advised") for fix, other in one.considered]
        for fix, prediction, mark in (*advised, *considered):
            if fix.gains:
                step = predicted(prediction, fix)
                what = f"{fix.name or fix.finding}{mark}"
                found.append(Claim(program, what, step.expected, step.low, step.high, fix.step_ms))
    return found


def same_steps_of(name: str) -> SameSteps | None:
    """Of the scenario of that name, if there is one."""
    return same_steps(scenario(name)) if name in names() else None


def program_of(name: str) -> str:
    """The program of a recording; variants (`tiny.compile`, `…_stack`, `…_rank0`) belong to one program."""
    return name.partition(".")[0].removesuffix("_stack").removesuffix("_rank0").removesuffix("_rank1")


def wilson(hits: float, of: float) -> tuple[float, float]:
    """80 % score interval of a share (Wilson 1927)."""
    if not of:
        return 0.0, 1.0
    share, square = hits / of, Z80**2
    middle = (share + square / (2 * of)) / (1 + square / of)
    half = Z80 / (1 + square / of) * math.sqrt(share * (1 - share) / of + square / (4 * of**2))
    return max(middle - half, 0.0), min(middle + half, 1.0)


def lines(found: list[Claim]) -> Iterator[str]:
    """The figures of some claims, a line each."""
    if not found:
        yield "no claims"
        return
    middle = [abs(one.from_middle) for one in found]
    within = [abs(one.from_range) for one in found]
    yield f"{len(found)} predicted steps of {len({one.program for one in found})} programs"
    yield f"error from the middle of what was measured   {_spread(middle)}"
    yield f"error, 0 within what was measured            {_spread(within)}"
    hits = sum(one.held for one in found)
    low, high = wilson(hits, len(found))
    yield (
        f"80 % intervals that hold                     {100 * hits / len(found):.0f} % ({hits} of {len(found)};"
        f" {100 * low:.0f} to {100 * high:.0f} %)"
    )
    by_program = defaultdict(list)
    for one in found:
        by_program[one.program].append(one.held)
    mean = statistics.mean(statistics.mean(held) for held in by_program.values())
    low, high = wilson(mean * len(by_program), len(by_program))
    yield f"  over programs                              {100 * mean:.0f} % ({100 * low:.0f} to {100 * high:.0f} %)"
    around = sum(one.low_ms <= sum(one.measured_ms) / 2 <= one.high_ms for one in found)
    width = math.exp(statistics.mean(math.log(one.high_ms / one.low_ms) for one in found))
    yield f"  that hold the middle of what was measured  {100 * around / len(found):.0f} %; high/low {width:.2f} (mean)"


def _spread(values: list[float]) -> str:
    return f"median {100 * statistics.median(values):.1f} %, worst {100 * max(values):.1f} %"


def verdicts(results: Iterable[Result]) -> tuple[int, int]:
    """(right, known) verdicts."""
    known = [one.right for one in results if one.right is not None]
    return sum(known), len(known)


@dataclass(frozen=True)
class LeftOut:
    """A fix of a program, predicted with numbers that its own recordings had no part in."""

    numbers: str
    place: str
    now: float
    """Signed error of the prediction with the table's numbers, from the middle of what was measured."""
    without: float
    """The same with the numbers as the other programs alone give them."""


def left_out() -> Iterator[LeftOut]:
    """Leave-one-program-out: each number that depends on at least two programs, fitted without one and used on that
    one."""
    from benchmarks.calibrate import KNOBS
    from benchmarks.refit import fitted_steps

    for knob in KNOBS:
        steps = fitted_steps(knob)
        scales = {place: one.scale for place, one in steps.items()}
        for place, one in steps.items():
            others = [scale for other, scale in scales.items() if program_at(other) != program_at(place)]
            if others:
                without = one.step_at(statistics.median(others)) / one.measured_ms - 1
                yield LeftOut(", ".join(knob.names), place, one.step_at(1.0) / one.measured_ms - 1, without)


def program_at(place: str) -> str:
    """The program that a recording is of, by its place."""
    parts = Path(place).parts
    return program_of(parts[1] if parts[0] == "scenarios" else Path(place).name.removesuffix(".json.gz"))


def left_out_lines(found: list[LeftOut]) -> Iterator[str]:
    if not found:
        yield "no number was fitted to two programs"
        return
    now, without = ([abs(getattr(one, name)) for one in found] for name in ("now", "without"))
    yield f"{len(found)} predicted fixes of {len({program_at(one.place) for one in found})} programs"
    yield f"error with the table's numbers               {_spread(now)}"
    yield f"error with numbers of the other programs     {_spread(without)}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    args = parser.parse_args()
    results = [run(case) for case in test_cases(args.shared)]
    right, known = verdicts(results)
    print(f"test recordings: verdicts {right} of {known} right")
    found = claims(results, mean_steps())
    print("\n".join(lines(found)))
    for one in found:
        predicted = f"{one.predicted_ms:8.1f} ({one.low_ms:.1f}–{one.high_ms:.1f}) ms"
        measured = f"{one.measured_ms[0]:.1f}–{one.measured_ms[1]:.1f}"
        print(f"  {one.program:20} {one.what:28} {predicted}, measured {measured}: {100 * one.from_middle:+.0f} %")
    print("\nfitted recordings, each program left out")
    others = list(left_out())
    print("\n".join(left_out_lines(others)))
    for one in others:
        print(f"  {one.place:50} {one.numbers:40} {100 * one.now:+.0f} % → {100 * one.without:+.0f} %")


if __name__ == "__main__":
    main()
