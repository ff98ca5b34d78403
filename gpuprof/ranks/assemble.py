"""Joins the digests of all ranks into one job: its rows in replay order, and which rows belong to one collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.ranks.digest_data import LABELS, NO_ROW, WORK, Digest, Floats, Ints, Ways, previous, without_rows
from gpuprof.ranks.job import JobRows, Times
from gpuprof.ranks.order import in_order
from gpuprof.timeline.collectives.collectives import Collectives
from gpuprof.timeline.collectives.matching import Matched
from gpuprof.tracefile.trace import ABSENT, U8, Mask
from gpuprof.units import Assumed, Ratio

MOST_PACE_SPREAD: Assumed[Ratio] = 1.2
"""A CPU pace that differs from the job's median by more than this factor is a wrong measurement, not a slower CPU."""


def assemble(digests: Sequence[Digest], matched: Matched, found: Sequence[Collectives]) -> JobRows:
    """`matched`: the result of `match` for `found`, the digests' collectives on comparable clocks.
    The job keeps the digests without their rows, so that these can be freed.
    """
    shift, low, high = _common_steps(digests, matched, found)
    kept = [_kept(one, int(s), low, high) for one, s in zip(digests, shift, strict=True)]
    rows = _filled(digests, kept, shift, low, high)
    clocks = _clocks(digests, matched.offset_ns, shift, low)
    known = _instances(digests, kept, matched, found)
    instance, order, first, dropped = in_order(known.instance, np.concatenate([rows.pred, rows.recorded_pred], axis=1))
    rows = _ordered(rows, order)
    transfer, waited, complete = _transfers(rows, known, order, first)
    zero = np.array([clock.zero_ns for clock in clocks])[rows.rank]
    recorded = Times(rows.recorded_lag, rows.recorded_own, transfer)
    begin = np.array([clock.begin_ns for clock in clocks])
    return JobRows(
        digests=tuple(without_rows(one) for one in digests), rank=rows.rank, source_row=rows.source_row,
        step=rows.step, first=first, instance=instance[order], pred=rows.pred, shares=rows.shares,
        own_work=rows.own_work, anchor_ns=rows.anchor_ns + zero, recorded_end_ns=rows.end_ns + zero,
        shared=rows.group >= 0, group=rows.group, groups=rows.groups, kind=rows.kind, bytes=rows.bytes,
        size=rows.size, complete=complete, waited_ns=waited, steps=high - low,
        step_begin_ns=np.min(begin, axis=0) if len(begin) else np.empty(0), looped=all(one.looped for one in digests),
        recorded=recorded, unprofiled=replace(recorded, lag_ns=rows.lag, own_ns=rows.own),
        recorded_pred=rows.recorded_pred, dropped=dropped,
    )  # fmt: skip


# -- rows


@dataclass(frozen=True, slots=True)
class _Rows:
    """The columns of the job, rank by rank or in replay order. Predecessors are rows of the job."""

    rank: Ints
    source_row: Ints
    step: Ints
    pred: Ints
    lag: Floats
    shares: U8
    own: Floats
    own_work: U8
    recorded_pred: Ints
    recorded_lag: Floats
    recorded_own: Floats
    anchor_ns: Floats
    """From the beginning of the rank's window; likewise the end."""
    end_ns: Floats
    took_ns: Floats
    group: Ints
    kind: Ints
    bytes: Ints
    size: Ints
    groups: tuple[str, ...]


_MATRICES = ("pred", "recorded_pred")


def _kept(one: Digest, shift: int, low: int, high: int) -> Ints:
    """A digest's rows within the common steps."""
    step = np.where(one.rows.step >= 0, one.rows.step + shift, -1)
    return np.flatnonzero((step >= low) & (step < high)).astype(np.int32)


