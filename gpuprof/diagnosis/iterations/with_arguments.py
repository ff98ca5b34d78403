"""What the iteration would take with other values of the trainer's arguments.

Decode steps scale with the longest completion; a decode step, and a pass over the completions, takes longer with more
sequences only where the GPU limits it; what waits does not. All times are of the mean iteration, in nanoseconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from gpuprof.calibration import iterations as calibrated
from gpuprof.diagnosis.iteration_model import Iteration, IterationRange
from gpuprof.diagnosis.iterations.changes import Trainer, busy_share
from gpuprof.diagnosis.value_range import Range
from gpuprof.errors import GpuprofError
from gpuprof.record.phase_names import BACKWARD, FORWARD, GENERATION, LOG_PROBABILITIES, OPTIMIZER, REWARD

SCHEMA = "gpuprof.with_arguments/1"
Value = bool | int | float | str
Expected = tuple[float, float, float]
"""ns: least, expected and most."""


@dataclass(frozen=True, slots=True)
class Factors:
    """What arguments multiply, compared with the iteration as it is."""

    length: float = 1.0
    """Tokens of the longest completion."""
    sequences: float = 1.0
    """Completions that a pass holds."""
    batches: float = 1.0
    """Batches of that size that one generation is for, each with an optimizer step of its own."""
    epochs: float = 1.0
    """Optimizer steps on the same completions."""
    reference: bool = True
    """Whether the reference's log-probabilities are still computed."""
    basis: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PhaseChange:
    """A phase that the arguments change."""

    phase: str
    ns: int
    """As it is."""
    then: IterationRange


@dataclass(frozen=True, slots=True)
class WithArguments:
    """The mean iteration of an RL training with other values of its trainer's arguments."""

    arguments: Mapping[str, Value]
    was_ns: int
    """As it is."""
    iteration_ns: IterationRange
    completions: float
    """An iteration's, over those it has now."""
    speedup: Range
    """Completions per second, over those of now."""
    phases: tuple[PhaseChange, ...]
    """Those that change, in the order of an iteration."""
    basis: tuple[str, ...]
    """What the figures rest on, and what they assume."""


_SIDES = ("low", "expected", "high")


def with_arguments(iteration: Iteration, trainer: Trainer, arguments: Mapping[str, Value]) -> WithArguments:
    """The mean iteration if the trainer's arguments had these values.

    Raises GpuprofError, one line, for an argument whose cost is not known, or whose present value is not.
    """
    asked = Factors()
    for name, value in arguments.items():
        if name not in _RULES:
            raise GpuprofError(f"{name}: gpuprof does not know what it costs; it knows {', '.join(sorted(_RULES))}")
        asked = _RULES[name](asked, iteration, trainer, name, value)
    changed = [(one.phase, one.ns, _phase(iteration, one.phase, one.ns, asked)) for one in iteration.phases]
    phases = tuple(
        PhaseChange(phase, round(ns), IterationRange(*(round(max(one, 0.0)) for one in then)))
        for phase, ns, then in changed
        if any(abs(one - ns) >= 0.5 for one in then)
    )
    sides = (iteration.mean_ns + sum(getattr(one.then, side) - one.ns for one in phases) for side in _SIDES)
    low, expected, high = (max(ns, 1) for ns in sides)
    completions, was = asked.sequences * asked.batches, iteration.mean_ns
    return WithArguments(
        dict(arguments), was, IterationRange(low, expected, high), completions,
        Range(*(completions * was / ns for ns in (high, expected, low))), phases,
        tuple(dict.fromkeys((*asked.basis, *_assumed(iteration, asked)))),
    )  # fmt: skip


def _phase(iteration: Iteration, phase: str, ns: float, asked: Factors) -> Expected:
    """A phase of ns with these factors."""
    busy = busy_share(iteration, phase)
    completions = asked.sequences * asked.batches
    if phase == GENERATION:
        return _generation(iteration, ns, busy, asked.length, completions)
    if phase == REWARD:
        return _rewards(iteration, ns, completions)
    tokens = asked.sequences * asked.length
    if phase == LOG_PROBABILITIES:
        return _log_probabilities(iteration, _scaled(ns, busy, tokens), asked)
    if phase in (FORWARD, BACKWARD):
        return _times_each(_scaled(ns, busy, tokens), asked.batches * asked.epochs)
    if phase == OPTIMIZER:
        return _times_each((ns, ns, ns), asked.batches * asked.epochs)
    return ns, ns, ns


