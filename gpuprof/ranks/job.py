"""All digests as one job: their rows one after another, and which of them are one collective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuprof.ranks.digest_data import NO_ROW, Digest, Floats, Ints, Labels, previous
from gpuprof.ranks.order import in_order
from gpuprof.timeline.collectives import CollectiveColumns, Collectives
from gpuprof.timeline.matching import Matched
from gpuprof.tracefile.trace import U8, Mask

MOST_PACE_SPREAD = 1.2
"""A host pace this many times off the job's median is a wrong measurement, not a slower host."""


@dataclass(frozen=True, slots=True)
class Times:
    """What takes how long: everything that a what-if changes."""

    lag_ns: Floats
    """[rows, LABELS]"""
    own_ns: Floats
    """[rows]"""
    transfer_ns: Floats
    """[instances] Once all have arrived, with what missing ranks are late by."""


@dataclass(frozen=True, slots=True)
class Job:
    """Rows of all ranks in replayed order: by instance, each instance after all that its members depend on.

    An instance is one collective with all its members, a send with its receive, or a mark by itself.
    """

    digests: tuple[Digest, ...]
    rank: Ints
    """Index of the digest of each row."""
    source_row: Ints
    """Row of that digest."""
    step: Ints
    """Step of the job, the same on all ranks."""
    first: Ints
    """Rows of instance i: `first[i]:first[i + 1]`."""
    instance: Ints
    pred: Ints
    """[rows, LABELS] Row of the job; `previous(row)`, NO_ROW as in a digest."""
    shares: U8
    """[rows, LABELS, WORK] What each lag consists of, in 255ths."""
    own_work: U8
    anchor_ns: Floats
    """On the first rank's clock, from the job's begin."""
    recorded_end_ns: Floats
    shared: Mask
    """Rows that other ranks take part in, present or not."""
    group: Ints
    """Index into `groups`; -1 for marks."""
    groups: tuple[str, ...]
    kind: Ints
    bytes: Ints
    size: Ints
    complete: Mask
    """[instances] All members are here."""
    waited_ns: Floats
    """[instances] Of the transfer, what missing ranks are late by."""
    steps: int
    step_begin_ns: Floats
    looped: bool
    recorded: Times
    unprofiled: Times
    recorded_pred: Ints
    dropped: int
    """Instances that could not be ordered, and were taken apart: rows matched wrongly."""

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def ranks(self) -> int:
        return len(self.digests)


def collectives_of(digest: Digest, clock_ns: int) -> Collectives:
    """The rows that ranks share, as matching takes them; times from `clock_ns`."""
    rows = digest.rows
    mine = np.flatnonzero(rows.group >= 0)
    mine = mine[np.lexsort((mine, rows.start_ns[mine]))]
    texts = (*digest.groups, *digest.dtypes)
    return Collectives(
        CollectiveColumns(
            row=mine,
            kind=rows.kind[mine].astype(np.int32),
            group=rows.group[mine].astype(np.int32),
            dtype=(rows.dtype[mine] + len(digest.groups)).astype(np.int32),
            group_size=rows.size[mine].astype(np.int64),
            bytes=rows.bytes[mine].astype(np.int64),
            sequence=np.arange(len(mine)),
            recorded_sequence=rows.number[mine].astype(np.int64),
            step=rows.step[mine].astype(np.int64),
            start_ns=rows.start_ns[mine].astype(np.int64) + clock_ns,
            end_ns=rows.end_ns[mine].astype(np.int64) + clock_ns,
        ),
        texts,
    )


