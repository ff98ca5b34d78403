"""Steps of RL trainings: the wall time of each by phase, from lines of steps.jsonl."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from msgspec import Meta

from gpuprof.record.phases.phase_names import TIMED
from gpuprof.tracefile.run_folder.untrusted import Key, Whole, read_all
from gpuprof.units import Characters, Convention, Names

_MOST_REWARDS: Convention[Names] = 64
_LONGEST_NAME: Convention[Characters] = 200
_Times = Annotated[dict[Annotated[str, Meta(max_length=_LONGEST_NAME)], Whole], Meta(max_length=_MOST_REWARDS)]


@dataclass(frozen=True, slots=True)
class Generated:
    """The generate loops of a step."""

    calls: Whole = 0
    forwards: Whole = 0
    """Forward passes of the model, including that of the prompt."""
    slots: Whole = 0
    """Sequences summed over forward passes: computed tokens, including those of sequences that had ended."""
    sequences: Whole = 0
    prefill_ns: Whole = 0
    decode_ns: Whole = 0
    tokens: Whole | None = None
    """Tokens of all completions, including end tokens; None if the trainer does not keep them in host memory."""
    longest: Whole | None = None
    p95: Whole | None = None


@dataclass(frozen=True, slots=True)
class PhasedStep:
    """One optimizer step. `phases` sums to `ns`."""

    step: Whole
    stage: str
    ns: Whole
    phases: Annotated[_Times, Key("phases_ns")]
    rank: Whole = 0
    rewards: Annotated[_Times, Key("rewards_ns")] = field(default_factory=dict)
    """Reward function → wall ns; functions may overlap."""
    rewards_cpu: Annotated[_Times, Key("rewards_cpu_ns")] = field(default_factory=dict)
    """Reward function → CPU ns of its thread, if measured."""
    generated: Annotated[Generated | None, Key("generation")] = None
    passes: Annotated[Whole, Key("log_probability_passes")] = 0
    """How many times log-probabilities were computed without gradients; 0 if not known."""


def phased_steps(lines: Iterable[dict[str, Any]]) -> tuple[PhasedStep, ...]:
    """Steps with phases, in file order. Invalid lines are skipped; the number of names is bounded."""
    timed = (
        replace(step, phases={name: ns for name, ns in step.phases.items() if name in TIMED})
        for step in read_all(PhasedStep, (line for line in lines if "phases_ns" in line))
    )
    return tuple(step for step in timed if step.phases and sum(step.phases.values()) == step.ns)