def _generation(iteration: Iteration, ns: float, busy: float | None, length: float, sequences: float) -> Expected:
    found = iteration.generation
    decode = 0.0 if found is None else min(float(found.decode_ns), ns)
    low, expected, high = _times_each(_scaled(decode, busy, sequences), length)
    return ns - decode + low, ns - decode + expected, ns - decode + high


def _log_probabilities(iteration: Iteration, one: Expected, asked: Factors) -> Expected:
    """The passes without gradients: one fewer without a reference; one more for the old policy, where the completions
    are trained on in more than one step and were in one."""
    passes = max(iteration.log_probability_passes or 1.0, 1.0)
    left = passes - (0.0 if asked.reference else 1.0)
    again = asked.batches * asked.epochs > 1 and iteration.steps == 1
    low, expected, high = (ns / passes * asked.batches for ns in one)
    return low * left, expected * (left + again), high * (left + again)


def _rewards(iteration: Iteration, ns: float, completions: float) -> Expected:
    """Those that compute take longer for more completions; of those that wait it is not known."""
    waiting = min(float(sum(one.ns for one in iteration.rewards if one.waits)), ns)
    computing = (ns - waiting) * completions
    sides = sorted((computing + waiting, computing + waiting * completions))
    return sides[0], computing + waiting, sides[1]


def _scaled(ns: float, busy: float | None, times: float) -> Expected:
    """CPU and GPU time ns of a pass, of which the GPU works the share `busy`, with `times` the work.

    More work costs what the GPU then takes beyond the CPU's launches. Less work is not faster than the CPU: where that
    limits (busy is small) nothing is gained. busy None: not known, so between nothing and all of it.
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
    """As often as `times`; what comes or goes is not known better than steps of different iterations are alike."""
    spread = calibrated.SPREAD.value * abs(times - 1)
    return one[0] * max(times - spread, 0.0), one[1] * times, one[2] * (times + spread)


# -- what each argument multiplies


def _length(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    found, new = iteration.generation, _count(name, value)
    # Where the trainer does not keep the completions' lengths, the forward passes of the loop are.
    longest = None if found is None else found.longest or found.forwards
    if not longest:
        raise GpuprofError(f"{name}: how long the completions are was not recorded, so its effect is not known")
    if new > longest:
        text = f"completions end by themselves after at most {longest:.0f} tokens, as they do now"
        return replace(asked, basis=(*asked.basis, text))
    text = f"the longest completion has {longest:.0f} tokens now; each decode step takes as long as now"
    return replace(asked, length=asked.length * new / longest, basis=(*asked.basis, text))


def _sequences(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    times = _count(name, value) / _now(trainer, name)
    return replace(asked, sequences=asked.sequences * times)


def _group(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    _count(name, value)
    text = f"{name}: the number of completions is that of the batch, so an iteration takes as long with fewer prompts"
    return replace(asked, basis=(*asked.basis, text))


def _batches(asked: Factors, iteration: Iteration, trainer: Trainer, name: str, value: Value) -> Factors:
    return replace(asked, batches=asked.batches * _count(name, value) / iteration.steps)


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
    """A value that may be anything in JSON; nan if it is no number, or none that is finite."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return math.nan
    try:
        return float(value) if math.isfinite(value) else math.nan
    except OverflowError:
        return math.nan


_RULES: dict[str, Callable[[Factors, Iteration, Trainer, str, Value], Factors]] = {
    "beta": _beta,
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
    if asked.sequences != 1.0 or asked.batches != 1.0:
        busy = busy_share(iteration, GENERATION)
        if busy is None:
            said.append("how long the GPU works in a decode step was not recorded")
        else:
            cost = "cost little" if busy < 0.5 else "take longer"
            said.append(f"the GPU works {100 * busy:.0f} % of a decode step, so more sequences {cost}")
    if asked.batches * asked.epochs > 1 and iteration.steps == 1:
        said.append("with several steps on a generation, the old policy's log-probabilities are computed, too")
    return said