def assemble(digests: Sequence[Digest], matched: Matched, found: Sequence[Collectives]) -> Job:
    """`matched`: what `match` says of `found`, the digests' collectives on comparable clocks."""
    step_shift = _step_shifts(matched, found)
    # The steps that all recordings hold; a rank that shares nothing keeps its own numbers.
    low = max(int(shift) for shift in step_shift)
    high = min(int(shift) + len(one.step_begin_ns) for shift, one in zip(step_shift, digests, strict=True))
    if high <= low:  # recordings without a common step: each as it is
        step_shift, low = np.zeros(len(digests), np.int64), 0
        high = max(len(one.step_begin_ns) for one in digests)
    paces = np.array([one.host_pace for one in digests])
    usual = float(np.median(paces))
    parts: list[_Part] = []
    count = 0
    for r, one in enumerate(digests):
        pace = paces[r] if usual / MOST_PACE_SPREAD <= paces[r] <= usual * MOST_PACE_SPREAD else usual
        part = _part(one, int(step_shift[r]), low, high, float(1 - pace / paces[r]))
        parts.append(_shifted(part, count))
        count += len(part.kept)
    offset = [0 if at is None else at for at in matched.offset_ns]
    clocks = _zero(digests, found, offset, step_shift, low)
    rank = np.repeat(np.arange(len(digests)), [len(part.kept) for part in parts])
    instance, complete_row, transfer_row, expected = _instances(digests, parts, matched, found)
    pred = np.concatenate([part.pred for part in parts])
    recorded_pred = np.concatenate([part.recorded_pred for part in parts])
    instance, order, first, dropped = in_order(instance, np.concatenate([pred, recorded_pred], axis=1))
    back = np.empty(count, np.int64)
    back[order] = np.arange(count)

    def moved(rows: Ints) -> Ints:
        inside, before = rows >= 0, rows <= previous(0)
        result = np.full(rows.shape, NO_ROW, np.int32)
        result[inside] = back[rows[inside]]
        result[before] = previous(back[previous(rows[before])])
        return result[order]

    def column(name: str) -> np.ndarray:
        return np.concatenate([getattr(part, name) for part in parts])[order]

    starts = np.array([clock.zero_ns for clock in clocks])
    anchor = column("anchor_ns") + starts[rank[order]]
    end = column("end_ns").astype(np.float64) + starts[rank[order]]
    of = np.repeat(np.arange(len(first) - 1), np.diff(first))
    shared = column("shared")
    texts: dict[str, int] = {}
    names = [np.array([texts.setdefault(text, len(texts)) for text in one.groups] + [-1]) for one in digests]
    group = np.concatenate([n[one.rows.group[part.kept]] for n, one, part in zip(names, digests, parts, strict=True)])

    def of_rows(name: str) -> np.ndarray:
        parts_of = zip(digests, parts, strict=True)
        return np.concatenate([getattr(one.rows, name)[part.kept] for one, part in parts_of])[order].astype(np.int64)

    took = column("took_ns").astype(np.float64)
    shortest = np.minimum.reduceat(np.where(shared, took, 0.0), first[:-1]) if count else np.empty(0)
    known = np.minimum.reduceat(transfer_row[order], first[:-1]) if count else np.empty(0)
    guess = np.fmin.reduceat(expected[order], first[:-1]) if count else np.empty(0)
    complete = np.minimum.reduceat(complete_row[order], first[:-1]).astype(bool) if count else np.empty(0, bool)
    moving = np.where(np.isnan(known), np.fmin(shortest, guess), np.fmin(known, shortest))
    moving = np.where(np.isnan(moving), shortest, moving)
    late = np.where(complete, 0.0, shortest - moving).clip(0)
    begin = np.array([clock.begin_ns for clock in clocks])
    earliest = np.min(begin, axis=0) if len(begin) else np.empty(0)
    times = Times(column("recorded_lag").astype(np.float32), column("recorded_own").astype(np.float64), moving + late)
    return Job(
        digests=tuple(digests), rank=rank[order], source_row=column("kept"), step=column("step"), first=first,
        instance=of, pred=moved(pred), shares=column("shares"), own_work=column("own_work"), anchor_ns=anchor,
        recorded_end_ns=end, shared=shared, group=group[order], groups=tuple(texts), kind=of_rows("kind"),
        bytes=of_rows("bytes"), size=of_rows("size"), complete=complete, waited_ns=late, steps=high - low,
        step_begin_ns=earliest, looped=all(one.looped for one in digests), recorded=times,
        unprofiled=replace(times, lag_ns=column("lag").astype(np.float32), own_ns=column("own").astype(np.float64)),
        recorded_pred=moved(recorded_pred), dropped=dropped,
    )  # fmt: skip


# -- one rank's share


@dataclass(frozen=True, slots=True)
class _Part:
    """One digest's rows within the common steps; row numbers are the job's."""

    kept: Ints
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
    end_ns: Floats
    took_ns: Floats
    shared: Mask


def _part(one: Digest, shift: int, low: int, high: int, over: float) -> _Part:
    rows = one.rows
    step = np.where(rows.step >= 0, rows.step + shift, -1)
    inside = (step >= low) & (step < high)
    kept = np.flatnonzero(inside)
    number = np.full(len(rows), NO_ROW, np.int64)
    number[kept] = np.arange(len(kept))
    twin = number if len(kept) == np.count_nonzero(step >= 0) else _twins(one, step, number, low, high)
    end = (rows.end_ns - one.begin_ns).astype(np.float64)
    pred, _ = _renumbered(one.unprofiled, kept, number, twin)
    recorded_pred, recorded_lost = _renumbered(one.recorded, kept, number, twin)
    anchor = rows.anchor_ns[kept].copy()
    # What depended on a row before the common steps: in the recorded round a fixed time.
    before = one.recorded.pred[kept]
    fixed = np.where(recorded_lost, end[np.maximum(before, 0)] + one.recorded.lag_ns[kept], -np.inf)
    anchor = np.maximum(anchor, fixed.max(axis=1, initial=-np.inf))
    lag = one.unprofiled.lag_ns[kept] + np.float32(over) * one.removed_ns[kept]
    return _Part(
        kept, step[kept] - low, pred, lag.clip(0), one.unprofiled.shares[kept], one.unprofiled.own_ns[kept],
        one.unprofiled.own_work[kept], recorded_pred, one.recorded.lag_ns[kept],
        one.recorded.own_ns[kept], anchor, end[kept],
        (rows.end_ns - rows.start_ns)[kept].clip(0).astype(np.float64), rows.group[kept] >= 0,
    )  # fmt: skip


