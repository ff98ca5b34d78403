"""The critical path of a step across ranks: what would have to be shorter for the step to be shorter.

Followed backwards from the end of the usual step: from a collective to the rank that arrived last, and from a rank's
arrival to the predecessor that determined it. The parts have no gaps and sum to the step, except for a few µs at its
beginning.
"""

from __future__ import annotations

import numpy as np

from gpuprof.ranks.digest_data import WORK, previous
from gpuprof.ranks.job import JobRows
from gpuprof.ranks.joint import Played
from gpuprof.ranks.summary import OnPath
from gpuprof.units import Convention, Parts, Share

COMMUNICATION = "communication"
MOST_PARTS: Convention[Parts] = 400
"""Most parts that are kept; further short parts are merged into the part before them."""
LEAST_KIND_SHARE: Convention[Share] = 0.05
"""Kinds of work with a smaller share of a stretch are not shown separately."""


def critical_path(job: JobRows, played: Played) -> tuple[OnPath, ...]:
    """The parts of the usual step in order of time; empty without rows. `played`: the job replayed without the
    profiler's cost."""
    if not len(job) or not len(played.each_ns):
        return ()
    step = int(np.argmin(np.abs(played.each_ns - played.step_ns)))
    rows = np.flatnonzero(job.step <= step)
    if not len(rows):
        return ()
    row = int(rows[np.argmax(played.end_ns[rows])])
    low = float(played.end_ns[row] - played.each_ns[step])
    parts: list[tuple[int, str, float, float]] = []
    own, lag = job.unprofiled.own_ns, job.unprofiled.lag_ns
    while row >= 0 and played.end_ns[row] > low:
        begin, stop = int(job.first[job.instance[row]]), int(job.first[job.instance[row] + 1])
        last = begin + int(np.argmax(played.arrival_ns[begin:stop] + own[begin:stop]))
        rank, came = int(job.rank[last]), float(played.arrival_ns[last])
        parts.append((rank, COMMUNICATION, came + float(own[last]), float(played.end_ns[row])))
        parts.append((rank, WORK[job.own_work[last]], came, came + float(own[last])))
        row, since = _came_from(job, played, last, lag[last])
        parts += _split(rank, job.shares[last, _label(job, last, row)], max(since, low), came)
    return _kept(job, parts, low)


def _came_from(job: JobRows, played: Played, row: int, lag: np.ndarray) -> tuple[int, float]:
    """(row that an arrival depended on, -1 if in the previous round; when that row ended)."""
    pred = job.pred[row]
    here = np.flatnonzero(pred >= 0)
    came = float(played.arrival_ns[row])
    if len(here):
        at = played.end_ns[pred[here]] + lag[here]
        best = int(np.argmax(at))
        if at[best] >= came - 1 or not np.any(pred <= previous(0)):
            return int(pred[here[best]]), float(played.end_ns[pred[here[best]]])
    before = np.flatnonzero(pred <= previous(0))
    return -1, came - (float(lag[before].max()) if len(before) else came)


def _label(job: JobRows, row: int, source: int) -> int:
    """Which path into a row begins at `source`; for -1 the longest from the previous round."""
    pred = job.pred[row]
    if source >= 0:
        return int(np.argmax(pred == source))
    return int(np.argmax(np.where(pred <= previous(0), job.unprofiled.lag_ns[row], -1.0)))


def _split(rank: int, shares: np.ndarray, begin: float, end: float) -> list[tuple[int, str, float, float]]:
    """A stretch split by kinds of work, last first. Their real order is not known."""
    part = shares / max(float(shares.sum()), 1.0)
    part = np.where(part >= LEAST_KIND_SHARE, part, 0.0)
    if not part.any():
        part[-1] = 1.0
    bounds = begin + (end - begin) * np.concatenate([[0.0], np.cumsum(part / part.sum())])
    found = [(rank, WORK[k], float(bounds[k]), float(bounds[k + 1])) for k in range(len(WORK)) if part[k]]
    return found[::-1]


def _kept(job: JobRows, parts: list[tuple[int, str, float, float]], low: float) -> tuple[OnPath, ...]:
    """In order of time from the step's beginning; adjacent parts of one kind are merged."""
    joined: list[list] = []
    for rank, work, begin, end in reversed(parts):
        ns = end - max(begin, low)
        if ns <= 0:
            continue
        if joined and joined[-1][:2] == [rank, work]:
            joined[-1][2] += ns
        else:
            joined.append([rank, work, ns])
    least = sorted(one[2] for one in joined)[-MOST_PARTS] if len(joined) > MOST_PARTS else 0.0
    found, at = [], 0.0
    for rank, work, ns in joined:
        if found and ns < least:
            found[-1][3] += ns
        else:
            found.append([rank, work, at, ns])
        at += ns
    return tuple(
        OnPath(job.digests[rank].rank or 0, work, round(begin), round(begin + ns) - round(begin))
        for rank, work, begin, ns in found
    )
