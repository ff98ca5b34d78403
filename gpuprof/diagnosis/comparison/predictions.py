"""What one side's diagnosis predicted for a fix, next to what the other side measured with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from gpuprof.diagnosis.comparison.comparison import ComparedWork, PredictionCheck
from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.diagnosis.detect.pair.side import Side
from gpuprof.diagnosis.plug_ins import declarations
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.units import Assumed, Share
from gpuprof.value_range import Range

LIKE_PREDICTED: Assumed[Share] = 0.2
"""A prediction is used if its work differs from the work done by at most this share."""


def predictions(name: str, a: Facts, b: Facts, work: ComparedWork | None) -> Iterator[PredictionCheck]:
    """What each side's diagnosis predicted for a fix that the other side has."""
    ratio = work.ratio if work else 1.0
    other_work = work is not None and not work.equal
    again = any(one.again for one in declarations() if one.id == name)
    sides: tuple[tuple[Literal["a", "b"], Facts, Facts, float], ...] = (("a", a, b, ratio), ("b", b, a, 1 / ratio))
    for by, advising, other, done in sides:
        fitting = [
            finding
            for finding in advising.findings
            if finding.id == name
            and abs(finding.work / done - 1) <= LIKE_PREDICTED
            and (again or other.finding(name) is None)
        ]
        if fitting:
            nearest = min(fitting, key=lambda f: abs(f.work / done - 1))
            scale = done / nearest.work if other_work else 1.0
            tried = nearest.measured.step_ns if nearest.measured is not None and scale == 1.0 else None
            yield _prediction(nearest.id, nearest.title, by, nearest.step_ns, other.side, scale, tried)


def combined(both: tuple[Diagnosis, Diagnosis], names: list[str], a: Facts, b: Facts) -> Iterator[PredictionCheck]:
    """The prediction for several fixes together, if all of them were made."""
    sides: tuple[tuple[Literal["a", "b"], Diagnosis, Facts], ...] = (("a", both[0], b), ("b", both[1], a))
    for by, diagnosis, other in sides:
        predicted = diagnosis.combined
        if predicted is not None and predicted.work == 1.0 and set(predicted.ids) <= set(names):
            yield _prediction("+".join(predicted.ids), " + ".join(predicted.titles), by, predicted.step_ns, other.side)


def _prediction(
    finding: str,
    title: str,
    by: Literal["a", "b"],
    predicted: Range,
    measured: Side,
    scale: float = 1.0,
    tried_ns: int | None = None,
) -> PredictionCheck:
    """`scale`: work done / work that was predicted for. `tried_ns`: the step that a trial measured."""
    ns = measured.step_ns
    step_ns = Range(predicted.low * scale, predicted.expected * scale, predicted.high * scale)
    return PredictionCheck(
        finding=finding,
        title=title,
        by=by,
        step_ns=step_ns,
        scale=scale,
        measured_ns=ns,
        known=measured.known,
        inside=step_ns.low <= ns <= step_ns.high,
        error=(step_ns.expected - ns) / ns,
        tried_ns=tried_ns,
    )