def _filled(digests: Sequence[Digest], kept: Sequence[Ints], shift: Ints, low: int, high: int) -> _Rows:
    """All columns, filled in place rank by rank: at 1,024 ranks a copy takes half a gigabyte."""
    bounds = np.concatenate([[0], np.cumsum([len(rows) for rows in kept])])
    n = int(bounds[-1])
    texts: dict[str, int] = {}
    columns = _Rows(
        rank=np.repeat(np.arange(len(digests), dtype=np.int32), np.diff(bounds)),
        source_row=np.concatenate(kept), step=np.empty(n, np.int32), pred=np.empty((n, LABELS), np.int32),
        lag=np.empty((n, LABELS), np.float32), shares=np.empty((n, LABELS, len(WORK)), np.uint8), own=np.empty(n),
        own_work=np.empty(n, np.uint8), recorded_pred=np.empty((n, LABELS), np.int32),
        recorded_lag=np.empty((n, LABELS), np.float32), recorded_own=np.empty(n), anchor_ns=np.empty(n),
        end_ns=np.empty(n), took_ns=np.empty(n), group=np.empty(n, np.int32), kind=np.empty(n, np.int32),
        bytes=np.empty(n, np.int64), size=np.empty(n, np.int64), groups=(),
    )  # fmt: skip
    over = _pace_differences(digests)
    for r, (one, mine) in enumerate(zip(digests, kept, strict=True)):
        at = slice(int(bounds[r]), int(bounds[r + 1]))
        names = np.array([texts.setdefault(text, len(texts)) for text in one.groups] + [-1])
        columns.group[at] = names[one.rows.group[mine]]
        columns.step[at] = one.rows.step[mine] + int(shift[r]) - low
        columns.kind[at], columns.bytes[at] = one.rows.kind[mine], one.rows.bytes[mine]
        columns.size[at] = one.rows.size[mine]
        _fill_times(columns, at, one, mine, float(over[r]))
        _fill_ways(columns, at, one, mine, int(shift[r]), low, high)
    return replace(columns, groups=tuple(texts))


def _pace_differences(digests: Sequence[Digest]) -> Floats:
    """For each rank, the share of the removed profiler cost that is too much at the job's CPU pace."""
    paces = np.array([one.host_pace for one in digests])
    usual = float(np.median(paces))
    believed = (paces >= usual / MOST_PACE_SPREAD) & (paces <= usual * MOST_PACE_SPREAD)
    return 1 - np.where(believed, paces, usual) / paces


def _fill_times(columns: _Rows, at: slice, one: Digest, mine: Ints, over: float) -> None:
    rows = one.rows
    columns.lag[at] = (one.unprofiled.lag_ns[mine] + np.float32(over) * one.removed_ns[mine]).clip(0)
    columns.shares[at], columns.own_work[at] = one.unprofiled.shares[mine], one.unprofiled.own_work[mine]
    columns.own[at], columns.recorded_own[at] = one.unprofiled.own_ns[mine], one.recorded.own_ns[mine]
    columns.recorded_lag[at] = one.recorded.lag_ns[mine]
    columns.end_ns[at] = (rows.end_ns - one.begin_ns)[mine]
    columns.took_ns[at] = (rows.end_ns - rows.start_ns)[mine].clip(0)


def _fill_ways(columns: _Rows, at: slice, one: Digest, mine: Ints, shift: int, low: int, high: int) -> None:
    """Predecessors, and the earliest arrivals of the recorded round."""
    step = np.where(one.rows.step >= 0, one.rows.step + shift, -1)
    number = np.full(len(step), NO_ROW, np.int64)
    number[mine] = np.arange(len(mine)) + at.start
    twin = number if len(mine) == np.count_nonzero(step >= 0) else _twins(one, step, number, low, high)
    columns.pred[at], _ = _renumbered(one.unprofiled, mine, number, twin)
    columns.recorded_pred[at], lost = _renumbered(one.recorded, mine, number, twin)
    # Dependencies on rows before the common steps become fixed times in the recorded round.
    end = (one.rows.end_ns - one.begin_ns).astype(np.float64)
    before = one.recorded.pred[mine]
    fixed = np.where(lost, end[np.maximum(before, 0)] + one.recorded.lag_ns[mine], -np.inf)
    columns.anchor_ns[at] = np.maximum(one.rows.anchor_ns[mine], fixed.max(axis=1, initial=-np.inf))


