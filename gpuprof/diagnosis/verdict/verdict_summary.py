"""A verdict's summary: the share of the step in which the device works, and what it waits for."""

from __future__ import annotations

from collections.abc import Mapping

from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.recorded.shares import Shares
from gpuprof.diagnosis.result.diagnosis import Kernels
from gpuprof.diagnosis.sentences import Sentences, duration, share
from gpuprof.diagnosis.verdict.rest_of_step import rest_of_step
from gpuprof.replay.bound import LEAST_SENSITIVITY
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.units import Assumed, Share

LEAST_MENTIONED: Assumed[Share] = 0.05
"""Parts of a step of a smaller share are not mentioned, and a GPU that idles for less is busy."""


def summary(
    shares: Shares,
    kernels: Kernels,
    limits: Mapping[str, float] | None = None,
    turns: int = 0,
    compiling_ns: float = 0,
    alone: bool = False,
    stepless: bool = False,
    budget: Budget | None = None,
    unit: Unit = STEP,
) -> Sentences:
    """Two or three sentences: the share of the step in which the device works, and what it waits for.

    `stepless`: no steps were found, so the sentences are about the whole recording. `budget`: of the mean step, if a
    run timed its steps. The step time is not mentioned, since the headline gives it."""
    of, each = ("of the recording", "") if stepless else (_which_step(budget, unit), f" {unit.a}")
    return _summary(shares, kernels, limits, turns, compiling_ns, alone, of, each, _part_of_mean(budget))


def _which_step(budget: Budget | None, unit: Unit) -> str:
    """The step that the sentence is about: the mean one, or the usual one if that differs."""
    return f"of the usual {unit}" if budget is not None and budget.has_usual_step else f"of the {unit}"


def _part_of_mean(budget: Budget | None) -> float:
    """The usual step's share of the mean step, if only the mean step is shown; as in the step bar."""
    if budget is None or budget.source != "free" or budget.has_usual_step or budget.mean_ns <= 0:
        return 1.0
    return budget.usual_in_mean_ns / budget.mean_ns


def _summary(
    shares: Shares,
    kernels: Kernels,
    limits: Mapping[str, float] | None,
    turns: int,
    compiling_ns: float,
    alone: bool,
    of: str,
    each: str,
    part: float = 1.0,
) -> Sentences:
    """The sentences about one step.

    `limits`: compute | memory | latency → its share of the kernels' time, if known. `turns`: number of the process's
    GPUs that work one after the other. `compiling_ns`: CPU time of a step spent compiling. `alone`: one GPU and one
    rank, so others are not mentioned. `of`: which step, `of the usual step`. `each`: ` a step`, after counts. `part`:
    share of the step in `of` that `shares` covers.
    """
    step = shares.step_ns
    text = f"The {'busiest ' if turns else ''}GPU works {share(part * shares.busy_ns, step)} {of}"
    if shares.communication_ns > LEAST_MENTIONED * step:
        text += f", {duration(shares.communication_ns)} of it in communication that nothing overlaps"
    if shares.copy_ns > LEAST_MENTIONED * step:
        text += f", {duration(shares.copy_ns)} of it in copies that nothing overlaps"
    works = f"{text}."
    idle = sum(shares.idle_ns.values())
    if idle <= LEAST_MENTIONED * step:
        limited = _limited(shares, limits or {})
        waits_for_ranks = not alone and shares.communication_ns >= LEAST_SENSITIVITY * step
        if not waits_for_ranks and shares.copy_ns > shares.compute_ns:
            return (works, *limited, "It spends more time on copies than on computation.")
        why = (
            "Its communication includes waiting for other ranks."
            if waits_for_ranks
            else "The CPU (host) keeps it busy."
        )
        return (works, *limited, why)
    if turns:
        return (works, f"The {turns} GPUs take turns: while one works, the others wait for what it computes.")
    return (works, rest_of_step(shares.idle_ns, kernels, compiling_ns, alone, each))


_LIMITS = {"compute": "arithmetic", "memory": "memory traffic", "latency": "kernel launch latency"}


def _limited(shares: Shares, limits: Mapping[str, float]) -> Sentences:
    """`Memory traffic limits 370 ms of its computation, arithmetic 238 ms.`: what limits a GPU that is always busy."""
    times = sorted(((of * shares.compute_ns, key) for key, of in limits.items()), reverse=True)
    worth_saying = [(ns, _LIMITS[key]) for ns, key in times if ns > LEAST_MENTIONED * shares.step_ns]
    if not worth_saying:
        return ()
    (most, first), *others = worth_saying
    rest = "".join(f", {name} {duration(ns)}" for ns, name in others)
    return (f"{first.capitalize()} limits {duration(most)} of its computation{rest}.",)
