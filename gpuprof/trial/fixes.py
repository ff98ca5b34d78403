"""Which fixes there are: as asked for, and as a diagnosis advises them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuprof.diagnosis.diagnosis import Diagnosis, Finding
from gpuprof.errors import GpuprofError
from gpuprof.trial.own_flags import OwnFlags
from gpuprof.trial.patches import names, patch_for
from gpuprof.trial.trial import Fix, Interval


@dataclass(frozen=True, slots=True)
class Candidate:
    """A fix to try, and what is expected of it."""

    fix: Fix
    finding: str | None = None
    step_ns: Interval | None = None
    speedup: Interval | None = None
    lines: str = ""
    """What to write, as the finding says it; empty where none does."""
    flags: OwnFlags | None = None
    """The program's own flags that make it; None where it is applied from outside."""


def parse(text: str) -> list[Fix]:
    """`input_workers=8,tf32`: the fixes. Raises GpuprofError for unknown ones and values."""
    found: list[Fix] = []
    for part in (part.strip() for part in text.split(",")):
        name, given, value = part.partition("=")
        if name not in names():
            raise GpuprofError(f"--fix {part}: no such fix; there are {', '.join(names())}")
        patch = patch_for(name)
        value = value if given else patch.default
        if not patch.check(value):
            takes = f"takes {patch.values}" if patch.values else "takes no value"
            raise GpuprofError(f"--fix {part}: {name} {takes}")
        if any(one.name == name for one in found):
            raise GpuprofError(f"--fix {text}: {name} is there twice; try one value after the other")
        found.append(Fix(name, value))
    return found


def lines_for(fix: Fix) -> str:
    """What to write for a fix where no finding says it for the user's own stack."""
    return patch_for(fix.name).line.replace("{value}", fix.value)


def advised(diagnosis: Diagnosis | None) -> tuple[list[Candidate], list[Finding]]:
    """The findings that a patch can answer, most gain first; and those that need a change by hand."""
    candidates: list[Candidate] = []
    by_hand: list[Finding] = []
    for finding in diagnosis.findings if diagnosis is not None else ():
        fix = fix_for(finding)
        if fix is None:
            by_hand.append(finding)
        elif all(one.fix.name != fix.name for one in candidates):
            comparable = finding.work == 1.0
            candidates.append(
                Candidate(
                    fix, finding.id,
                    _interval(finding.step_ns) if comparable else None,
                    _interval(finding.speedup) if comparable else None,
                    finding.fix,
                )
            )  # fmt: skip
    for change in of_iteration(diagnosis):
        if change.same_training and all(one.fix.name != change.candidate.fix.name for one in candidates):
            candidates.append(change.candidate)
    return candidates, by_hand


@dataclass(frozen=True, slots=True)
class IterationChange:
    """A change of an iteration that a patch makes."""

    candidate: Candidate
    same_training: bool


def of_iteration(diagnosis: Diagnosis | None) -> list[IterationChange]:
    """What would shorten the iteration of a training on its own generations and is an argument of its trainer, most
    gain first. What is expected of it is the mean step."""
    iteration = None if diagnosis is None else diagnosis.iteration
    found: list[IterationChange] = []
    if iteration is None:
        return found
    for change in iteration.changes:
        if change.patch is None or change.patch.name not in names():
            continue
        steps, whole = iteration.steps, change.iteration_ns
        step_ns = Interval(whole.low / steps, whole.expected / steps, whole.high / steps)
        mean_ns = iteration.mean_ns
        speedup = Interval(mean_ns / whole.high, mean_ns / whole.expected, mean_ns / whole.low)
        fix = Fix(change.patch.name, change.patch.value)
        same = change.changes is None
        found.append(IterationChange(Candidate(fix, change.id, step_ns, speedup, change.fix), same))
    return found


def fix_for(finding: Finding) -> Fix | None:
    """The patch that does what the finding advises; None where it has to be done by hand."""
    if finding.patch is None or finding.patch.name not in names():
        return None
    patch = patch_for(finding.patch.name)
    value = finding.patch.value or patch.default
    return Fix(patch.name, value) if patch.check(value) else None


def with_predictions(asked: Iterable[Fix], candidates: Sequence[Candidate]) -> list[Candidate]:
    """The fixes asked for, with what the diagnosis predicts of those that it advises with the same value."""
    known = {one.fix: one for one in candidates}
    return [known.get(fix) or Candidate(fix) for fix in asked]


def combination(names: Sequence[str]) -> list[str]:
    """The fixes, best first, that can be made together: the better one of alternatives."""
    chosen: list[str] = []
    for name in names:
        group = patch_for(name).group
        if not group or group not in {patch_for(one).group for one in chosen}:
            chosen.append(name)
    return chosen


def _interval(found: object) -> Interval:
    low, expected, high = (getattr(found, name) for name in ("low", "expected", "high"))
    return Interval(low, expected, high)