def _renumbered(ways: Ways, kept: Ints, number: Ints, twin: Ints) -> tuple[Ints, Mask]:
    """Predecessors among the kept rows, and which predecessors lie before these. Such a row is replaced by its twin in
    the last common step of the previous round."""
    pred = ways.pred[kept].astype(np.int64)
    inside, before = pred >= 0, pred <= previous(0)
    lost = np.zeros(pred.shape, bool)
    lost[inside] = number[pred[inside]] < 0
    result = np.full(pred.shape, NO_ROW, np.int64)
    here = inside & ~lost
    result[here] = number[pred[here]]
    for where, rows in ((lost, pred[lost]), (before, previous(pred[before]))):
        at = twin[rows]
        result[where] = np.where(at >= 0, previous(at), NO_ROW)
    return result, lost


def _twins(one: Digest, step: Ints, number: Ints, low: int, high: int) -> Ints:
    """For each row its twin: the row of the last common step of the same kind and at the same distance from the step's
    end."""
    last = np.flatnonzero(step == high - 1)[::-1]
    twin = number.copy()
    rows = one.rows
    for other in np.unique(step[step >= 0]).tolist():
        if low <= other < high - 1:
            continue
        mine = np.flatnonzero(step == other)[::-1]
        n = min(len(mine), len(last))
        same = (rows.kind[mine[:n]] == rows.kind[last[:n]]) & (rows.group[mine[:n]] == rows.group[last[:n]])
        twin[mine[:n][same]] = number[last[:n][same]]
    return twin


def _ordered(rows: _Rows, order: Ints) -> _Rows:
    """The columns in replay order, reordered one by one so that only one exists twice."""
    back = np.empty(len(order), np.int32)
    back[order] = np.arange(len(order), dtype=np.int32)
    for name in _Rows.__slots__:
        column = getattr(rows, name)
        if name in _MATRICES:
            inside, before = column >= 0, column <= previous(0)
            column[inside] = back[column[inside]]
            column[before] = previous(back[previous(column[before])])
        if name != "groups":
            column[:] = column[order]
    return rows


# -- instances


@dataclass(frozen=True, slots=True)
class _KnownRows:
    """What is known of each row, rank by rank."""

    instance: Ints
    """Index of its instance; an unmatched row is an instance by itself."""
    complete: Mask
    """Whether all members are present."""
    transfer_ns: Floats
    """NaN where not known."""
    expected_ns: Floats


def _instances(
    digests: Sequence[Digest], kept: Sequence[Ints], matched: Matched, found: Sequence[Collectives]
) -> _KnownRows:
    top = max((int(one.max(initial=-1)) for one in matched.instance), default=-1) + 1
    columns = []
    for one, mine, numbers, whole, transfer, c in zip(
        digests, kept, matched.instance, matched.complete, matched.transfer_ns, found, strict=True
    ):
        rows = len(one.rows)
        instance, known = np.full(rows, -1, np.int64), np.full(rows, np.nan)
        complete = one.rows.group < 0
        at = c.columns.row
        instance[at], known[at], complete[at] = numbers, transfer, whole & (numbers >= 0)
        complete[(one.rows.size == 1) & (one.rows.group >= 0)] = True
        columns.append((instance[mine], complete[mine], known[mine], one.rows.expected_ns[mine]))
    instance, complete, known, expected = (np.concatenate(column) for column in zip(*columns, strict=True))
    alone = np.flatnonzero(instance < 0)
    instance[alone] = top + np.arange(len(alone))
    _, instance = np.unique(instance, return_inverse=True)
    return _KnownRows(instance.reshape(-1).astype(np.int32), complete, known, expected.astype(np.float64))


