"""The joint replay: each rank arrives at a collective in its own time; it ends for all once the last has arrived."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numba
import numpy as np

from gpuprof.calibration import collectives as calibrated
from gpuprof.ranks.digest_data import WORK, Floats, Ints, Ways
from gpuprof.ranks.job import JobRows, Times
from gpuprof.units import Assumed, Rounds

ROUNDS: Assumed[Rounds] = 3
"""Rounds of the window before a step is measured, as for one rank."""


@dataclass(frozen=True, slots=True)
class Played:
    """Times of all rows in the last round, ns."""

    arrival_ns: Floats
    """[rows] When the rank arrived."""
    end_ns: Floats
    """[rows]"""
    each_ns: Floats
    """[steps] Duration from the end of the previous step, or for samples from their own beginning."""
    looped: bool

    @property
    def step_ns(self) -> float:
        """The usual step: the median of consecutive steps; the mean of samples, or if no step is usual."""
        if not len(self.each_ns):
            return 0.0
        middle = float(np.median(self.each_ns))
        return middle if self.looped and middle > 0 else float(np.mean(self.each_ns))


@dataclass(frozen=True, slots=True)
class AsItIs:
    """The unchanged job, replayed."""

    error: float
    """Error of the replay against the recording, as a share of the mean step."""
    played: Played
    """Without the profiler."""
    paces_ns: Floats
    """[ranks, steps] The step that each rank would take if no other were ever late."""
    work_ns: Floats
    """[ranks, steps, WORK] Work on each rank's own path through a step, without waits and transfers."""


def as_it_is(job: JobRows) -> AsItIs:
    """Replays the job as it was recorded, without the profiler, and each rank by itself."""
    return AsItIs(_replay_error(job), replay(job), _paces(job), _work_of_ranks(job))


def replay(job: JobRows, times: Times | None = None, *, recorded: bool = False) -> Played:
    """Replays the job with these times, without the profiler's cost unless `recorded`."""
    if times is None:
        times = job.recorded if recorded else job.unprofiled
    pred = job.recorded_pred if recorded else job.pred
    rounds = 1 if recorded else _rounds(job)
    arrival, end, finish = np.empty(len(job)), np.empty(len(job)), np.empty((rounds, job.steps))
    lag = times.lag_ns.astype(np.float32, copy=False)  # avoids a second compiled version, and halves the memory
    _replay(job.first, pred, lag, times.own_ns, times.transfer_ns, job.anchor_ns, job.step, False, arrival, end, finish)
    if not job.looped:
        each = finish[-1] - job.step_begin_ns
    else:
        before = finish[-2, -1] if rounds > 1 else float(job.step_begin_ns[0])
        each = np.diff(finish[-1], prepend=before)
    return Played(arrival, end, each, job.looped)


def _paces(job: JobRows) -> Floats:
    """See `AsItIs.paces_ns`."""
    times = job.unprofiled
    rounds = _rounds(job)
    arrival, end = np.empty(len(job)), np.empty(len(job))
    finish = np.empty((rounds, job.steps))
    by_rank = np.full((rounds, job.ranks, job.steps), -np.inf)
    for r in range(rounds):
        _replay(
            job.first, job.pred, times.lag_ns, times.own_ns, times.transfer_ns - job.waited_ns, job.anchor_ns,
            job.step, True, arrival, end, finish[: 1], r > 0,
        )  # fmt: skip
        np.maximum.at(by_rank[r], (job.rank, job.step), end)
    last = np.maximum.accumulate(by_rank[-1], axis=1)
    if not job.looped:
        return last - job.step_begin_ns
    return np.diff(last, axis=1, prepend=by_rank[-2].max(axis=1, keepdims=True))


def _rounds(job: JobRows) -> int:
    """How often the window is replayed."""
    return max(ROUNDS, math.ceil(calibrated.SETTLING_STEPS.whole / job.steps)) if job.looped else 1


