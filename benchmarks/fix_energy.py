"""Energy of a step with a fix, as predicted, next to what the GPU's energy counter gave before and after the change.

    python -m benchmarks.fix_energy [--shared FOLDER] [--only NAME] [--json]

For all programs whose recording has the GPU's power and whose truth.json has joules of processes without and with a fix
that gpuprof shows. The recording and the processes ran at different times, so the energy of a step with the fix over
that without is compared, for equal work. Twice: as predicted, which includes the error of the predicted step; and with
the measured steps in place of the predicted one, which leaves the errors of the energy itself: what the board takes
while it waits, and what the GPU's work takes after the fix.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import gpuprof
from benchmarks.accuracy import ROOT
from benchmarks.recall import SAME_WORK, proposes
from benchmarks.recall import programs as all_programs
from benchmarks.recall_pairs import Program, Timed
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.findings import FINDINGS
from gpuprof.diagnosis.fixes.step_energy import StepEnergy, step_energy
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Finding
from scenarios.catalogue import ROOT as SCENARIOS

NEAR = (0.1, 0.2)
"""Errors of an energy whose frequency is reported."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The median over some processes."""

    step_ms: float
    step_j: float


@dataclass(frozen=True, slots=True)
class FixEnergy:
    """One measured change; energies are those of equal work."""

    program: str
    role: str
    change: str
    finding: str
    before: Measured
    after: Measured
    predicted: tuple[float, float, float]
    """Low, expected and high energy with the fix / energy without."""
    times_known: float
    """The same with the measured steps."""

    @property
    def measured(self) -> float:
        return self.after.step_j / self.before.step_j

    @property
    def off(self) -> float:
        return self.predicted[1] / self.measured - 1

    @property
    def off_by_itself(self) -> float:
        return self.times_known / self.measured - 1

    @property
    def held(self) -> bool:
        """Whether the predicted interval has the measured energy."""
        return self.predicted[0] <= self.measured <= self.predicted[2]


def measured_of(truth: Path) -> dict[str, Measured]:
    """Fix (empty: as it is) → what its processes measured; without those whose energy is not known."""
    found: dict[str, list[tuple[float, float]]] = {}
    for one in json.loads(truth.read_text(encoding="utf-8"))["processes"]:
        if one.get("joules") and one.get("steps"):
            found.setdefault(one["fix"], []).append((one["free_ms"], one["joules"] / one["steps"]))
    return {
        fix: Measured(*(statistics.median(each) for each in zip(*both, strict=True))) for fix, both in found.items()
    }


def energies(program: Program) -> Iterator[FixEnergy]:
    """The measured changes of a program that gpuprof shows and predicts the energy of."""
    truth = SCENARIOS / program.name / "truth.json"
    measured = measured_of(truth) if truth.exists() else {}
    changes = [one for one in program.changes if one.name in measured and not one.also and not one.form]
    if "" not in measured or not changes:
        return
    found = gpuprof.diagnose(program.path)
    case = analysis_of(found)
    model = None if case is None else step_energy(case)
    if case is None or case.run is None or case.run.energy is None or model is None:
        return
    now_j = case.run.energy.power_w * case.mean_ns / 1e9
    for change in changes:
        fix = _fix(found, change)
        if fix is None or fix.step_j is None:
            continue
        low, usual, high = (
            value / now_j / fix.work for value in (fix.step_j.low, fix.step_j.expected, fix.step_j.high)
        )
        before, after = measured[""], measured[change.name]
        after = Measured(after.step_ms / change.work, after.step_j / change.work)
        known = _with_times(model, before, after, _work_left(case, model, fix))
        yield FixEnergy(program.name, program.role, change.name, fix.id, before, after, (low, usual, high), known)


def _fix(found: Diagnosis, change: Timed) -> Finding | None:
    """What is shown of a change, with its work."""
    shown = [one for one in (*found.findings, *found.worth_trying) if proposes(change, one)]
    best = min(shown, key=lambda one: abs(one.work - change.work), default=None)
    return best if best and abs(best.work / change.work - 1) <= SAME_WORK else None


def _work_left(case: Analysis, model: StepEnergy, fix: Finding) -> float:
    """Energy of the GPU's work with a fix, without what the board takes while it waits, over that of now, for equal
    work; 1 where the GPU's work takes nothing."""
    find = next(find for page, find in FINDINGS if page.id == fix.id)
    change = next(one.change for one in find(case) if one.title == fix.title and one.work == fix.work)
    now = model.work_j(case.graph)
    return model.work_j(change(case.graph)) / now / fix.work if now else 1.0


def _with_times(model: StepEnergy, before: Measured, after: Measured, left: float) -> float:
    """Energy with a fix over that without, with the measured steps: what the board takes while it waits scales with
    their length, and the rest of the energy measured before scales with the GPU's work."""
    waiting_w = min(model.waiting_w, before.step_j / before.step_ms * 1e3)
    work_j = (before.step_j - waiting_w * before.step_ms / 1e3) * left
    return min(waiting_w * after.step_ms + 1e3 * work_j, model.most_w * after.step_ms) / 1e3 / before.step_j


def summary(found: Sequence[FixEnergy]) -> str:
    """How far off the energies are, and how many of the intervals hold."""

    def text(each: Sequence[float]) -> str:
        sizes = [abs(one) for one in each]
        near = ", ".join(f"within {limit:.0%}: {sum(one <= limit for one in sizes)}" for limit in NEAR)
        return f"off by {statistics.median(sizes):.1%} in the middle, {near}"

    programs = len({one.program for one in found})
    held = sum(one.held for one in found)
    return (
        f"{len(found)} changes of {programs} programs: {text([one.off for one in found])}, in the interval: {held}; "
        f"with the measured steps {text([one.off_by_itself for one in found])}"
    )


def line(one: FixEnergy) -> str:
    """One change: joules measured before and after; energy left, as measured, predicted, and with the measured
    steps."""
    low, usual, high = one.predicted
    return (
        f"{one.program[-26:]:27}{one.role:5}{one.change:18.18}{one.finding:19.19}"
        f"{one.before.step_j:8.3g} J {one.after.step_j:8.3g} J   {one.measured:5.2f} measured  {usual:5.2f}"
        f" ({low:.2f}–{high:.2f}){'' if one.held else ' OUTSIDE':8}  {one.times_known:5.2f} with the measured steps"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--only", default="")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = list[FixEnergy]()
    for program in all_programs(options.shared):
        if options.only in program.name:
            for one in energies(program):
                found.append(one)
                if not options.json:
                    print(line(one), flush=True)
    if options.json:
        print(json.dumps([asdict(one) for one in found], indent=1))
        return 0
    for role in ("fit", "test"):
        if mine := [one for one in found if one.role == role]:
            print(f"{role}: {summary(mine)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
