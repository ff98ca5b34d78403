"""The step after fixes: their changes are applied to the graph, and the mean step is simulated; with 80 % intervals."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpuprof.calibration import energy as energy_calibrated
from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.analysis import Analysis, Change
from gpuprof.diagnosis.detect.declared.proposal import Proposal
from gpuprof.diagnosis.fixes.step_energy import step_energy
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.record.base.quantiles import Z80
from gpuprof.replay.graph import Graph
from gpuprof.replay.loader_queue import Loader
from gpuprof.replay.mean_step import WAITS, MeanStep
from gpuprof.replay.noise import change_noise, process_noise, replay_noise
from gpuprof.replay.other_processes import other_processes
from gpuprof.replay.several_steps import SimulatedTogether
from gpuprof.replay.transform import scale
from gpuprof.value_range import Range


@dataclass(frozen=True, slots=True)
class Prediction:
    """Predicted effect of a fix on the mean step.

    The uncertainty of the mean step counts for the step after the fix; in the gain, what scales with it cancels out.
    """

    step: Range
    """The mean step with the fix and its 80 % interval, ns."""
    speedup: Range
    """Of the training, with its 80 % interval: unchanged step / step with the fix, for equal work."""
    step_j: Range | None = None
    """Energy of the step with the fix, J, with its 80 % interval; None if the run measured no power."""


@dataclass(frozen=True, slots=True)
class _Known:
    """One combination of changes."""

    kept: object
    """Objects whose ids are its key: while they are alive, the ids stay unique."""
    step_ns: Callable[[], float]
    """Waits for its simulated step, ns."""
    work_j: float | None
    """Energy of the GPU work of its step, J."""


class PredictedSteps:
    """Computes the mean step of a case after fixes; each combination is simulated once."""

    def __init__(self, case: Analysis) -> None:
        self.case = case
        self.energy = step_energy(case)
        self._known: dict[tuple[int, ...], _Known] = {}
        self._together = SimulatedTogether(case.graph)
        self.other_processes = other_processes(case.graph)
        """The graph as in processes with a faster or slower CPU."""

    def begin(
        self, graph: Graph, changes: Sequence[Change], proposals: Sequence[Proposal], mean: MeanStep | None = None,
        made: Graph | None = None, count: int = 0,
    ) -> Callable[[], float]:  # fmt: skip
        """Starts to simulate a graph after the changes of some proposals; returns a function that waits for the mean
        step, ns. Effects on batches and lumps also count; a larger batch takes its workers longer.

        `mean`: how to compute the mean step, if not as for the case; `made`: the graph with the first `count` changes
        applied, if it exists already.
        """
        mean = mean or self.case.mean
        lumps = _lumps(mean, proposals)
        simulated = self._simulated(graph, changes, proposals, made, count)

        def step_ns() -> float:
            ns = mean.of_step(simulated(), loader=_loader(self.case.mean, mean, proposals), lumps=lumps)
            return max(ns, _least_ns(proposals), 1.0)

        return step_ns

    def joules(self, changes: Iterable[Sequence[Change]], step: Range) -> Range | None:
        """Energy of a step of this length after some changes as expected (the first), at best and at worst, which have
        been simulated, J; None if the run measured no power."""
        known = [self._known.get((id(self.case.graph), *map(id, one))) for one in changes]
        works = [one.work_j for one in known if one is not None and one.work_j is not None]
        if self.energy is None or not works:
            return None
        joules = self.energy.joules
        return Range(joules(min(works), step.low), joules(works[0], step.expected), joules(max(works), step.high))

    def begin_host_share(self, proposals: Sequence[Proposal]) -> Callable[[], float]:
        """The same for the share of the step after some proposals that scales with CPU time, including that of
        batches."""
        mean, changes = self.case.mean, [p.change for p in proposals]
        now = self.begin(self.case.graph, changes, proposals)
        simulated = self._simulated(self.case.graph, [*changes, _half_the_cpu], proposals)
        lumps = _lumps(mean, proposals)

        def share() -> float:
            loader = _loader(mean, mean, proposals)
            half = mean.of_step(simulated(), faster={"host": 0.5, "input": 0.5}, loader=loader, lumps=lumps)
            return 2 * (1 - max(half, 0.5 * _least_ns(proposals)) / now())

        return share

    def _simulated(
        self, graph: Graph, changes: Sequence[Change], proposals: Sequence[Proposal], made: Graph | None = None,
        count: int = 0,
    ) -> Callable[[], float]:  # fmt: skip
        """Applies the changes and starts to simulate the result; returns a function that waits for its step, ns."""
        key = (id(graph), *map(id, changes))
        if key not in self._known:
            changed = graph if made is None else made
            for change in changes[count:]:
                changed = change(changed)
            mean = self.case.mean
            if proposals and all(one.launches for one in proposals):
                then = partial(mean.with_faster_cpu, graph, changed)
            else:
                then = partial(mean.simulated, changed)
            simulated = self._together.begin(mean.ready(changed), then)
            work_j = None if self.energy is None else self.energy.work_j(changed)
            self._known[key] = _Known((graph, changes), simulated, work_j)
        return self._known[key].step_ns

    def ends_of_step(self) -> tuple[tuple[MeanStep, float], ...]:
        """(mean step model, factor on every step) at either end of the mean step's 80 % interval; the factor is how
        much shorter even the usual step is there. Empty if the mean was not timed."""
        found, mean = self._timed, self.case.mean
        if found is None:
            return ()
        if self._excess <= 0:
            return (mean, max(found.low, 1) / found.mean_ns), (mean, found.high / found.mean_ns)
        less, more = mean.with_mean(found.low), mean.with_mean(found.high)
        usual_ns = self.case.mean_ns - self._excess
        return (less, min(max(found.low, 1) / usual_ns, 1.0)), (more, found.high / more.now_ns())

    def ends_of_excess(self) -> tuple[MeanStep, ...]:
        """Mean step models with the smallest and the largest excess of some steps over the usual one that the timed
        steps allow; empty if there is no excess, or if the mean was not timed.

        The excess was observed, so it is never 0: the lower end is the excess times e^(-h/excess), where h is half the
        interval of the mean, and at least e^(-1.28/√k) of it if it comes from k steps, which is close to the lower end
        of a Poisson rate after k events.
        """
        found, excess = self._timed, self._excess
        if found is None or excess <= 0:
            return ()
        longer = sum(one.steps for one in found.excess) + found.pauses
        away = min((found.mean_ns - found.low) / excess, Z80 / math.sqrt(longer) if longer else math.inf)
        least_ns = self.case.mean_ns - excess * (1 - math.exp(-away))
        return self.case.mean.with_mean(least_ns), self.case.mean.with_mean(found.high)

    @property
    def _timed(self) -> Budget | None:
        """The budget of the mean step, if it was timed."""
        found = self.case.budget
        return None if found is None or found.mean_ns <= 0 else found

    @property
    def _excess(self) -> float:
        """Mean step − usual step, ns."""
        return self.case.mean_ns - (self.case.mean.usual_ns or self.case.mean_ns)


def _lumps(mean: MeanStep, proposals: Sequence[Proposal]) -> dict[str, float]:
    """Cause → share of it that remains with all these proposals; a larger batch takes longer to hand over."""
    left: dict[str, float] = {}
    work = math.prod(p.work for p in proposals if not p.same_batch)
    if work != 1.0 and WAITS in mean.lumps_ns and not mean.starved:
        left[WAITS] = work
    for proposal in proposals:
        for cause, factor in proposal.lumps.items():
            left[cause] = left.get(cause, 1.0) * factor
    return left


def _half_the_cpu(graph: Graph) -> Graph:
    return scale(graph, host=0.5, input=0.5)


def _loader(now: MeanStep, mean: MeanStep, proposals: Sequence[Proposal]) -> Loader | None:
    """The loader after some fixes that were proposed for the loader of `now`, if the mean step follows `mean`."""
    loader = next((p.loader for p in proposals if p.loader is not None), now.loader)
    if loader is None:
        return None
    factor = math.prod(p.work for p in proposals if not p.same_batch)
    if now.loader is not None and mean.loader is not None and now.loader.batch_ns > 0:
        factor *= mean.loader.batch_ns / now.loader.batch_ns
    return replace(loader, batch_ns=loader.batch_ns * factor)


def predict(case: Analysis, proposal: Proposal) -> Range:
    """The step after a fix with its 80 % interval, ns."""
    return predict_together(case, [proposal])


def predict_together(case: Analysis, proposals: Sequence[Proposal]) -> Range:
    """The step after several fixes together with its 80 % interval, ns; the unchanged step if there are none."""
    return prediction(PredictedSteps(case), proposals).step


def prediction(steps: PredictedSteps, proposals: Sequence[Proposal]) -> Prediction:
    """Predicted effect of some fixes together on the step, with 80 % intervals.

    Independent sources of uncertainty add as squares of logarithms. The step after the fixes has all of them: how well
    each fix works (its best and worst case, the others as expected), the profiler's cost, the noise between processes,
    and the uncertainty of the mean step. For the gain, an uncertainty of the step itself counts on both sides: a faster
    or slower CPU (here, and from one process to the next), or more or less excess of some steps, changes the unchanged
    step and the step after the fixes, and widens the gain only if it changes them by different factors. The interval
    of the gain is at least as wide as measured gains scatter around replayed ones, that of the step as wide as they do
    beyond the noise between processes, which it has by itself.
    """
    case, ordered = steps.case, in_order(proposals)
    usual = [p.change for p in ordered]

    def step(graph: Graph, at: int = -1, change: Change | None = None) -> Callable[[], float]:
        changes = usual if change is None else [*usual[:at], change, *usual[at + 1 :]]
        return steps.begin(graph, changes, ordered)

    # Start all simulations before waiting for the first: they run in another thread.
    now = step(case.graph)
    ends = (case.removal.quicker, case.removal.slower, *steps.other_processes)
    paces = [(steps.begin(graph, [], []), step(graph)) for graph in ends]
    better = [step(case.graph, i, p.best) for i, p in enumerate(ordered) if p.best]
    worse = [step(case.graph, i, p.worst) for i, p in enumerate(ordered) if p.worst]
    for i, p in enumerate(ordered):
        for steps_then, loader in zip((better, worse), p.loader_ends, strict=False):
            steps_then.append(
                steps.begin(case.graph, usual, [*ordered[:i], replace(p, loader=loader), *ordered[i + 1 :]])
            )
    host_share = steps.begin_host_share(ordered)
    shortest = _without_more_work(steps, ordered)
    expected = max(now(), shortest)
    own = [math.log(p.spread) for p in ordered]
    shorter = [*own, *(math.log(expected / min(one(), expected)) for one in better)]
    longer = [*own, *(math.log(max(one(), expected) / expected) for one in worse)]
    quick, slow = (math.log(then() / expected) for _, then in paces[:2])
    most = math.log(expected / shortest) if shortest > 0 else math.inf
    steps_then, gains_then = _with_other_means(steps, ordered, expected)
    # Another process may also be faster with a larger batch, but gains no more than the batch's work.
    noise = math.log1p(process_noise(host_share()))
    scatter, of_replay = change_noise(case.mean_ns / expected), replay_noise(case.mean_ns / expected)
    down = min(max(_away(*shorter, max(-quick, 0.0)), of_replay), most)
    up = max(_away(*longer, max(slow, 0.0)), of_replay)
    step_ns = _around(expected, (noise, down, min(steps_then)), (noise, up, max(steps_then)))
    gain, noise = math.prod(p.work for p in ordered) * case.mean_ns / expected, math.log1p(noise_calibrated.GAIN.value)
    shifts = [math.log(before() / case.mean_ns * expected / max(then(), shortest)) for before, then in paces]
    less = _away(noise, max(_away(*longer, min(0.0, *shifts), min(gains_then)), scatter))
    more = min(_away(noise, max(_away(*shorter, max(0.0, *shifts), max(gains_then)), scatter)), most)
    then_ns = Range(*map(round, (step_ns.low, step_ns.expected, step_ns.high)))
    return Prediction(then_ns, _around(gain, (less,), (more,)), _energy(steps, ordered, then_ns))


def _energy(steps: PredictedSteps, ordered: Sequence[Proposal], step: Range) -> Range | None:
    """Energy of the step with some fixes, J: with the step's interval, the best and the worst case of each fix, and the
    error of the estimate itself."""
    usual = [p.change for p in ordered]
    others = [[*usual[:i], one, *usual[i + 1 :]] for i, p in enumerate(ordered) for one in (p.best, p.worst) if one]
    found = steps.joules([usual, *others], step)
    if found is None or found.low <= 0:
        return None
    own = math.log1p(energy_calibrated.OF_FIX.value)
    down, up = found.expected / found.low, max(found.high / found.expected, 1.0)
    return _around(found.expected, (math.log(max(down, 1.0)), own), (math.log(up), own))


def _with_other_means(
    steps: PredictedSteps, ordered: list[Proposal], expected: float
) -> tuple[list[float], list[float]]:
    """Steps and gains at the mean step and at its interval's ends, as logarithms relative to the expected value."""
    case, usual = steps.case, [p.change for p in ordered]

    def then(mean: MeanStep) -> float:
        ns = steps.begin(case.graph, usual, ordered, mean)()
        return max(ns, _without_more_work(steps, ordered, mean)) / expected

    of_steps = [math.log(then(mean) * factor) for mean, factor in steps.ends_of_step()]
    of_gains = [math.log(mean.now_ns() / case.mean_ns / then(mean)) for mean in steps.ends_of_excess()]
    return [0.0, *of_steps], [0.0, *of_gains]


