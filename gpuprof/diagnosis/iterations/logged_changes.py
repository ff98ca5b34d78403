"""What would shorten logged iterations, computed from the mean one, in the framework's own options."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuprof.calibration import iterations as calibrated
from gpuprof.diagnosis.iterations.change import change
from gpuprof.diagnosis.iterations.logged_model import LoggedIterations
from gpuprof.diagnosis.result.iteration_model import IterationChange
from gpuprof.record.phases.phase_names import ENVIRONMENT, GENERATION, REWARD, WEIGHT_SYNC
from gpuprof.tracefile.training_logs.frameworks import Framework
from gpuprof.units import Assumed, Share

LEAST_REUSED: Assumed[Share] = 0.9
"""Smallest share of the old policy's pass that is saved by the generator's log-probabilities."""


def changes(found: LoggedIterations, framework: Framework) -> tuple[IterationChange, ...]:
    """Changes, the largest gain first; those that gain less than LEAST_GAIN are left out."""
    all_ = [one for make in _ALL for one in make(found, framework)]
    worth = [one for one in all_ if one.iteration_ns.expected <= (1 - calibrated.LEAST_GAIN.value) * found.mean_ns]
    return tuple(sorted(worth, key=lambda one: -one.speedup))


def _ahead(found: LoggedIterations, framework: Framework) -> Iterator[IterationChange]:
    """Generate the next iteration while this one trains."""
    ahead = found.ns_of(GENERATION, ENVIRONMENT, REWARD)
    rest = found.mean_ns - ahead
    if found.asynchronous or not framework.ahead or ahead <= 0 or rest <= 0:
        return
    saved, sync = min(ahead, rest), found.ns_of(WEIGHT_SYNC)
    yield change(
        found.mean_ns, "generation_ahead", framework.ahead,
        (0.5 * saved, float(saved - sync), float(saved)),
        "generation, environment and rewards overlap with the rest; each side needs the number of GPUs both have now",
        "completions come from the policy of one iteration before",
    )  # fmt: skip


def _tail(found: LoggedIterations, framework: Framework) -> Iterator[IterationChange]:
    """The longest completions continue later instead of being waited for."""
    mean, longest = found.quantity("request_mean_s"), found.quantity("request_longest_s")
    generating = found.ns_of(GENERATION)
    if mean is None or longest is None or longest.mean <= 0 or not generating or not framework.partial:
        return
    most = generating * max(1 - mean.mean / longest.mean, 0.0)
    yield change(
        found.mean_ns, ("completion_tail", 1), framework.partial,
        (calibrated.TAIL.low * most, calibrated.TAIL.value * most, calibrated.TAIL.high * most),
        f"a completion takes {mean.mean:.0f} s, the longest of an iteration {longest.mean:.0f} s, and all wait for it"
        " (the share that is gained is assumed)",
        "completions are continued by a newer policy than the one that began them",
    )  # fmt: skip


def _reuse(found: LoggedIterations, framework: Framework) -> Iterator[IterationChange]:
    """Use the generator's log-probabilities instead of computing the old policy's again."""
    old = found.quantity("old_log_probabilities_s")
    if not framework.reuse or old is None:
        return
    spent = 1e9 * old.mean
    yield change(
        found.mean_ns, "old_log_probabilities",
        framework.reuse, (LEAST_REUSED * spent, spent, spent),
        "the generator knows them; the pass that computes them again is left out",
        "the generator's differ a little: watch the trainer's measure of that",
    )  # fmt: skip


def _more_generators(found: LoggedIterations, framework: Framework) -> Iterator[IterationChange]:
    """Twice the GPUs for the side that the trainer waits for."""
    trainer = next((one for one in found.roles if one.role == "trainer"), None)
    if trainer is None or trainer.wait_ns is None or (trainer.wait_share or 0.0) < calibrated.BOUND.value:
        return
    saved = [min(float(trainer.wait_ns), found.mean_ns * (1 - 1 / (2 * scales))) for scales in calibrated.SCALES.rising]
    yield change(
        found.mean_ns, "generator_gpus", "twice the generator's GPUs or replicas",
        (max(saved[0], 0.0), max(saved[1], 0.0), saved[2]),
        "the trainer waits for completions, which come twice as fast (how well that scales is assumed)", None,
    )  # fmt: skip


_ALL: tuple[Callable[[LoggedIterations, Framework], Iterator[IterationChange]], ...] = (
    _ahead,
    _tail,
    _reuse,
    _more_generators,
)
