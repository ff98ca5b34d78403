"""The Python functions of a run's unprofiled steps, each with its time and the step time if the function took no time.

To find the step without a function (and everything it calls), the step is replayed with the CPU's work shortened where
the function was sampled, by its share of the samples there. GPU work and waits for it stay, so time that overlaps with
GPU work gains nothing. A function whose time cannot be located in the recorded steps gets no price.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuprof.calibration import sampling as calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.result.host_model import Host, HostFunction, WorkerFunction
from gpuprof.diagnosis.sampled.host_calls import SampledCost, StackColumns, cost_at, costs
from gpuprof.diagnosis.sampled.host_places import Places, gpu_waits_until, host_work, places
from gpuprof.diagnosis.sampled.host_workers import loader_workers, worker_function
from gpuprof.record.base.quantiles import Z80, t80
from gpuprof.replay.graph import launcher_of
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.run_folder.samples import HostSamples, read_samples
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Convention, Functions, Samples, Share
from gpuprof.value_range import Range

FEWEST_SAMPLES: Assumed[Samples] = 5
LEAST_SAMPLED_SHARE: Assumed[Share] = 0.01
"""Functions with fewer samples, or with a smaller share of them, are left out."""
MOST_FUNCTIONS: Convention[Functions] = 50
MOST_PRICED: Convention[Functions] = 25
LEAST_PLACED: Assumed[Share] = 0.7
"""Smallest share of a function's time that must be located in the replayed steps to give it a price."""
MOSTLY_WAITS: Assumed[Share] = 0.5
"""A function that waits for workers for at least this share of its time has no time of its own to save."""
_PHASES = {
    "step": "other", "data": "data", "data_end": "other", "forward": "forward", "backward": "backward",
    "backward_end": "other", "optimizer": "optimizer",
}  # fmt: skip

OUTSIDE_FIRST_GAIN: Assumed[Share] = 0.02
"""With at least this gain, as a share of the step, a function outside the model's passes is listed before those
inside."""


def host_of(samples: HostSamples | None, case: Analysis | None, now_ns: float | None) -> Host | None:
    """The sampled functions with their prices; None if nothing was sampled. case: the replayed steps; without them
    functions have no price. now_ns: the mean step of the diagnosis, which prices are compared with."""
    if samples is None:
        return None
    stacks = StackColumns(samples)
    least = max(FEWEST_SAMPLES, LEAST_SAMPLED_SHARE * len(samples))
    found = [cost for cost in costs(stacks) if len(cost.samples) >= least][:MOST_FUNCTIONS]
    prices = None if case is None else _Prices(case, samples, now_ns)
    why = "the steps could not be replayed" if case is None else ""
    functions = [_function(cost, stacks, prices if i < MOST_PRICED else None, why) for i, cost in enumerate(found)]
    now = 0.0 if prices is None else prices.now_ns

    def order(of: tuple[SampledCost, HostFunction]) -> tuple[bool, bool, float, float]:
        cost, one = of
        gain = now - one.step_ns.expected if one.step_ns is not None else 0.0
        around = not cost.in_passes and gain >= OUTSIDE_FIRST_GAIN * now
        return one.runs is not None, not around, -gain, -one.ns.expected

    return Host(
        samples=len(samples),
        steps=samples.steps,
        step_ns=round(samples.step_ns),
        unread=samples.unread,
        functions=tuple(one for _, one in sorted(zip(found, functions, strict=True), key=order)),
        workers=loader_workers(samples, stacks),
    )


@dataclass(frozen=True, slots=True)
class SampledStacks:
    """Data of the icicle chart of unprofiled steps."""

    stacks: StackColumns
    waits: F64 | None
    """Per sample the share of the time around it in which the GPU waits for the CPU; None if unknown."""


def sampled_stacks(run: str, rank: int, case: Analysis | None) -> SampledStacks | None:
    """The stacks of a run's unprofiled steps; None where there are none."""
    samples = read_samples(Path(run), rank)
    if samples is None:
        return None
    return SampledStacks(
        StackColumns(samples), None if case is None else _Prices(case, samples, None).waits_of_samples()
    )


def explain_line(
    run: str, rank: int, case: Analysis | None, now_ns: float | None, file: str, line: int
) -> HostFunction | None:
    """The cost of a line of a file; if no sample is at that line, that of the last function that begins before it.
    None if that has no samples either, if the line is after every known line of the file, or if the run has no
    samples. file: its path as in the samples, or the end of that path."""
    samples = read_samples(Path(run), rank)
    if samples is None:
        return None
    stacks = StackColumns(samples)
    cost = cost_at(stacks, stacks.of_sample, file, line)
    if cost is None:
        return None
    prices = None if case is None else _Prices(case, samples, now_ns)
    return _function(cost, stacks, prices, "the steps could not be replayed" if case is None else "")


def explain_worker_line(run: str, rank: int, file: str, line: int) -> WorkerFunction | None:
    """The share of the loader's workers' time that a line takes; otherwise like `explain_line`."""
    samples = read_samples(Path(run), rank)
    if samples is None:
        return None
    stacks = StackColumns(samples)
    cost = cost_at(stacks, stacks.of_worker_sample, file, line)
    if cost is None:
        return None
    return worker_function(samples.functions[cost.function], cost.line, len(cost.samples), len(samples.worker_node))