def _around(expected: float, down: tuple[float, ...], up: tuple[float, ...]) -> Range:
    """A value with its interval; `down`, `up`: how far each source takes it, as logarithms."""
    return Range(expected * math.exp(-_away(*down)), expected, expected * math.exp(_away(*up)))


def _without_more_work(steps: PredictedSteps, ordered: list[Proposal], mean: MeanStep | None = None) -> float:
    """The step with only the fixes that keep the batch size, and with events that a larger batch makes rarer, ns: on
    the same machine, no larger batch makes a step shorter than this. 0 if no batch grows."""
    others = [p for p in ordered if p.same_batch or p.work <= 1]
    if len(others) == len(ordered):
        return 0.0
    rarer = [replace(p, work=1.0, least_ns=0.0, loader=None) for p in ordered if p not in others and p.lumps]
    return steps.begin(steps.case.graph, [p.change for p in others], [*others, *rarer], mean)()


def in_order(proposals: Sequence[Proposal]) -> list[Proposal]:
    return sorted(proposals, key=lambda p: p.last)


def _least_ns(proposals: Sequence[Proposal]) -> float:
    """Lower bound of the step, ns: the longest time that a fix leaves outside the graph, scaled by the work that the
    other fixes add to a step."""
    work = math.prod(p.work for p in proposals)
    return max((p.least_ns * work / p.work for p in proposals), default=0.0)


def _away(*parts: float) -> float:
    return math.sqrt(sum(part * part for part in parts))
