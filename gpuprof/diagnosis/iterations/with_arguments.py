"""What the iteration would take with other values of the trainer's arguments.

Decode steps scale with the longest completion; a decode step, and a pass over the completions, takes longer with more
sequences only where the GPU limits it; waiting does not. All times are of the mean iteration, in nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from gpuprof.bounds import Whole
from gpuprof.calibration import iterations as calibrated
from gpuprof.diagnosis.iterations.recorded_shares import busy_share
from gpuprof.diagnosis.iterations.trainer import Trainer
from gpuprof.diagnosis.result.iteration_model import Iteration
from gpuprof.errors import GpuprofError
from gpuprof.record.model.trainer_arguments import ACCUMULATION
from gpuprof.record.phases.phase_names import BACKWARD, FORWARD, GENERATION, LOG_PROBABILITIES, OPTIMIZER, REWARD
from gpuprof.units import Assumed, Share
from gpuprof.value_range import Range

MOST_IDLE_DECODING: Assumed[Share] = 0.5
"""Share of a decode step in which the GPU works, below which more sequences cost little."""

SCHEMA = "gpuprof.with_arguments/1"
Value = bool | int | float | str
Expected = tuple[float, float, float]
"""ns: least, expected and most."""


@dataclass(frozen=True, slots=True)
class Factors:
    """Factors on an iteration's quantities, relative to the iteration as it is."""

    length: float = 1.0
    """Tokens of the longest completion."""
    shortest: float = 1.0
    """The least that `length` may become: longer completions may end by themselves."""
    sequences: float = 1.0
    """Completions in a pass."""
    batches: float = 1.0
    """Batches of that size per generation, each with its own optimizer step."""
    epochs: float = 1.0
    """Optimizer steps on the same completions."""
    accumulated: float = 1.0
    """Batches of that size per optimizer step, with one generation for all of them."""
    reference: bool = True
    """Whether the reference's log-probabilities are still computed."""
    recomputed: int = 0
    """Forward passes more (1) or fewer (-1) that the backward pass recomputes."""
    basis: tuple[str, ...] = ()

    @property
    def completions(self) -> float:
        """Completions of an iteration."""
        return self.sequences * self.batches * self.accumulated

    @property
    def passes(self) -> float:
        """Forward and backward passes of an iteration."""
        return self.batches * self.accumulated * self.epochs


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A phase that the arguments change."""

    phase: str
    ns: int
    """As it is."""
    then: Annotated[Range, Whole()]


@dataclass(frozen=True, slots=True)
class WithArguments:
    """The mean iteration of an RL training with other values of its trainer's arguments."""

    arguments: Mapping[str, Value]
    was_ns: int
    """As it is."""
    iteration_ns: Range
    completions: float
    """Completions of an iteration / those it has now."""
    speedup: Range
    """Completions per second / those of now."""
    phases: tuple[PhaseChange, ...]
    """Those that change, in the order of an iteration."""
    basis: tuple[str, ...]
    """What the figures are based on, and what they assume."""


_SIDES = ("low", "expected", "high")


def with_arguments(iteration: Iteration, trainer: Trainer, arguments: Mapping[str, Value]) -> WithArguments:
    """The mean iteration if the trainer's arguments had these values.

    Raises GpuprofError, one line, for an argument whose cost is not known, or whose present value is not.
    """
    asked = Factors()
    for name, value in sorted(arguments.items(), key=lambda one: one[0] != ACCUMULATION):  # others depend on it
        if name not in _RULES:
            raise GpuprofError(f"{name}: gpuprof does not know what it costs; it knows {', '.join(sorted(_RULES))}")
        asked = _RULES[name](asked, iteration, trainer, name, value)
    phases = _changed(iteration, asked)
    low, expected, high = _whole(iteration, phases)
    completions, was = asked.completions, iteration.mean_ns
    return WithArguments(
        dict(arguments), was, Range(low, expected, high), completions,
        Range(*(completions * was / ns for ns in (high, expected, low))), phases,
        tuple(dict.fromkeys((*asked.basis, *_assumed(iteration, asked)))),
    )  # fmt: skip


def iteration_with(iteration: Iteration, factors: Factors) -> tuple[int, int, int]:
    """The mean iteration with these factors, ns: least, expected and most."""
    return _whole(iteration, _changed(iteration, factors))


def _changed(iteration: Iteration, asked: Factors) -> tuple[PhaseChange, ...]:
    """The phases that change, in the order of an iteration."""
    changed = [(one.phase, one.ns, _sides(iteration, one.phase, one.ns, asked)) for one in iteration.phases]
    return tuple(
        PhaseChange(phase, round(ns), Range(*(round(max(one, 0.0)) for one in then)))
        for phase, ns, then in changed
        if any(abs(one - ns) >= 0.5 for one in then)
    )


def _whole(iteration: Iteration, phases: tuple[PhaseChange, ...]) -> tuple[int, int, int]:
    low, expected, high = (
        max(iteration.mean_ns + sum(getattr(one.then, side) - one.ns for one in phases), 1) for side in _SIDES
    )
    return low, expected, high


