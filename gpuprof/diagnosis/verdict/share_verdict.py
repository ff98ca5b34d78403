"""The verdict on recordings that cannot be replayed, from where the step's time went.

If something takes the share s of the step and overlaps with nothing, halving its time shortens the step by s / 2: its
sensitivity is s by definition. So shares of the step are used as sensitivities here, and judged by the same rule. The
only overlap that is known is device work during the CPU's critical path (`hidden_work`): it counts for the CPU and not
for the device. Everything else is treated as not overlapping.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuprof.calibration import noise as calibrated
from gpuprof.diagnosis.recorded.shares import HOST_CAUSES, PAUSE_NS, Shares, without_profiler
from gpuprof.diagnosis.result.diagnosis import Profiler, Verdict
from gpuprof.diagnosis.sentences import Sentences
from gpuprof.diagnosis.verdict.verdict import family_of, stays
from gpuprof.replay.bound import EQUAL_SENSITIVITY, PARTS, Bound, bound_of
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.timeline.unit import STEP, Unit

Parts = Mapping[str, float]
"""compute | memory | latency → the share of the device's compute kernels that it limits."""


def judge_shares(
    shares: Shares, parts: Parts, profiler: Profiler | None, whole: bool, said: Sentences, unit: Unit = STEP
) -> Verdict:
    """What limits the step without the profiler's cost; a sentence says so if that cost changes the verdict.

    `profiler`: the cost that is still in the shares, None if they are of a step timed without it. `whole`: no event
    is missing; `said`: sentences about the step.
    """
    recorded = bound = bound_of_shares(shares, parts)
    if profiler is not None:
        shares = without_profiler(shares, min(profiler.typical_ns, shares.host_ns))
        bound = bound_of_shares(shares, parts)
        if recorded is not None and bound != recorded:
            without = f"what limits the {unit} is unclear" if bound is None else f"the {unit} is {_named(bound)}"
            more = (
                f"As recorded it looks {_named(recorded)}, but the profiler's own cost ({profiler.events_per_step:,}"
                f" recorded events {unit.a}) likely explains that: without it {without}."
            )
            said = (*said, more)
    cause = _cause(shares) if bound == "host" else None
    sure = None
    if bound is not None:
        found, unknown = gains_of_shares(shares, parts)
        sure = calibrated.SHARES_AGREE.value * stays([found], bound, unknown)
    verdict = Verdict(bound=bound, family=family_of(bound), cause=cause, confidence=sure, sentences=said)
    return verdict if whole or holds_with_missing_events(bound, shares) else undecided(verdict)


def bound_of_shares(shares: Shares, parts: Parts) -> Bound | None:
    """What limits a step with these shares; None if that is unclear, or if times are damaged."""
    if shares.step_ns <= 0:
        return None
    found, unknown = gains_of_shares(shares, parts)
    return bound_of(found, unknown=unknown)


def gains_of_shares(shares: Shares, parts: Parts) -> tuple[Sensitivities, float]:
    """(sensitivities of a step with these shares, share of it that may be due to any resource).

    Pauses between launched work are the device's latency if they are short; long ones are unknown.
    """
    step, idle = shares.step_ns, shares.idle_ns
    waits = {
        "host": shares.host_ns / step,
        "input": idle.get("input", 0) / step,
        "transfer": idle.get("transfer", 0) / step,
    }
    waiting = sum(waits.values())
    hidden = shares.hidden_ns / step if waiting >= EQUAL_SENSITIVITY else 0.0
    # A CPU twice as fast halves its path, the waits and what they hide, but not the device work outside it.
    path = {name: min(share * (1 + hidden / waiting), 2 * waiting) if share else 0.0 for name, share in waits.items()}
    seen = 1 - hidden * step / shares.busy_ns if hidden else 1.0
    compute = shares.compute_ns / step * seen
    pauses = idle.get("device", 0) / step
    latency, unknown = (pauses, 0.0) if shares.pause_ns < PAUSE_NS else (0.0, pauses)
    limited = {name: parts.get(name, 0.0) * compute for name in PARTS}
    limited["latency"] += latency
    found = Sensitivities(
        host=path["host"],
        input=path["input"],
        transfer=path["transfer"] + shares.copy_ns / step * seen,
        communication=(idle.get("communication", 0) + shares.communication_ns * seen) / step,
        device=compute + latency,
        **limited,
    )
    return found, unknown + idle.get("unknown", 0) / step


def holds_with_missing_events(bound: Bound | None, shares: Shares) -> bool:
    """Whether a verdict holds even if all idle time is work whose events are missing."""
    idle = {"unknown": sum(shares.idle_ns.values())}
    device = bound_of_shares(replace(shares, idle_ns=idle), {"memory": 1.0})
    return device is not None and (bound == device or (device == "memory" and bound in (*PARTS, "balanced")))


def undecided(verdict: Verdict) -> Verdict:
    """No verdict on a file that lost events, since a device may only seem to wait."""
    why = "Events are missing from this file, and a missing kernel looks like a wait: no verdict."
    return Verdict(bound=None, family=None, cause=None, confidence=None, sentences=(*verdict.sentences, why))


def _cause(shares: Shares) -> str:
    """The CPU's most expensive part; the profiler's own time is not a cause."""
    return max((c for c in HOST_CAUSES if c != "profiler"), key=lambda c: shares.idle_ns.get(c, 0))


def _named(bound: Bound) -> str:
    return "balanced" if bound == "balanced" else f"{bound}-bound"