def _renumbered(labels: Labels, kept: Ints, number: Ints, twin: Ints) -> tuple[Ints, Mask]:
    """Predecessors among the kept rows, and which of them lie before these. Such a row's place is taken by its twin
    in the last common step, of the previous round."""
    pred = labels.pred[kept].astype(np.int64)
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
    """Per row the row of the last common step that stands as far from its step's end and is of the same kind."""
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


def _shifted(part: _Part, count: int) -> _Part:
    def moved(rows: Ints) -> Ints:
        return np.where(rows >= 0, rows + count, np.where(rows <= previous(0), rows - count, rows))

    return replace(part, pred=moved(part.pred), recorded_pred=moved(part.recorded_pred))


# -- all ranks


@dataclass(frozen=True, slots=True)
class _Clock:
    zero_ns: float
    """The job's time at which the rank's window begins."""
    begin_ns: Floats
    """The common steps' starts on the job's clock."""


def _zero(
    digests: Sequence[Digest], found: Sequence[Collectives], offset: Sequence[int], shift: Ints, low: int
) -> list[_Clock]:
    """Where each rank's window begins on the first rank's clock, counted from the first rank's."""
    known = all(one.clock_ns for one in digests)
    base = [one.begin_ns + (one.clock_ns if known else 0) - at for one, at in zip(digests, offset, strict=True)]
    steps = min(len(one.step_begin_ns) - (low - int(s)) for one, s in zip(digests, shift, strict=True))
    clocks = []
    for one, at, s in zip(digests, base, shift, strict=True):
        zero = float(at - base[0])
        skipped = low - int(s)
        clocks.append(_Clock(zero, one.step_begin_ns[skipped : skipped + max(steps, 0)] + zero))
    return clocks


def _step_shifts(matched: Matched, found: Sequence[Collectives]) -> Ints:
    """What to add to each recording's step numbers so that one number means one step: recordings may begin at
    different steps."""
    shift: list[int | None] = [None] * len(found)
    steps: dict[int, int] = {}
    pending = set(range(len(found)))
    while pending:
        if not steps:
            start = min(pending)
            shift[start] = 0
            _note(matched, found, start, 0, steps)
            pending.discard(start)
        reached = False
        for r in sorted(pending):
            c = found[r].columns
            mine = np.flatnonzero((matched.instance[r] >= 0) & (c.step >= 0))
            pairs = zip(matched.instance[r][mine].tolist(), c.step[mine].tolist(), strict=True)
            known = [(steps[i], s) for i, s in pairs if i in steps]
            if not known:
                continue
            shift[r] = int(np.median([a - b for a, b in known]))
            _note(matched, found, r, shift[r] or 0, steps)
            pending.discard(r)
            reached = True
        if not reached and pending:
            alone = min(pending)
            shift[alone] = 0
            pending.discard(alone)
    return np.array([s or 0 for s in shift], np.int64)


def _note(matched: Matched, found: Sequence[Collectives], r: int, shift: int, steps: dict[int, int]) -> None:
    c = found[r].columns
    mine = np.flatnonzero((matched.instance[r] >= 0) & (c.step >= 0))
    for i, s in zip(matched.instance[r][mine].tolist(), c.step[mine].tolist(), strict=True):
        steps.setdefault(i, s + shift)


def _instances(
    digests: Sequence[Digest], parts: Sequence[_Part], matched: Matched, found: Sequence[Collectives]
) -> tuple[Ints, Mask, Floats, Floats]:
    """Per row: its instance (rows that match none have one of their own), whether all members are here, its transfer
    where that is known, and what is expected."""
    top = max((int(one.max(initial=-1)) for one in matched.instance), default=-1) + 1
    columns = []
    for one, part, numbers, whole, transfer, c in zip(
        digests, parts, matched.instance, matched.complete, matched.transfer_ns, found, strict=True
    ):
        rows = len(one.rows)
        instance, known = np.full(rows, -1, np.int64), np.full(rows, np.nan)
        complete = one.rows.group < 0
        at = c.columns.row
        instance[at], known[at], complete[at] = numbers, transfer, whole & (numbers >= 0)
        complete[(one.rows.size == 1) & (one.rows.group >= 0)] = True
        columns.append((instance[part.kept], complete[part.kept], known[part.kept], one.rows.expected_ns[part.kept]))
    instance, complete, known, expected = (np.concatenate(column) for column in zip(*columns, strict=True))
    alone = np.flatnonzero(instance < 0)
    instance[alone] = top + np.arange(len(alone))
    _, instance = np.unique(instance, return_inverse=True)
    return instance.reshape(-1), complete, known, expected.astype(np.float64)
