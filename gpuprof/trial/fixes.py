"""The fixes to try: those the user requests, and those a diagnosis advises."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpuprof.diagnosis.detect.declared.proposal import CERTAIN_CHANCE, SURE_GAIN
from gpuprof.diagnosis.fixes.chance import probability, time_left
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.errors import GpuprofError
from gpuprof.trial.own_flags import OwnFlags
from gpuprof.trial.patches import current, names, patch_for
from gpuprof.trial.trial import Advised, TriedFix
from gpuprof.value_range import Range


@dataclass(frozen=True, slots=True)
class FixToTry:
    """A fix to try, and what is expected of it."""

    fix: TriedFix
    finding: str | None = None
    step_ns: Range | None = None
    speedup: Range | None = None
    lines: str = ""
    """The change to make, in the finding's words; may be empty."""
    flags: OwnFlags | None = None
    """The program's own flags for the fix; None if it is applied from outside."""
    advised: Advised | None = None
    """The diagnosis's list that it is from; None if the user requested it."""
    probability: float | None = None
    """Predicted probability of a gain of 2 % or more; None if nothing was predicted."""
    saves: float = 0.0
    """Expected saving as a share of the training's time; 0 if nothing was predicted."""
    once_s: float = 0.0
    """One-time cost in each process, such as compiling, s."""


def parse(text: str) -> list[TriedFix]:
    """`input_workers=8,tf32`: the fixes. Raises GpuprofError for unknown ones and values."""
    found: list[TriedFix] = []
    for part in (part.strip() for part in text.split(",")):
        name, given, value = part.partition("=")
        name = current(name)
        if name not in names():
            raise GpuprofError(f"--fix {part}: no such fix; there are {', '.join(names())}")
        patch = patch_for(name)
        value = value if given else patch.default
        if not patch.check(value):
            takes = f"takes {patch.values}" if patch.values else "takes no value"
            raise GpuprofError(f"--fix {part}: {name} {takes}")
        if any(one.name == name for one in found):
            raise GpuprofError(f"--fix {text}: {name} is there twice; try one value after the other")
        found.append(TriedFix(name, value))
    return found


def lines_for(fix: TriedFix) -> str:
    """The change to make, if no finding words it for the user's stack."""
    return patch_for(fix.name).line.replace("{value}", fix.value)


def advised(diagnosis: Diagnosis | None) -> tuple[list[FixToTry], list[Finding]]:
    """The findings of both lists that a patch can apply, fixes before those worth trying; and those to be applied by
    hand."""
    candidates: list[FixToTry] = []
    by_hand: list[Finding] = []
    for finding, name in _listed(diagnosis):
        fix = fix_for(finding)
        if fix is None:
            by_hand.append(finding)
        elif all(one.fix.name != fix.name for one in candidates):
            comparable = finding.work == 1.0
            candidates.append(
                FixToTry(
                    fix, finding.id,
                    finding.step_ns if comparable else None,
                    finding.speedup if comparable else None,
                    finding.fix,
                    advised=name,
                    probability=finding.probability,
                    saves=saving(finding.speedup),
                    once_s=finding.once_ns.expected / 1e9 if finding.once_ns else 0.0,
                )
            )  # fmt: skip
    for change in of_iteration(diagnosis):
        if change.same_training and all(one.fix.name != change.candidate.fix.name for one in candidates):
            candidates.append(change.candidate)
    return candidates, by_hand


@dataclass(frozen=True, slots=True)
class IterationFixToTry:
    """A change of an iteration that a patch makes."""

    candidate: FixToTry
    same_training: bool


def of_iteration(diagnosis: Diagnosis | None) -> list[IterationFixToTry]:
    """Changes that would shorten an RL iteration and are arguments of its trainer, most gain first. Their prediction is
    for the mean step."""
    iteration = None if diagnosis is None else diagnosis.iteration
    found: list[IterationFixToTry] = []
    if iteration is None:
        return found
    for change in iteration.changes:
        if change.patch is None or change.patch.name not in names():
            continue
        steps, whole = iteration.steps, change.iteration_ns
        step_ns = Range(whole.low / steps, whole.expected / steps, whole.high / steps)
        mean_ns = iteration.mean_ns
        fix = TriedFix(change.patch.name, change.patch.value)
        gain = Range(mean_ns / whole.high, mean_ns / whole.expected, mean_ns / whole.low)
        odds = probability(gain, SURE_GAIN)
        candidate = FixToTry(
            fix, change.id, step_ns, gain, change.fix, advised="fixes" if odds >= CERTAIN_CHANCE else "worth_trying",
            probability=round(odds, 3), saves=saving(gain),
        )  # fmt: skip
        found.append(IterationFixToTry(candidate, change.changes is None))
    return found


def _listed(diagnosis: Diagnosis | None) -> Iterator[tuple[Finding, Advised]]:
    if diagnosis is None:
        return
    for one in diagnosis.findings:
        yield one, "fixes"
    for one in diagnosis.worth_trying:
        yield one, "worth_trying"


def saving(gain: Range) -> float:
    """Expected share of the training's time that is saved: the mean over the distribution of the gain, including
    possible slowdowns."""
    return 1 - time_left(gain)


def fix_for(finding: Finding) -> TriedFix | None:
    """The patch for a finding; None if the finding, or one that it depends on, has to be applied by hand."""
    if finding.parts or finding.patch is None or current(finding.patch.name) not in names():
        return None
    patch = patch_for(finding.patch.name)
    value = finding.patch.value or patch.default
    return TriedFix(patch.name, value) if patch.check(value) else None


def with_predictions(asked: Iterable[TriedFix], candidates: Sequence[FixToTry]) -> list[FixToTry]:
    """The requested fixes, with the diagnosis's predictions for those that it advises with the same value."""
    known = {one.fix: one for one in candidates}
    return [replace(known[fix], advised=None) if fix in known else FixToTry(fix) for fix in asked]


def combination(names: Sequence[str]) -> list[str]:
    """The fixes, best first, that can be combined: of alternatives, the better one."""
    chosen: list[str] = []
    for name in names:
        group = patch_for(name).group
        if not group or group not in {patch_for(one).group for one in chosen}:
            chosen.append(name)
    return chosen