def _sides(iteration: Iteration, phase: str, ns: float, asked: Factors) -> Expected:
    """A phase of ns with these factors, down to what it takes if the completions are as short as they may be."""
    low, expected, high = _phase(iteration, phase, ns, asked)
    if asked.shortest < 1.0:
        low = min(low, _phase(iteration, phase, ns, replace(asked, length=asked.length * asked.shortest))[0])
    return low, expected, high


def _phase(iteration: Iteration, phase: str, ns: float, asked: Factors) -> Expected:
    """A phase of ns with these factors."""
    busy = busy_share(iteration, phase)
    if phase == GENERATION:
        return _generation(iteration, ns, busy, asked.length, asked.completions)
    if phase == REWARD:
        return _rewards(iteration, ns, asked.completions)
    tokens = asked.sequences * asked.length
    if phase == LOG_PROBABILITIES:
        return _log_probabilities(iteration, _scaled(ns, busy, tokens), asked)
    if phase in (FORWARD, BACKWARD):
        one = _with_recomputation(iteration, ns, asked.recomputed) if phase == BACKWARD else (ns, ns, ns)
        low, expected, high = (_scaled(side, busy, tokens)[i] for i, side in enumerate(one))
        return _times_each((low, expected, high), asked.passes)
    if phase == OPTIMIZER:
        return _times_each((ns, ns, ns), asked.batches * asked.epochs)
    return ns, ns, ns


def _generation(iteration: Iteration, ns: float, busy: float | None, length: float, sequences: float) -> Expected:
    found = iteration.generation
    decode = 0.0 if found is None else min(float(found.decode_ns), ns)
    low, expected, high = _times_each(_scaled(decode, busy, sequences), length)
    return ns - decode + low, ns - decode + expected, ns - decode + high


def _with_recomputation(iteration: Iteration, ns: float, forwards: int) -> Expected:
    """A backward pass of ns in which a forward pass more (1) or fewer (-1) is computed."""
    least, by_cpu, most = calibrated.RECOMPUTED.rising
    busy = busy_share(iteration, FORWARD)
    shares = least, by_cpu - (by_cpu - 1.0) * (0.5 if busy is None else busy), most
    sides = sorted(ns + forwards * iteration.ns_of(FORWARD) * share for share in shares)
    return max(sides[0], 0.0), max(sides[1], 0.0), max(sides[2], 0.0)


def _log_probabilities(iteration: Iteration, one: Expected, asked: Factors) -> Expected:
    """The passes without gradients: one fewer without a reference; one more for the old policy, if the completions are
    now used in more than one optimizer step and were used in one."""
    passes = max(iteration.log_probability_passes or 1.0, 1.0)
    left = passes - (0.0 if asked.reference else 1.0)
    again = _old_policy_too(iteration, asked)
    low, expected, high = (ns / passes * asked.batches * asked.accumulated for ns in one)
    return low * left, expected * (left + again), high * (left + again)


def _old_policy_too(iteration: Iteration, asked: Factors) -> bool:
    """Whether completions that were used in one optimizer step are now used in several."""
    return asked.batches * asked.epochs > 1 and iteration.steps == 1


def _rewards(iteration: Iteration, ns: float, completions: float) -> Expected:
    """The reward phase of ns: functions that compute take longer for more completions; whether those that wait do is
    unknown."""
    waiting = min(float(sum(one.ns for one in iteration.rewards if one.waits)), ns)
    computing = (ns - waiting) * completions
    sides = sorted((computing + waiting, computing + waiting * completions))
    return sides[0], computing + waiting, sides[1]


def _scaled(ns: float, busy: float | None, times: float) -> Expected:
    """Time of a pass of ns, during which the GPU works the share `busy`, with `times` the work. More work costs only
    the GPU time that exceeds the CPU's launches. Less work is not faster than the CPU: where that limits (busy is
    small) nothing is gained. busy None: not known, so between nothing and all of it.
    """
    if times == 1.0:
        return ns, ns, ns
    if busy is None:
        sides = sorted((ns, ns * times))
        return sides[0], (sides[0] + sides[1]) / 2, sides[1]
    if times > 1.0:
        return ns, ns * max(1.0, busy * times), ns * (1.0 + busy * (times - 1.0))
    saved = busy * (1.0 - times)
    return ns * (1.0 - saved), ns * (1.0 - saved / 2), ns


def _times_each(one: Expected, times: float) -> Expected:
    """A phase that occurs `times` as often; what is added or removed is uncertain by the scatter between iterations."""
    spread = calibrated.SPREAD.value * abs(times - 1)
    return one[0] * max(times - spread, 0.0), one[1] * times, one[2] * (times + spread)


# -- what each argument multiplies


