"""Texts on the iteration of an RL training: its phases as a bar, generation, rewards, changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from gpuprof.diagnosis.iterations.recorded_shares import decode_busy_share
from gpuprof.diagnosis.result.iteration_model import GenerationBudget, Iteration, IterationChange, PhaseBudget
from gpuprof.record.phases.phase_names import BACKWARD, FORWARD, GENERATION, IDLE, OPTIMIZER, OTHER, REWARD, TRAINING
from gpuprof.report.names import escape
from gpuprof.report.numbers import amount, count, duration, duration_range, share
from gpuprof.report.stepbar import LEAST_LISTED, PartPaint
from gpuprof.report.words.fixes import times_range
from gpuprof.units import Convention, Names, Rows
from gpuprof.value_range import Range

PAINTS: dict[str, PartPaint] = {
    GENERATION: PartPaint("yellow", "#c98a00", "█"),
    "environment": PartPaint("bright_yellow", "#c9b458", "▤"),
    REWARD: PartPaint("magenta", "#b5568f", "▓"),
    "log-probabilities": PartPaint("cyan", "#3b8ea5", "▒"),
    "advantage": PartPaint("bright_cyan", "#8fbfcf", "░"),
    TRAINING: PartPaint("green", "#2f7d57", "▩"),
    "weight sync": PartPaint("blue", "#3d5a99", "▚"),
    "data": PartPaint("bright_blue", "#7aa6d8", "╲"),
    "validation": PartPaint("bright_green", "#7fb069", "▥"),
    "save": PartPaint("bright_red", "#a65f3e", "▦"),
    OTHER: PartPaint("bright_black", "#9aa2ab", "?"),
    IDLE: PartPaint("bright_black", "#c9ced4", "┄"),
}
"""Colour and fill of each phase; fills differ, so that the bar can be read without colour."""
_TRAINING = (FORWARD, BACKWARD, OPTIMIZER)
MOST_REWARDS: Convention[Names] = 4
MOST_CHANGES: Convention[Rows] = 4
"""Reward functions and changes that are named."""


class Phased(Protocol):
    """An iteration split into phases, recorded or logged."""

    @property
    def mean_ns(self) -> int: ...
    @property
    def training_ns(self) -> int: ...
    @property
    def phases(self) -> tuple[PhaseBudget, ...]: ...
    @property
    def changes(self) -> tuple[IterationChange, ...]: ...


@dataclass(frozen=True, slots=True)
class BarPhase:
    """A phase of the bar; forward, backward and optimizer are one."""

    phase: str
    ns: int
    detail: str = ""


def bar(iteration: Phased) -> tuple[BarPhase, ...]:
    """The phases in the order of an iteration; they sum to the mean iteration exactly."""
    found: list[BarPhase] = []
    for one in iteration.phases:
        if one.phase not in _TRAINING:
            found.append(BarPhase(one.phase, one.ns))
        elif not any(part.phase == TRAINING for part in found):
            parts = [part for part in iteration.phases if part.phase in _TRAINING]
            detail = ", ".join(f"{part.phase} {share(part.ns, iteration.mean_ns)}" for part in parts)
            found.append(BarPhase(TRAINING, iteration.training_ns, detail))
    return tuple(found)


def legend(iteration: Phased) -> list[tuple[str, str]]:
    """(phase, its share) of the visible phases, largest first, with the parts of training in brackets."""
    seen = sorted(
        (one for one in bar(iteration) if one.ns >= LEAST_LISTED * iteration.mean_ns), key=lambda one: -one.ns
    )
    return [(one.phase, share(one.ns, iteration.mean_ns) + (f" ({one.detail})" if one.detail else "")) for one in seen]


def summary(iteration: Iteration) -> str:
    """The length of an iteration, and what it was measured on."""
    steps = amount(iteration.steps, "optimizer step")
    timed = amount(iteration.count, "iteration")
    return f"{duration(iteration.mean_ns)} an iteration of {steps}; phases timed in {timed} without a profiler"


def generation(iteration: Iteration) -> str:
    """The parts of generation; empty if no generate loop was seen."""
    found = iteration.generation
    if found is None or not found.forwards:
        return _engine(found)
    said = [
        f"prompts {duration(found.prefill_ns)}, then {count(found.forwards)} decode steps"
        + (f" of {duration(found.token_ns)}" if found.token_ns else "")
        + f" for {amount(found.sequences, 'sequence')}"
    ]
    if found.tokens_per_s:
        said.append(f"{count(found.tokens_per_s)} tokens/s")
    if found.ended_share and found.ended_share >= LEAST_LISTED:
        said.append(f"{share(found.ended_share, 1)} of the computed tokens belong to sequences that had ended")
    busy = decode_busy_share(iteration)
    if busy is not None:
        said.append(f"the GPU works {share(busy, 1)} of it")
    copies = iteration.cache_copies
    if copies is not None and copies.cpu_ns >= LEAST_LISTED * iteration.mean_ns:
        said.append(f"copying the cache takes {duration(copies.cpu_ns)} of CPU time (extrapolated)")
    return "; ".join(said)


def _engine(found: GenerationBudget | None) -> str:
    if found is None or not found.tokens_per_s:
        return ""
    return f"{count(found.tokens_per_s)} tokens/s for {amount(found.sequences, 'sequence')}"


def rewards(iteration: Iteration) -> str:
    """The reward functions, longest first, and which of them wait; empty if their names are not known."""
    named = []
    for one in iteration.rewards[:MOST_REWARDS]:
        waits = one.waits and one.ns >= LEAST_LISTED * iteration.mean_ns
        named.append(f"{escape(one.name)} {duration(one.ns)}" + (" (waits)" if waits else ""))
    more = len(iteration.rewards) - MOST_REWARDS
    return " · ".join(named) + (f" and {more} more" if more > 0 else "")


def unrecorded(iteration: Iteration) -> str:
    """What the window left out; empty if nothing."""
    found = iteration.unrecorded
    if found is None:
        return ""
    passes = amount(round(found.forwards), "decode step")
    return (
        f"{duration(found.ns)} of generation ({passes} an iteration) was not recorded: of a long loop only the first,"
        " middle and last steps are. What is said of generation's kernels is about those"
    )


def gain(change: IterationChange, iteration: Phased) -> str:
    """`2.1 s → 1.7–1.9 s   1.1–1.2×`."""
    found, now = change.iteration_ns, iteration.mean_ns
    after = duration_range(found.low, found.high)
    times = times_range(Range(now / found.high, change.speedup, now / found.low))
    return f"{duration(now)} → {after}   {times}"


def condition(change: IterationChange) -> str:
    """What it changes about the training; empty if nothing."""
    return f"changes the training: {escape(change.changes)}" if change.changes else ""
