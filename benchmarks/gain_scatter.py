"""How much measured gains scatter around replayed ones, from scenarios of the role `fit` whose turns were kept.

    python -m benchmarks.calibrate noise

A gain scatters for two reasons: the replay is not exact, and the processes that were timed with and without the fix
differ. The second is known from the turns and taken off, so that what is left may be added to the noise between
processes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from benchmarks.accuracy import Case, of_timed_steps
from benchmarks.recall import SAME_WORK, of_scenario
from benchmarks.recall_pairs import Program, Timed
from benchmarks.refit import Refit, scaled
from gpuprof.calibration import noise as noise_table
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.diagnose import diagnose
from gpuprof.diagnosis.findings import FINDINGS
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps, prediction
from gpuprof.record.base.quantiles import Z80
from gpuprof.tracefile.recording import resolve
from gpuprof.value_range import Range
from scenarios import catalogue

FINDER = {page.id: find for page, find in FINDINGS}


def gains() -> Iterator[Refit]:
    """The least share with which four of five gains lie in their interval, noise of their turns added."""
    needed = {}
    for entry in map(catalogue.scenario, (*catalogue.names(), *catalogue.campaign_names())):
        program = of_scenario(entry) if entry.role == "fit" else None
        if program is None or (case := _analysed(program)) is None:
            continue
        for change in program.changes:
            predicted = _predicted(case, change)
            turns = turns_noise(entry, change.name)
            if predicted is not None and turns is not None:
                shorter = math.log(case.mean_ns / predicted.step_ns)
                needed[f"{entry.name} {change.name}"] = share_needed(change.gain.middle, predicted.gain, shorter, turns)
    note = "of four of five gains"
    yield Refit("noise.REPLAY_SHARE", needed, float(np.quantile([*needed.values()], 0.8)) if needed else None, note)


def share_needed(measured: float, gain: Range, shorter: float, turns: float) -> float:
    """Least share of the logarithm of the step's change that, as an uncertainty of the replayed gain, takes its
    interval to the measured one; 0 if it is there already, infinite if nothing changes.

    gain: as replayed, its interval without that uncertainty; shorter: logarithm of the step's change; turns: half the
    80 % interval of the measured gain's logarithm.
    """
    away = math.log(measured / gain.expected)
    own = math.log(gain.high / gain.expected if away > 0 else gain.expected / gain.low)
    if away**2 <= own**2 + turns**2:
        return 0.0
    if shorter == 0:
        return math.inf
    return math.sqrt(max(away**2 - turns**2 - math.log1p(noise_table.GAIN.value) ** 2, 0.0)) / abs(shorter)


def turns_noise(entry: catalogue.Scenario, fix: str) -> float | None:
    """Half the 80 % interval of the logarithm of a measured gain, from how its turns scatter; None for one turn."""
    processes = (entry.truth or {"processes": []})["processes"]
    before, after = ([one["free_ms"] for one in processes if one["fix"] == name] for name in ("", fix))
    turns = np.log([a / b for a, b in zip(before, after, strict=False)])
    return None if len(turns) < 2 else Z80 * float(turns.std(ddof=1)) / math.sqrt(len(turns))


@dataclass(frozen=True, slots=True)
class _Predicted:
    gain: Range
    step_ns: float
    """That the fix leaves."""


def _analysed(program: Program) -> Analysis | None:
    timed = Case(program.name, program.path, None, None, run=True, steps_differ=True)
    found = of_timed_steps(timed) if program.differs else None
    if found is None:
        recording = resolve(program.path).read()
        found = diagnose(recording.trace, run=recording.run, advise=False)
    return analysis_of(found)


def _predicted(case: Analysis, change: Timed) -> _Predicted | None:
    """The gain of a change that one finding's fix makes, without the scatter of measured gains; None of a fix that may
    not work, whose doubt counts by itself."""
    if change.finding is None or change.also or change.form or change.finding not in FINDER:
        return None
    same = [one for one in case.proposals(FINDER[change.finding]) if change.title in (None, one.title)]
    nearest = min(same, key=lambda one: abs(one.work - change.work), default=None)
    if nearest is None or nearest.odds < 1 or abs(nearest.work / change.work - 1) >= SAME_WORK:
        return None
    with patch.dict(*scaled("noise.GAIN_SHARE", 0.0)):
        found = prediction(PredictedSteps(case), [nearest])
    return _Predicted(found.speedup, found.step.expected)