def replay_rows(ways: Ways, anchor_ns: Floats, took_ns: Floats, step: Ints, steps: int) -> tuple[Floats, Floats]:
    """(arrival, end) of one rank's rows in the recorded round, each lasting `took_ns` and its own time."""
    n = len(anchor_ns)
    arrival, end = np.empty(n), np.empty(n)
    _replay(
        np.arange(n + 1), ways.pred, ways.lag_ns,
        ways.own_ns.astype(np.float64), took_ns.astype(np.float64), anchor_ns, step.astype(np.int32), True, arrival,
        end, np.empty((1, steps)),
    )  # fmt: skip
    return arrival, end


def _replay_error(job: JobRows) -> float:
    """Error of the replay against the recording, as a share of the mean step: root mean square over steps, each from
    its own beginning."""
    end = replay(job, recorded=True).end_ns
    found, recorded = (np.full(job.steps, -np.inf) for _ in range(2))
    np.maximum.at(found, job.step, end)
    np.maximum.at(recorded, job.step, job.recorded_end_ns)
    if job.looped:
        found, recorded = (np.diff(one, prepend=float(job.step_begin_ns[0])) for one in (found, recorded))
        return float(abs(found.sum() - recorded.sum()) / max(abs(recorded.sum()), 1.0))
    found, recorded = found - job.step_begin_ns, recorded - job.step_begin_ns
    return float(abs(found.sum() - recorded.sum()) / max(recorded.sum(), 1.0))


def _work_of_ranks(job: JobRows) -> Floats:
    """See `AsItIs.work_ns`."""
    times = job.unprofiled
    arrival, end = np.empty(len(job)), np.empty(len(job))
    _replay(
        job.first, job.pred, times.lag_ns, times.own_ns, times.transfer_ns - job.waited_ns, job.anchor_ns, job.step,
        True, arrival, end, np.empty((1, job.steps)),
    )  # fmt: skip
    last = np.full((job.ranks, job.steps), -1, np.int64)
    order = np.argsort(end, kind="stable")
    last[job.rank[order], job.step[order]] = order
    found = np.zeros((job.ranks, job.steps, len(WORK)))
    _walk(last, job.pred, times.lag_ns, job.shares, times.own_ns, job.own_work, job.step, end, found)
    return found


@numba.njit(cache=True)
def _replay(  # pragma: no cover - compiled
    first, pred, lag, own, transfer, anchor, step, alone, arrival, end, finish, again=False
):
    rounds, labels = finish.shape[0], pred.shape[1]
    before = end.copy()
    for r in range(rounds):
        later = again or r > 0
        if r > 0:
            before[:] = end
        finish[r, :] = -np.inf
        for i in range(len(first) - 1):
            latest = -np.inf
            for row in range(first[i], first[i + 1]):
                at = -np.inf if later else anchor[row]
                for k in range(labels):
                    p = pred[row, k]
                    if p >= 0:
                        at = max(at, end[p] + lag[row, k])
                    elif p < -1 and later:
                        at = max(at, before[-2 - p] + lag[row, k])
                if at == -np.inf:
                    at = anchor[row] if anchor[row] > -np.inf else 0.0
                arrival[row] = at
                end[row] = at + own[row] + transfer[i]
                latest = max(latest, at + own[row])
            for row in range(first[i], first[i + 1]):
                if not alone:
                    end[row] = latest + transfer[i]
                finish[r, step[row]] = max(finish[r, step[row]], end[row])
        for s in range(1, finish.shape[1]):
            finish[r, s] = max(finish[r, s], finish[r, s - 1])


@numba.njit(cache=True)
def _walk(last, pred, lag, shares, own, own_work, step, end, found):  # pragma: no cover - compiled
    for rank in range(last.shape[0]):
        for s in range(last.shape[1]):
            row = last[rank, s]
            while row >= 0 and step[row] == s:
                found[rank, s, own_work[row]] += own[row]
                latest, best = -np.inf, -1
                for k in range(pred.shape[1]):
                    p = pred[row, k]
                    if p >= 0:
                        at = end[p] + lag[row, k]
                    elif p < -1:
                        at = -1e300 + lag[row, k]
                    else:
                        continue
                    if at > latest:
                        latest, best = at, k
                if best < 0:
                    break
                for q in range(found.shape[2]):
                    found[rank, s, q] += lag[row, best] * shares[row, best, q] / 255.0
                row = pred[row, best]
