"""What would shorten an iteration, computed from its budget by phase; advice in the trainer's own arguments.

Each function is pure: the iteration's budget in, a change or None out. A change that gains less than LEAST_GAIN, or
whose argument the trainer does not have, is not offered.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gpuprof.calibration import iterations as calibrated
from gpuprof.diagnosis.iteration_model import Change, Iteration
from gpuprof.diagnosis.iterations.change import LEAST_GAIN, change
from gpuprof.record.phase_names import ENVIRONMENT, GENERATION, REWARD, WEIGHT_SYNC

WAITS = calibrated.WAITS.value
SPREAD = calibrated.SPREAD.value
SHORTER_TAIL = 0.9
"""The 95th percentile of the completions' lengths is below this share of the longest where there is a tail to cut."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """What is known of the trainer: the names of its arguments, and the class."""

    fields: frozenset[str]
    name: str | None

    def first(self, *names: str) -> str | None:
        """The first of these arguments that it has; the first of all where nothing is known."""
        if not self.fields:
            return names[0]
        return next((name for name in names if name in self.fields), None)


def changes(iteration: Iteration, trainer: Trainer) -> tuple[Change, ...]:
    """What would shorten the iteration, the largest gain first."""
    found = [one for make in _ALL for one in make(iteration, trainer)]
    worth = [one for one in found if one.iteration_ns.expected <= (1 - LEAST_GAIN) * iteration.mean_ns]
    return tuple(sorted(worth, key=lambda one: -one.speedup))


def _tail(iteration: Iteration, trainer: Trainer) -> Iterator[Change]:
    """Completions cut at their 95th percentile: the loop decodes until the last one ends."""
    found, argument = iteration.generation, trainer.first("max_completion_length", "max_new_tokens")
    if found is None or argument is None or not found.p95 or not found.longest or not found.decode_ns:
        return
    if found.p95 > SHORTER_TAIL * found.longest:
        return
    saved = found.decode_ns * (1 - found.p95 / found.longest)
    length = math.ceil(found.p95)
    yield change(
        iteration.mean_ns, "completion_tail", "Cut the longest completions", f"{argument}={length}",
        (saved * (1 - SPREAD), saved, saved * (1 + SPREAD)),
        f"generation decodes {found.longest:.0f} tokens until the longest completion ends; 95 % of them are not longer"
        f" than {length}",
        f"completions longer than {length} tokens are cut",
    )  # fmt: skip


def _rewards_at_once(iteration: Iteration, trainer: Trainer) -> Iterator[Change]:
    """Reward functions that wait, at the same time instead of one after another."""
    waiting = [one for one in iteration.rewards if one.cpu_ns is not None and one.cpu_ns < WAITS * one.ns]
    whole = iteration.ns_of(REWARD)
    if len(waiting) < 2 or sum(one.ns for one in iteration.rewards) > 1.05 * whole:
        return
    saved = sum(one.ns for one in waiting) - max(one.ns for one in waiting)
    names = ", ".join(one.name for one in waiting[:3])
    yield change(
        iteration.mean_ns, "rewards_at_once", "Run reward functions at the same time",
        f"make {names} coroutines (async def): TRL awaits those together", (saved * (1 - SPREAD), saved, float(saved)),
        "they run one after another and wait for most of their time; together they take as long as the slowest", None,
    )  # fmt: skip


def _one_ahead(iteration: Iteration, trainer: Trainer) -> Iterator[Change]:
    """Generation of the next iteration while this one trains."""
    ahead = iteration.ns_of(GENERATION, ENVIRONMENT, REWARD)
    rest = iteration.mean_ns - ahead
    if not ahead or not rest:
        return
    saved = min(ahead, rest)
    yield change(
        iteration.mean_ns, "generation_ahead", "Generate one iteration ahead, on GPUs of its own",
        "trl.experimental.async_grpo (AsyncGRPOTrainer), with a vLLM server on another GPU"
        if (trainer.name or "").startswith("GRPO") else "an asynchronous trainer with a generator on another GPU",
        (0.5 * saved, float(saved - iteration.ns_of(WEIGHT_SYNC)), float(saved)),
        "generation, environment and rewards overlap with the rest; the weights' copy to the generator is not measured"
        if not iteration.ns_of(WEIGHT_SYNC) else "generation, environment and rewards overlap with the rest",
        "completions come from the policy of one iteration before",
    )  # fmt: skip


def _decode_without_cpu(iteration: Iteration, trainer: Trainer) -> Iterator[Change]:
    """Decoding at the pace of the GPU: a compiled decode step, or a serving engine."""
    found, busy = iteration.generation, decode_busy_share(iteration)
    argument = trainer.first("use_vllm", "generation_kwargs", "use_transformers_continuous_batching")
    if found is None or busy is None or argument is None or not found.decode_ns:
        return
    most = found.decode_ns * (1 - busy)
    fix = {
        "use_vllm": 'use_vllm=True, vllm_mode="colocate"',
        "generation_kwargs": 'generation_kwargs={"cache_implementation": "static"} with a compiled decode step',
    }.get(argument, f"{argument}=True")
    yield change(
        iteration.mean_ns, "decode_cpu", "Decode without the CPU's cost per token", fix, (0.3 * most, 0.7 * most, most),
        f"the GPU works {100 * busy:.0f} % of the recorded decode steps; at best decoding takes only that (the share of"
        " it that is reached is assumed)",
        None,
    )  # fmt: skip


def _larger_rollout(iteration: Iteration, trainer: Trainer) -> Iterator[Change]:
    """Twice the completions of an iteration, at the same cost per decode step where the CPU is the limit."""
    found, busy = iteration.generation, decode_busy_share(iteration)
    argument = trainer.first("per_device_train_batch_size")
    if found is None or busy is None or argument is None or not found.decode_ns:
        return
    # Per completion: half of what a decode step costs beyond twice the GPU's work of it.
    saved = found.decode_ns * (1 - max(1.0, 2 * busy) / 2)
    yield change(
        iteration.mean_ns, "rollout_batch", "Generate for more prompts at once", f"{argument} × 2",
        (0.6 * saved, saved, found.decode_ns / 2),
        "per completion: a decode step costs the CPU the same for twice the sequences; shown as the iteration of half"
        " of them",
        "twice the prompts in an iteration",
    )  # fmt: skip


def decode_busy_share(iteration: Iteration) -> float | None:
    """Share of the recorded generation in which a GPU worked; None where none was recorded."""
    found = next((one for one in iteration.recorded if one.phase == GENERATION and one.ns), None)
    return None if found is None or not any(one.busy_ns for one in iteration.recorded) else found.busy_ns / found.ns


_ALL: tuple[Callable[[Iteration, Trainer], Iterator[Change]], ...] = (
    _tail, _rewards_at_once, _one_ahead, _decode_without_cpu, _larger_rollout,
)  # fmt: skip
