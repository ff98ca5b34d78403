"""The mean iteration by phase, from the steps timed without a profiler."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate

from gpuprof.diagnosis.iterations.percentile import usual_range
from gpuprof.diagnosis.mean_step.iteration_steps import phased_steps, steps_of_iteration
from gpuprof.diagnosis.result.iteration_model import GenerationBudget, Iteration, PhaseBudget, RewardTime
from gpuprof.record.phases.phase_names import BACKWARD, FORWARD, GENERATION, OPTIMIZER, TIMED
from gpuprof.tracefile.run_folder.phased_steps import Generated, PhasedStep
from gpuprof.tracefile.run_folder.run import RunFolder

STAGES = (("baseline_free",), ("baseline_free", "baseline_sync", "sampling", "settle"))
"""Stages whose steps ran without a profiler; the second set is used if the first has no whole iteration."""


def iteration_budget(folder: RunFolder) -> Iteration | None:
    """The mean iteration of a run; None if its training does not generate what it trains on."""
    steps = phased_steps(folder)
    every = steps_of_iteration(steps)
    if every is None:
        return None
    found: list[list[PhasedStep]] = []
    for stages in STAGES:
        found = whole_iterations([one for one in steps if one.stage in stages and one.step > every], every)
        if found:
            break
    if not found:
        return None
    count = len(found)
    total = sum(one.ns for iteration in found for one in iteration)
    times = {name: [sum(one.phases.get(name, 0) for one in iteration) for iteration in found] for name in TIMED}
    mean_ns = round(total / count)
    phases = _phases({name: each for name, each in times.items() if any(each)}, mean_ns)
    return Iteration(
        steps=every,
        count=count,
        mean_ns=mean_ns,
        phases=phases,
        training_ns=sum(one.ns for one in phases if one.phase in (FORWARD, BACKWARD, OPTIMIZER)),
        rewards=_rewards(found),
        generation=_generation(found),
        recorded=(),
        unrecorded=None,
        changes=(),
        log_probability_passes=_passes(found),
    )


def _passes(iterations: list[list[PhasedStep]]) -> float | None:
    each = [sum(one.passes for one in iteration) for iteration in iterations]
    return statistics.fmean(each) if any(each) else None


def whole_iterations(steps: Sequence[PhasedStep], every: int) -> list[list[PhasedStep]]:
    """Groups of `every` consecutive steps; each contains one generation, at any place."""
    groups: list[list[PhasedStep]] = []
    begun: list[PhasedStep] = []
    for one in steps:
        if begun and one.step != begun[-1].step + 1:
            begun = []
        begun.append(one)
        if len(begun) == every:
            groups.append(begun)
            begun = []
    return groups


def _phases(times: dict[str, list[int]], mean_ns: int) -> tuple[PhaseBudget, ...]:
    """The phases; they sum to the mean exactly, because the running sum is rounded."""
    count = len(next(iter(times.values())))
    until = [0, *(round(ns / count) for ns in accumulate(sum(each) for each in times.values()))]
    until[-1] = mean_ns
    return tuple(
        PhaseBudget(name, until[i + 1] - until[i], *usual_range(each)) for i, (name, each) in enumerate(times.items())
    )


def _rewards(iterations: list[list[PhasedStep]]) -> tuple[RewardTime, ...]:
    steps = [one for iteration in iterations for one in iteration]
    names = dict.fromkeys(name for one in steps for name in one.rewards)
    found = [
        RewardTime(
            name,
            round(sum(one.rewards.get(name, 0) for one in steps) / len(iterations)),
            round(sum(one.rewards_cpu.get(name, 0) for one in steps) / len(iterations))
            if any(name in one.rewards_cpu for one in steps)
            else None,
        )
        for name in names
    ]
    return tuple(sorted(found, key=lambda one: -one.ns))


def _generation(iterations: list[list[PhasedStep]]) -> GenerationBudget | None:
    all_ = [one.generated for iteration in iterations for one in iteration if one.generated is not None]
    if not all_:
        return None
    count, ns = len(iterations), sum(one.phases.get(GENERATION, 0) for each in iterations for one in each)

    def total(of: Callable[[Generated], int | None]) -> int:
        return sum(of(one) or 0 for one in all_)

    decoding = total(lambda one: max(one.forwards - one.calls, 0))
    decode_ns = total(lambda one: one.decode_ns)
    tokens = total(lambda one: one.tokens) if all(one.tokens is not None for one in all_) else None
    slots = total(lambda one: one.slots)
    return GenerationBudget(
        prefill_ns=round(total(lambda one: one.prefill_ns) / count),
        decode_ns=round(decode_ns / count),
        forwards=total(lambda one: one.forwards) / count,
        sequences=total(lambda one: one.sequences) / count,
        token_ns=round(decode_ns / decoding) if decoding else None,
        tokens=None if tokens is None else tokens / count,
        tokens_per_s=tokens / (ns / 1e9) if tokens and ns else None,
        ended_share=max(1 - tokens / slots, 0.0) if tokens is not None and slots else None,
        longest=_mean(one.longest for one in all_),
        p95=_mean(one.p95 for one in all_),
    )


def _mean(values: Iterable[int | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None
