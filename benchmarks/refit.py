"""One refitted number, and the way most are refitted: from what a fix was measured to leave of a step.

A number of the table is scaled until the predicted step is the measured one; every recording whose prediction
depends on it gives one value. `benchmarks/calibrate.py` prints them next to the table.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import patch

import numpy as np

import gpuprof
from benchmarks.accuracy import MS, ROOT, Case, Fix, cases, of_recorded
from benchmarks.fit_or_test import place_of
from gpuprof.calibration.number import Number
from gpuprof.calibration.table import numbers
from gpuprof.diagnosis.analysis import Analysis as Looked
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.detect.declared.proposal import Proposal
from gpuprof.diagnosis.fixes.predicted_step import predict
from gpuprof.replay.transform import scale

SCALES = np.geomspace(0.25, 4.0, 25)
NEAR, INFORMATIVE = 0.2, 0.02
"""A prediction that changes by less than INFORMATIVE if the fitted number is 20 % smaller or larger says nothing about
the number; nor does one that misses the measurement by more than NEAR at all SCALES."""
SAME_WORK = 0.2
SHARED = ROOT.parent / "shared"


@dataclass(frozen=True)
class Refit:
    """A number computed again. `values`: one of each recording that determines it, by the recording's path."""

    name: str
    values: dict[str, float]
    new: float | None = None
    """None: their median."""
    note: str = ""

    @property
    def value(self) -> float | None:
        """None where no recording determines it."""
        found = list(self.values.values())
        return self.new if self.new is not None else float(np.median(found)) if found else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The middle 80 % of the values; of fewer than five, all."""
        found = sorted(self.values.values())
        if not found:
            return None
        ends = (0.1, 0.9) if len(found) >= 5 else (0.0, 1.0)
        low, high = (float(np.quantile(found, end)) for end in ends)
        return low, high


@dataclass(frozen=True)
class Knob:
    """Numbers of a finding that are scaled together until predictions of its fix come out."""

    names: tuple[str, ...]
    """Names in the table."""
    finding: ModuleType
    host: bool = False
    """Whether the number is a factor on the host's time after the fix, which is scaled in its place."""
    fix: str = ""
    """Which of the timed fixes that the finding proposes, where there are several."""


@dataclass(frozen=True)
class FittedStep:
    """What one recording shows about a knob."""

    scale: float
    """What the numbers must be multiplied by for the measured step."""
    measured_ms: float
    """The middle of what was measured."""
    logs: np.ndarray
    """Logarithms of the scales that were tried, ascending; likewise the steps."""
    steps_ms: np.ndarray

    def step_at(self, scale: float) -> float:
        """The predicted step with the numbers this many times as large, ms."""
        return float(np.interp(np.log(scale), self.logs, self.steps_ms))


def fitted_steps(knob: Knob) -> dict[str, FittedStep]:
    """For the recordings in the table that determine a knob: path → the fitted step."""
    found = {place: fitted_step(knob, place) for place in numbers()[knob.names[0]].recordings}
    return {place: one for place, one in found.items() if one is not None}


def refit_by_fix(knob: Knob) -> Iterator[Refit]:
    """The numbers of a knob from the recordings that the table names for the first of them."""
    found = fitted_steps(knob)
    for name in knob.names:
        old = 1.0 if knob.host else numbers()[name].value
        yield Refit(name, {place: old * one.scale for place, one in found.items()})


def fitted_step(knob: Knob, place: str) -> FittedStep | None:
    """What one recording shows about a knob; None if nothing."""
    case, timed = timed_fix(place, knob)
    if case is None or timed is None:
        return None
    diagnosis = diagnosed(case.path)
    looked = analysis_of(diagnosis)
    if looked is None:
        return None
    tried = [(factor, _predicted(knob, looked, timed, factor)) for factor in SCALES]
    kept = [(factor, *step) for factor, step in tried if step is not None]
    if len(kept) < 2:
        return None
    scales, steps, proposals = zip(*kept, strict=True)
    proposal, found = proposals[0], np.maximum.accumulate(np.array(steps)[:: _direction(steps)]) / MS
    logs = np.log(scales)[:: _direction(steps)]
    measured = of_recorded(timed, case, diagnosis, proposal.work) if case.steps_differ else timed
    middle = sum(measured.step_ms) / 2
    at = float(np.interp(middle, found, logs))
    sides = [float(np.interp(at + shift, np.sort(logs), found[np.argsort(logs)])) for shift in (-NEAR, NEAR)]
    if not found[0] < middle < found[-1] or abs(sides[1] / sides[0] - 1) < INFORMATIVE:
        return None
    order = np.argsort(logs)
    return FittedStep(float(np.exp(at)), middle, logs[order], found[order])


def _direction(steps: Sequence[float]) -> int:
    """1 where steps get longer with the numbers, else −1."""
    return 1 if steps[-1] >= steps[0] else -1


def _predicted(knob: Knob, looked: Looked, timed: Fix, factor: float) -> tuple[float, Proposal] | None:
    """The step after the fix with the numbers this many times as large, and the proposal."""
    with contextlib.ExitStack() as changed:
        for name in () if knob.host else knob.names:
            changed.enter_context(patch.dict(*scaled(name, factor)))
        same = [one for one in knob.finding.find(looked) if timed.title in (None, one.title)]
        nearest = min(same, key=lambda one: abs(one.work - timed.work), default=None)
        if nearest is None or abs(nearest.work / timed.work - 1) >= SAME_WORK:
            return None
        if knob.host:
            before = nearest.change
            nearest = replace(nearest, change=lambda graph: scale(before(graph), host=factor))
        return predict(looked, replace(nearest, best=None, worst=None)).expected, nearest


def scaled(name: str, factor: float) -> tuple[dict[str, Any], dict[str, Number]]:
    """(the file of the table that has a number, the number this many times as large)."""
    subject, _, key = name.partition(".")
    module = importlib.import_module(f"gpuprof.calibration.{subject}")
    old: Number = getattr(module, key)
    ends = {end: getattr(old, end) * factor for end in ("value", "low", "high")}
    return vars(module), {key: replace(old, **ends)}


def timed_fix(place: str, knob: Knob) -> tuple[Case | None, Fix | None]:
    """The recording at a place, and the fix of it that was timed and that the finding proposes."""
    case = fit_cases().get(place)
    same = [fix for fix in (case.fixes if case else ()) if fix.finding == knob.finding.PAGE.id and fix.gains]
    fixes = [fix for fix in same if knob.fix in ("", fix.name)]
    return case, max(fixes, key=lambda fix: fix.work, default=None)


@functools.cache
def fit_cases() -> dict[str, Case]:
    """Every recording with a measured step that numbers may be fitted to, by its place."""
    return {place_of(case.path): case for case in cases(SHARED, role="fit")}


@functools.cache
def diagnosed(path: Path) -> gpuprof.Diagnosis:
    return gpuprof.diagnose(path)


Subject = Callable[[], Iterator[Refit]]
