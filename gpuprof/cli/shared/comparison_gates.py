"""`--fail-on METRIC:LIMIT` for a comparison: by how much B may exceed A (`step_time:5%`)."""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass

from gpuprof.diagnosis.comparison.comparison import Comparison
from gpuprof.diagnosis.comparison.significance import SIGNIFICANT_P

Pair = tuple[float, float]


def _per(measure: str) -> Callable[[Comparison], Pair | None]:
    def found(c: Comparison) -> Pair | None:
        work = c.work
        if work is None or work.measure != measure or work.a_ns_per is None or work.b_ns_per is None:
            return None
        return work.a_ns_per, work.b_ns_per

    return found


def _time(kind: str) -> Callable[[Comparison], Pair]:
    def found(c: Comparison) -> Pair:
        mine = [term for term in c.terms if term.kind == kind]
        return float(sum(term.a_ns for term in mine)), float(sum(term.b_ns for term in mine))

    return found


def _peak(c: Comparison) -> Pair | None:
    a, b = c.a.peak_bytes, c.b.peak_bytes
    return (float(a), float(b)) if a and b else None


METRICS: dict[str, Callable[[Comparison], Pair | None]] = {
    "step_time": lambda c: (float(c.step.a_ns), float(c.step.b_ns)),
    "token_time": _per("tokens"),
    "sample_time": _per("samples"),
    "busy_time": _time("busy"),
    "idle_time": _time("idle"),
    "kernels": lambda c: (c.a.kernels, c.b.kernels),
    "syncs": lambda c: (c.a.syncs, c.b.syncs),
    "peak_memory": _peak,
}
"""Metric → (A's value, B's value); None if the recordings lack it."""
TESTED = ("step_time", "token_time", "sample_time")
"""Metrics that vary from step to step, and fail only if the difference is significant."""
_LIMIT = re.compile(r"(\d+(?:\.\d*)?|\.\d+)\s*%")


@dataclass(frozen=True, slots=True)
class ChangeGate:
    """A metric, and by what share of A's value B's may exceed it."""

    metric: str
    limit: float
    text: str
    """The limit as the user wrote it."""


class GateOutcome(enum.Enum):
    """Outcome of one gate."""

    HOLDS = 0
    FAILS = 1
    UNKNOWN = 2


def parse(text: str) -> ChangeGate:
    """Parses `METRIC:LIMIT`. Raises ValueError with a sentence if it is not valid."""
    metric, _, limit = (part.strip() for part in text.partition(":"))
    if metric not in METRICS:
        raise ValueError(f"{metric!r} is not a metric of a comparison; choose from {', '.join(METRICS)}")
    found = _LIMIT.fullmatch(limit)
    if found is None:
        raise ValueError(f"{metric} needs a percentage of A's value, such as {metric}:5%")
    return ChangeGate(metric, float(found[1]) / 100, limit)


OF_GPU = ("busy_time", "idle_time", "kernels", "syncs")
"""Metrics of GPU work, which runs without a GPU lack."""


def judge(gate: ChangeGate, comparison: Comparison) -> tuple[GateOutcome, str]:
    """Whether a gate holds, and what to print if it does not.
    A difference above the limit with too few steps to test is UNKNOWN: it must not pass, but may be noise.
    """
    sides = comparison.diagnoses or ()
    on_cpu = bool(sides) and all(one.cpu_step is not None for one in sides)
    pair = None if on_cpu and gate.metric in OF_GPU else METRICS[gate.metric](comparison)
    if pair is None:
        return GateOutcome.UNKNOWN, f"--fail-on {gate.metric}: not known from these recordings"
    before, after = pair
    if after <= before * (1 + gate.limit):
        return GateOutcome.HOLDS, ""
    by = f"{100 * (after / before - 1):.1f} % above A's" if before else "above A's, which is 0"
    said = f"{gate.metric} of B is {by}, the limit is {gate.text}"
    if gate.metric not in TESTED:
        return GateOutcome.FAILS, f"gate failed: {said}"
    tested = comparison.significance
    if tested is None or tested.significant is None or tested.p is None:
        return GateOutcome.UNKNOWN, (
            f"--fail-on {gate.metric}: {said}, but there are too few steps to distinguish that from noise:"
            f" record with gpuprof"
            " trace, which times more steps before it records"
        )
    if gate.metric == "step_time" or tested.p_each is None:
        slower = tested.b_median_ns > tested.a_median_ns or gate.metric != "step_time"
        significant, p = tested.significant and slower, tested.p
    else:
        significant, p = tested.p_each < SIGNIFICANT_P, tested.p_each
    return (GateOutcome.FAILS, f"gate failed: {said} (p = {p:.2g})") if significant else (GateOutcome.HOLDS, "")