def _length(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    found, new = iteration.generation, _count(name, value)
    # If the trainer does not keep the completions' lengths, the number of forward passes of the loop is used.
    longest = None if found is None else found.longest or found.forwards
    if not longest:
        raise GpuprofError(f"{name}: how long the completions are was not recorded, so its effect is not known")
    if new > longest:
        return _longer(asked, trainer.settings.get(name), longest, new)
    text = f"the longest completion has {longest:.0f} tokens now; each decode step takes as long as now"
    return replace(asked, length=asked.length * new / longest, basis=(*asked.basis, text))


def _longer(asked: Factors, limit: object, longest: float, new: float) -> Factors:
    """Completions may have `new` tokens, more than the longest one has now."""
    if isinstance(limit, int) and longest < limit - 0.5:
        text = f"completions end by themselves after at most {longest:.0f} tokens, as they do now"
        return replace(asked, basis=(*asked.basis, text))
    text = (
        f"the longest completion has {longest:.0f} tokens now"
        + (", the limit" if limit is not None else "; whether that is the limit was not recorded")
        + f"; it may get {new:.0f}, or end before"
    )
    times = new / longest
    return replace(asked, length=asked.length * times, shortest=asked.shortest / times, basis=(*asked.basis, text))


def _sequences(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    times = _count(name, value) / _now(trainer, name)
    return replace(asked, sequences=asked.sequences * times)


def _group(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    _count(name, value)
    text = f"{name}: the number of completions is that of the batch, so an iteration takes as long with fewer prompts"
    return replace(asked, basis=(*asked.basis, text))


def _batches(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    accumulated = asked.accumulated * _now(trainer, ACCUMULATION, 1.0)
    derived = iteration.steps * _now(trainer, ACCUMULATION, 1.0) / _now(trainer, "num_iterations", 1.0)
    times = _count(name, value) / _now(trainer, name, derived)
    if accumulated > _count(name, value):
        raise GpuprofError(f"{name}={value}: an optimizer step takes {accumulated:.0f} batches, more than a generation")
    return replace(asked, batches=times / asked.accumulated)


def _accumulated(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    """By default a generation is for one optimizer step, with all of its batches."""
    if iteration.steps != _now(trainer, "num_iterations", 1.0):
        raise GpuprofError(f"{name}: steps_per_generation was set, too, so a generation may stay as large as it is")
    text = f"{name}: a generation is for the batches of one optimizer step, as is the default of steps_per_generation"
    return replace(asked, accumulated=_count(name, value) / _now(trainer, name, 1.0), basis=(*asked.basis, text))


def _checkpointing(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    now = trainer.settings.get(name)
    if not isinstance(value, bool):
        raise GpuprofError(f"{name}={value}: give true or false")
    if not isinstance(now, bool):
        raise GpuprofError(f"{name}: the run does not say which value it had, so its effect is not known")
    if now == value:
        return replace(asked, basis=(*asked.basis, f"{name} changes no time"))
    text = "the backward pass computes the forward pass again, which takes longer than it where the CPU limits"
    return replace(asked, recomputed=1 if value else -1, basis=(*asked.basis, text))


def _epochs(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    return replace(asked, epochs=asked.epochs * _count(name, value) / _now(trainer, name, 1.0))


def _beta(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    now = trainer.settings.get(name)
    if not _number(value) >= 0:
        raise GpuprofError(f"{name}={value}: give a number that is not below 0")
    if now is None:
        raise GpuprofError(f"{name}: the run does not say which value it had, so its effect is not known")
    if value and not now:
        raise GpuprofError(f"{name}: the run has no reference policy, so what one costs was not recorded")
    if bool(now) == bool(value):
        return replace(asked, basis=(*asked.basis, f"{name} changes no time"))
    return replace(asked, reference=False)


def _now(trainer: Trainer, name: str, usual: float | None = None) -> float:
    """The value that the run had."""
    now = trainer.settings.get(name, usual)
    if isinstance(now, bool) or not isinstance(now, (int, float)) or now <= 0:
        raise GpuprofError(f"{name}: the run does not say which value it had, so its effect is not known")
    return float(now)


def _count(name: str, value: Value) -> float:
    number = _number(value)
    if not number.is_integer() or number < 1:
        raise GpuprofError(f"{name}={value}: give a whole number of at least 1")
    return number


def _number(value: object) -> float:
    """A JSON value as a number; nan if it is not a finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


_RULES: dict[str, Callable[[Factors, Iteration, Trainer, str, Value], Factors]] = {
    "beta": _beta,
    ACCUMULATION: _accumulated,
    "gradient_checkpointing": _checkpointing,
    "max_completion_length": _length,
    "max_new_tokens": _length,
    "num_generations": _group,
    "num_iterations": _epochs,
    "per_device_train_batch_size": _sequences,
    "response_length": _length,
    "steps_per_generation": _batches,
}
"""Arguments of TRL's trainers, and what each multiplies."""


def _assumed(iteration: Iteration, asked: Factors) -> list[str]:
    said = []
    if asked.completions != 1.0:
        busy = busy_share(iteration, GENERATION)
        if busy is None:
            said.append("how long the GPU works in a decode step was not recorded")
        else:
            cost = "cost little" if busy < MOST_IDLE_DECODING else "take longer"
            said.append(f"the GPU works {100 * busy:.0f} % of a decode step, so more sequences {cost}")
    if _old_policy_too(iteration, asked):
        said.append("with several steps on a generation, the old policy's log-probabilities are computed, too")
    return said
