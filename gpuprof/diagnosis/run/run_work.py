"""The work of a run's steps: samples and tokens, with and without padding and labels, per step and per second."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from gpuprof.diagnosis.mean_step.baseline import OUTLIER
from gpuprof.diagnosis.result.run_model import StepWork, Throughput
from gpuprof.tracefile.run_folder.run import Rank, StepColumns
from gpuprof.tracefile.trace import ABSENT, F64, I64, Mask

WORK = ("tokens", "real_tokens", "samples")
"""Measures of a step's work, best first: padding is computed like any token, and samples can be short or long. If none
is known, the number of backward passes is used."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Steps of a stage that ran without a profiler: their rows and how long each took."""

    rows: I64
    ns: F64
    profiled: int
    """Steps left out because a profiler was active."""


def known_values(values: I64) -> F64:
    """Amounts as floats; unknown or zero is NaN."""
    return np.where(values > 0, values, np.nan).astype(np.float64)


def of_usual_length(timed: Timed) -> Mask:
    """Which steps have the usual length, without an evaluation or checkpoint."""
    if not np.isfinite(timed.ns).any():
        return np.zeros(len(timed.ns), bool)
    return np.isfinite(timed.ns) & (np.nan_to_num(timed.ns, nan=np.inf) <= OUTLIER * np.nanmedian(timed.ns))


def with_samples(steps: StepColumns, rank: Rank) -> StepColumns:
    """The steps with their numbers of samples, from the trainer's micro-batches or else from the sampler or loader.

    Older recordings count rows of the first tensor passed to the model. Rows are samples if they match the loader's
    batch size: the same number, a multiple (the two texts of a preference pair, the columns of a contrastive loss), or
    one for a packed batch. Otherwise samples are unknown.
    """
    loader = rank.loader or {}
    declared = (rank.program.settings if rank.program else {}).get("per_device_train_batch_size")
    known = steps.samples > 0
    if declared is None and loader.get("counts_samples"):
        return steps
    size = declared if declared is not None else loader.get("batch_size")
    if not isinstance(size, int) or isinstance(size, bool) or size < 1 or not known.any():
        return replace(steps, samples=np.full_like(steps.samples, ABSENT))
    passes = np.maximum(steps.micro_steps[known], 1)
    usual = float(np.median(steps.samples[known] / passes))
    samples = steps.samples.copy()
    if declared is not None or usual == 1 or usual % size == 0:
        samples[known] = np.rint(samples[known] * (size / usual)).astype(np.int64)
    elif size % usual or (np.median(passes) * usual) % size:
        samples[known] = ABSENT
    return replace(steps, samples=samples)


def throughput_of(steps: StepColumns, timed: Timed, ranks: int, mean_ns: int | None) -> Throughput:
    """Work per second: work of a timed step / the mean step, or / the steps' own times if the mean is unknown."""
    usual = of_usual_length(timed)

    def rate(name: str) -> float | None:
        work = known_values(getattr(steps, name)[timed.rows])
        both = usual & np.isfinite(work)
        if not both.any():
            return None
        step_ns = mean_ns or float(timed.ns[both].mean())
        return float(work[both].mean()) / step_ns * 1e9 * ranks

    padded, real = rate("tokens"), rate("real_tokens")
    return Throughput(padded if real is None else real, padded, rate("samples"))


def work_of(steps: StepColumns, rows: I64) -> StepWork:
    def mean(name: str) -> float | None:
        known = known_values(getattr(steps, name)[rows])
        return float(np.nanmean(known)) if np.isfinite(known).any() else None

    return StepWork(mean("samples"), mean("tokens"), mean("real_tokens"), mean("micro_steps"), *_shares_of_work(steps))


def _shares_of_work(steps: StepColumns) -> tuple[float | None, float | None, float | None]:
    """Shares over all ranks' steps: non-padding tokens among tokens, pairs that attention has to compare among pairs of
    tokens in a row, and labelled tokens among tokens; None if no step has both numbers."""

    def share(part: I64, whole: I64) -> float | None:
        some, every = known_values(part), known_values(whole)
        both = np.isfinite(some) & np.isfinite(every)
        return float(some[both].sum() / every[both].sum()) if both.any() else None

    return (
        share(steps.real_tokens, steps.tokens),
        share(steps.useful_pairs, steps.pairs),
        share(steps.labelled_tokens, steps.tokens),
    )