def _function(cost: SampledCost, stacks: StackColumns, prices: _Prices | None, why: str) -> HostFunction:
    samples = stacks.samples
    function = samples.functions[cost.function]
    ns = _time(cost, samples)
    step, waits, phase = None, None, None
    if prices is not None:
        step, why = prices.without(cost, ns)
        waits, phase = prices.gpu_waits(cost), prices.phase(cost)
    elif not why:
        why = "it is too small to be replayed"
    return HostFunction(
        function=function.name,
        file=function.file,
        line=cost.line,
        kind=function.kind,
        called_from=cost.called_from,
        phase=phase,
        ns=Range(*(round(value) for value in (ns.low, ns.expected, ns.high))),
        self_ns=round(ns.expected * cost.own / len(cost.samples)),
        samples=len(cost.samples),
        gpu_waits=waits,
        step_ns=step,
        why_unknown=why or None,
        runs=cost.runs,
    )


def _time(cost: SampledCost, samples: HostSamples) -> Range:
    """Time per step with its 80 % interval, from the number of samples (binomial) and the scatter between steps."""
    n, k, steps = len(samples), len(cost.samples), samples.steps
    share = k / n
    chance = math.sqrt(max(share * (1 - share), 1 / n) / n) * samples.step_ns
    step = np.searchsorted(samples.steps_ns, samples.at_ns[cost.samples], side="right") - 1
    each = np.bincount(step.clip(0, steps - 1), minlength=steps) / n * samples.step_ns * steps
    spread = float(np.std(each, ddof=1)) / math.sqrt(steps) if steps > 2 else 0.0
    half = max(Z80 * chance, t80(max(steps - 1, 1)) * spread)
    value = share * samples.step_ns
    return Range(max(value - half, 0.0), value, value + half)


class _Prices:
    """Replays of the steps without a function."""

    def __init__(self, case: Analysis, samples: HostSamples, now_ns: float | None) -> None:
        self._case, self._samples = case, samples
        self._places: Places | None = places(case, samples)
        self.now_ns = now_ns or case.mean_ns
        graph, schedule = case.graph, case.schedule
        self._work = np.flatnonzero(host_work(graph))
        if self._places is not None:
            self._start = schedule.end_ns[self._work] - graph.duration_ns[self._work]
            self._end = schedule.end_ns[self._work]
            moments = self._places.edges
            self._waited = gpu_waits_until(graph, schedule.start_ns, schedule.end_ns, launcher_of(graph), moments)

    def phase(self, cost: SampledCost) -> str | None:
        """The part of the step that contains most of a function's samples."""
        if self._places is None:
            return None
        bins = self._places.bin_of[cost.samples]
        parts, counts = np.unique([_PHASES[self._places.part[i]] for i in bins[bins >= 0].tolist()], return_counts=True)
        return str(parts[counts.argmax()]) if len(parts) else None

    def gpu_waits(self, cost: SampledCost) -> float | None:
        """Share of a function's time in which the GPU waits for the CPU."""
        waits = self.waits_of_samples()
        if waits is None:
            return None
        known = waits[cost.samples]
        known = known[np.isfinite(known)]
        return float(known.mean()) if len(known) else None

    def waits_of_samples(self) -> F64 | None:
        """Per sample the share of its bin in which the GPU waits for the CPU; NaN for a sample outside all bins."""
        found = self._places
        if found is None:
            return None
        idle = np.bincount(found.bin_at, np.diff(self._waited), len(found.count))
        whole = np.bincount(found.bin_at, np.diff(found.edges), len(found.count))
        share = np.divide(idle, whole, out=np.full(len(whole), np.nan), where=whole > 0).clip(0, 1)
        return np.append(share, np.nan)[found.bin_of]

    def without(self, cost: SampledCost, ns: Range) -> tuple[Range | None, str]:
        """The mean step if a function took no time, or why that is unknown."""
        found = self._places
        if cost.waits_for_workers >= MOSTLY_WAITS:
            return None, "it waits for the workers of the DataLoader"
        if found is None:
            return None, "the sampled steps have other parts than the recorded ones"
        placed = found.bin_of[cost.samples] >= 0
        if placed.mean() < LEAST_PLACED:
            return None, "it runs in steps that are unlike the recorded ones"
        case, graph = self._case, self._case.graph
        shares = found.shares(cost.samples)
        scale = case.step_ns / self._samples.step_ns
        lies = found.until(shares, found.edges[-1:])[0] / graph.steps
        wanted = ns.expected * scale * placed.mean()
        if lies < LEAST_PLACED * wanted * ns.low / max(ns.expected, 1.0):
            return None, "the recorded steps have too little CPU time at its place"
        shares = shares * min(wanted / lies, 1.0) if lies > 0 else shares
        removed = found.until(shares, self._end) - found.until(shares, self._start)
        factor = np.ones(len(graph))
        duration = graph.duration_ns[self._work]
        factor[self._work] = 1 - np.clip(removed / np.maximum(duration, 1.0), 0, 1)
        changed = scaled(graph, factor < 1, factor)
        after = case.mean.of_step(case.mean.with_faster_cpu(graph, changed))
        gain = max(1 - after / case.mean_ns, 0.0) * self.now_ns if case.mean_ns > 0 else 0.0
        spread = math.hypot((ns.high - ns.low) / 2 / max(ns.expected, 1.0), calibrated.PLACED.value)
        low, high = gain * (1 + spread), gain * max(1 - spread, 0.0)
        step = Range(*(round(max(self.now_ns - one, 1.0)) for one in (low, gain, high)))
        return step, ""