def _transfers(rows: _Rows, known: _KnownRows, order: Ints, first: Ints) -> tuple[Floats, Floats, Mask]:
    """For each instance: its duration once all present ranks have arrived, the part of that caused by late missing
    ranks, and whether no rank is missing."""
    if not len(order):
        return np.empty(0), np.empty(0), np.empty(0, bool)
    head = first[:-1]
    shortest = np.minimum.reduceat(np.where(rows.group >= 0, rows.took_ns, 0.0), head)
    measured = np.minimum.reduceat(known.transfer_ns[order], head)
    guess = np.fmin.reduceat(known.expected_ns[order], head)
    complete = np.minimum.reduceat(known.complete[order], head).astype(bool)
    moving = np.where(np.isnan(measured), np.fmin(shortest, guess), np.fmin(measured, shortest))
    moving = np.where(np.isnan(moving), shortest, moving)
    waited = np.where(complete, 0.0, shortest - moving).clip(0)
    return moving + waited, waited, complete


# -- clocks and steps


@dataclass(frozen=True, slots=True)
class _Clock:
    zero_ns: float
    """Beginning of the rank's window on the job's clock."""
    begin_ns: Floats
    """The common steps' starts on the job's clock."""


def _clocks(digests: Sequence[Digest], offset: Sequence[int | None], shift: Ints, low: int) -> list[_Clock]:
    """Beginning of each rank's window on the first rank's clock, relative to that of the first rank."""
    known = all(one.clock_ns for one in digests)
    base = [one.begin_ns + (one.clock_ns if known else 0) - (at or 0) for one, at in zip(digests, offset, strict=True)]
    steps = min(len(one.step_begin_ns) - (low - int(s)) for one, s in zip(digests, shift, strict=True))
    clocks = []
    for one, at, s in zip(digests, base, shift, strict=True):
        zero = float(at - base[0])
        skipped = low - int(s)
        clocks.append(_Clock(zero, one.step_begin_ns[skipped : skipped + max(steps, 0)] + zero))
    return clocks


def _common_steps(digests: Sequence[Digest], matched: Matched, found: Sequence[Collectives]) -> tuple[Ints, int, int]:
    """(offset to add to each recording's step numbers, first step that all recordings hold, last exclusive). A rank
    that shares nothing keeps its own numbers."""
    shift = _step_shifts(matched, found)
    low = max(int(s) for s in shift)
    high = min(int(s) + len(one.step_begin_ns) for s, one in zip(shift, digests, strict=True))
    if high <= low:  # recordings without a common step: each as it is
        return np.zeros(len(digests), np.int64), 0, max(len(one.step_begin_ns) for one in digests)
    return shift, low, high


def _step_shifts(matched: Matched, found: Sequence[Collectives]) -> Ints:
    """Offsets that give a step the same number in all recordings, which may begin at different steps. Starting at the
    first rank, the others are reached through shared collectives."""
    top = max((int(one.max(initial=-1)) for one in matched.instance), default=-1) + 1
    step_of = np.full(top, ABSENT)  # of each instance, by the numbering of the ranks reached so far
    shift = np.zeros(len(found), np.int64)
    pending = list(range(len(found)))
    begun = False
    while pending:
        reached = []
        for r in pending:
            steps = found[r].columns.step
            mine = np.flatnonzero((matched.instance[r] >= 0) & (steps >= 0))
            instance, step = matched.instance[r][mine], steps[mine]
            known = step_of[instance] != ABSENT
            if known.any():
                shift[r] = int(np.median(step_of[instance[known]] - step[known]))
            elif begun:
                continue
            step_of[instance[~known]] = step[~known] + shift[r]
            begun = begun or len(mine) > 0
            reached.append(r)
        gone = set(reached or pending[:1])
        pending = [r for r in pending if r not in gone]
    return shift
