"""Steps of RL trainings: the wall time of each by phase, from lines of steps.jsonl."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from gpuprof.record.phase_names import TIMED
from gpuprof.tracefile.run_folder.untrusted import whole
from gpuprof.units import Characters, Convention, Names

_MOST_REWARDS: Convention[Names] = 64
_LONGEST_NAME: Convention[Characters] = 200


@dataclass(frozen=True, slots=True)
class Generated:
    """The generate loops of a step."""

    calls: int
    forwards: int
    """Forward passes of the model, including that of the prompt."""
    slots: int
    """Sequences summed over forward passes: computed tokens, including those of sequences that had ended."""
    sequences: int
    prefill_ns: int
    decode_ns: int
    tokens: int | None
    """Tokens of all completions, including end tokens; None if the trainer does not keep them in host memory."""
    longest: int | None
    p95: int | None


@dataclass(frozen=True, slots=True)
class PhasedStep:
    """One optimizer step. `phases` sums to `ns`."""

    rank: int
    step: int
    stage: str
    ns: int
    phases: dict[str, int]
    rewards: dict[str, int]
    """Reward function → wall ns; functions may overlap."""
    rewards_cpu: dict[str, int]
    """Reward function → CPU ns of its thread, if measured."""
    generated: Generated | None
    passes: int = 0
    """How many times log-probabilities were computed without gradients; 0 if not known."""


def phased_steps(lines: Iterable[dict[str, Any]]) -> tuple[PhasedStep, ...]:
    """Steps with phases, in file order. Invalid lines are skipped; the number of names is bounded."""
    return tuple(step for line in lines if (step := _step(line)) is not None)


def _step(line: dict[str, Any]) -> PhasedStep | None:
    phases = {name: ns for name, ns in _times(line.get("phases_ns")).items() if name in TIMED}
    number, ns, stage = whole(line.get("step")), whole(line.get("ns")), line.get("stage")
    if not phases or number is None or ns is None or not isinstance(stage, str) or sum(phases.values()) != ns:
        return None
    rewards, cpu = _times(line.get("rewards_ns")), _times(line.get("rewards_cpu_ns"))
    generated = _generated(line.get("generation"))
    passes = whole(line.get("log_probability_passes")) or 0
    return PhasedStep(whole(line.get("rank")) or 0, number, stage, ns, phases, rewards, cpu, generated, passes)


def _generated(value: Any) -> Generated | None:
    if not isinstance(value, dict):
        return None
    names = [field.name for field in fields(Generated)]
    counts = [whole(value.get(name)) or 0 for name in names[:6]]
    return Generated(*counts, *(whole(value.get(name)) for name in names[6:]))


def _times(value: Any) -> dict[str, int]:
    if not isinstance(value, dict):
        return {}
    items = list(value.items())[:_MOST_REWARDS]
    return {str(name)[:_LONGEST_NAME]: ns for name, found in items if (ns := whole(found)) is not None}
