"""What-ifs for a job, as changed durations: some ranks as fast as the others, every batch as long as the usual one,
links as fast as comparable ones.
Ranks are compared with means, not medians: the ideal is the job with the same total work, spread evenly. The definition
of the ideal job and of its slowdown follows "Understanding Stragglers in Large Model Training Using What-if Analysis"
(OSDI '25): work takes the mean of its kind over all ranks and steps, transfers the median.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numba
import numpy as np

from gpuprof.ranks.digest_data import BACKWARD, FORWARD, WORK, Floats, Ints
from gpuprof.ranks.job import JobRows, Times
from gpuprof.ranks.joint import AsItIs
from gpuprof.ranks.roles import ROLES, TENSOR, GroupRoles
from gpuprof.ranks.shapes import Shapes
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Convention, Entries, Ratio, Share

SAME_KIND_RATIO: Assumed[Ratio] = 20.0
"""Ranks whose work of a kind differs by more than this factor do different things."""
LEAST_KIND_SHARE: Assumed[Share] = 0.02
"""A kind of work with a smaller share of a step is not compared between classes of ranks."""
MOST_TRIED: Convention[Entries] = 16
"""Most ranks, hosts and groups that are tried; those with the slowest members come first."""
SLOW_LINK: Assumed[Ratio] = 1.5
"""A group is tried as a slow link if its transfers take this many times the usual time for their kind and size."""
EVEN, OF_ROLE = "even", "transfers of a role"
"""Alternatives that serve as measures, not as advice."""


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sum and count per key."""

    total: Floats
    count: Floats


@dataclass(frozen=True, slots=True)
class _WhatIf:
    """Data shared by all what-ifs of one job. Its methods return durations to replay."""

    job: JobRows
    roles: GroupRoles
    shapes: Shapes
    work_ns: Floats
    """[ranks, steps, WORK] Work on each rank's own path through a step."""
    _lags: _Sums
    _owns: _Sums
    usual_transfer_ns: Floats
    """[instances] The median of the same role, kind and size."""
    comparable: Mask
    """[rows, LABELS] Lags that all ranks and steps of one shape have. Other lags have no reliable mean: they are only
    shortened, in proportion to the rank's work of their kinds."""

    def even(self) -> Times:
        """The ideal job: the same work spread evenly over ranks, stages and steps, and usual transfers."""
        job, times = self.job, self.job.unprofiled
        classes, everyone = self._to_class(), self._to_everyone()
        return Times(
            np.where(
                self.comparable,
                self._lag_means(),
                times.lag_ns * self._parts(np.minimum(classes, 1.0), job.rank),
            )
            * self._parts(everyone, job.rank),
            self._own_means() * everyone[job.rank, job.own_work],
            np.where(self._moves(), self.usual_transfer_ns, times.transfer_ns - job.waited_ns) + job.waited_ns,
        )

    def without(self, ranks: Mask, keeping: Sequence[int] = ()) -> Times:
        """These ranks (mask) take no longer than the others of their class, or if there are none, than all others, by
        kind of work. `keeping`: kinds of work (index into WORK) that stay unchanged in the latter case."""
        job, times = self.job, self.job.unprofiled
        rows = np.flatnonzero(ranks[job.rank])
        lag, own = times.lag_ns.copy(), times.own_ns.copy()
        mine = self.work_ns[ranks].mean(axis=(0, 1))
        like = ~ranks & np.isin(self.shapes.of_rank, self.shapes.of_rank[ranks])
        others = self.work_ns[like if like.any() else ~ranks].mean(axis=(0, 1)) if not ranks.all() else mine
        factor = np.minimum(_ratio(others, mine), 1.0)
        factor[list(keeping)] = 1.0
        row_keys = self.shapes.row_key[rows]
        mean, left = _of_others(self._owns, row_keys, times.own_ns[rows])
        own[rows] = np.where(left > 0, np.minimum(mean, own[rows]), own[rows] * factor[job.own_work[rows]])
        keys = self.shapes.label_key[rows]
        used = keys >= 0
        mean, there = _of_others(self._lags, keys[used], lag[rows][used])
        whole = np.broadcast_to(left[:, None], keys.shape)[used]
        part = (job.shares[rows] / 255.0) @ factor
        mine_lag = lag[rows]
        scaled = mine_lag[used] * part[used]
        mine_lag[used] = np.where((there > 0) & (there >= whole), np.minimum(mean, mine_lag[used]), scaled)
        lag[rows] = mine_lag
        return replace(times, lag_ns=lag, own_ns=own)

    def balanced(self) -> Times:
        """Every class of ranks (pipeline stage) has as much work of each kind as the mean of all."""
        job, times = self.job, self.job.unprofiled
        factor = self._to_everyone()
        return replace(
            times,
            lag_ns=times.lag_ns * self._parts(factor, job.rank),
            own_ns=times.own_ns * factor[job.rank, job.own_work],
        )

    def steady(self) -> Times:
        """Every rank keeps its speed and stage, but all steps and micro-batches of a kind take the same time."""
        job = self.job
        mine = self.work_ns.mean(axis=1)
        to_rank = 1 / self._to_class()
        to_usual = np.minimum(_ratio(mine[:, None, :], self.work_ns), 1.0).reshape(-1, len(WORK))
        unit = job.rank * np.int32(job.steps) + job.step
        return replace(
            job.unprofiled,
            lag_ns=np.where(
                self.comparable,
                self._lag_means() * self._parts(to_rank, job.rank),
                job.unprofiled.lag_ns * self._parts(to_usual, unit),
            ),
            own_ns=self._own_means() * to_rank[job.rank, job.own_work],
        )

    def usual_transfers(self, groups: Mask) -> Times:
        """These groups (mask) exchange as fast as comparable groups."""
        job = self.job
        group = job.group[job.first[:-1]]
        mine = self._moves() & groups[np.maximum(group, 0)] & (group >= 0)
        times = job.unprofiled
        return replace(
            times,
            transfer_ns=np.where(
                mine, np.minimum(self.usual_transfer_ns + job.waited_ns, times.transfer_ns), times.transfer_ns
            ),
        )

    def kind_as_usual(self, work: int, even: Times) -> Times:
        """One kind of work is spread evenly, as in `even()`; everything else is unchanged."""
        times, job = self.job.unprofiled, self.job
        return replace(
            times,
            lag_ns=times.lag_ns + job.shares[:, :, work] / np.float32(255) * (even.lag_ns - times.lag_ns),
            own_ns=np.where(job.own_work == work, even.own_ns, times.own_ns),
        )

    def no_transfers(self, groups: Mask | None = None) -> Times:
        """Transfers of these groups (mask; None: all) take no time, so that communication is only waiting."""
        job = self.job
        group = job.group[job.first[:-1]]
        mine = group >= 0
        if groups is not None:
            mine = mine & groups[np.maximum(group, 0)]
        return replace(job.unprofiled, transfer_ns=np.where(mine, job.waited_ns, job.unprofiled.transfer_ns))

    def _to_everyone(self) -> Floats:
        """[ranks, WORK] Factor that brings the work of each rank's class to the mean of all."""
        by_class = _mean_by(self.work_ns.mean(axis=1), self.shapes.of_rank)
        return _ratio(self.work_ns.mean(axis=(0, 1))[None, :], by_class)[self.shapes.of_rank]

    def _to_class(self) -> Floats:
        """[ranks, WORK] Factor that brings the work of each rank to the mean of its class."""
        mine = self.work_ns.mean(axis=1)
        return _ratio(_mean_by(mine, self.shapes.of_rank)[self.shapes.of_rank], mine)

    def _parts(self, factor: Floats, of: Ints) -> Floats:
        """[rows, LABELS] One factor per lag, from factors [n, WORK] by kind of work; `of`: index of each row's
        factors."""
        return _weighted(self.job.shares, np.ascontiguousarray(factor, np.float64), of)

    def _lag_means(self) -> Floats:
        keys = self.shapes.label_key
        mean = (self._lags.total / np.maximum(self._lags.count, 1)).astype(np.float32)
        return np.where(keys >= 0, mean[keys], np.float32(0))

    def _own_means(self) -> Floats:
        return (self._owns.total / np.maximum(self._owns.count, 1))[self.shapes.row_key]

    def _moves(self) -> Mask:
        return self.job.shared[self.job.first[:-1]]


@dataclass(frozen=True, slots=True)
class Alternative:
    """One what-if."""

    kind: str
    """As `Change.kind`; or EVEN, the ideal job, or OF_ROLE, without the transfers of one role's groups."""
    name: str
    ranks: Mask | None
    """Ranks that it changes; None: all."""
    times: Times
    """Durations to replay."""


def alternatives(job: JobRows, roles: GroupRoles, shapes: Shapes, now: AsItIs) -> Iterator[Alternative]:
    """All what-ifs, one at a time: at 1,024 ranks the durations of one take half a gigabyte."""
    asked, own = _prepared(job, roles, shapes, now), now.paces_ns
    even = asked.even()
    yield Alternative(EVEN, "", None, even)
    slower = _over_their_class(own, shapes)
    every = np.arange(job.ranks)
    for r in np.argsort(-slower, kind="stable")[:MOST_TRIED].tolist():
        if job.ranks > 1:
            only = every == r
            times = asked.without(only, _stage_work(roles, only))
            yield Alternative("rank", f"rank {job.digests[r].rank}", only, times)
    for kind, named in (("host", _by_host(roles)), ("group", _by_group(job, roles))):
        named.sort(key=lambda one: -float(slower[one[1]].mean()))
        for name, mask in named[:MOST_TRIED]:
            keeping = _stage_work(roles, mask) if kind == "group" else ()
            yield Alternative(kind, name, mask, asked.without(mask, keeping))
    if roles.stage.any():
        yield Alternative("stage", *_longest_stage(roles, own), asked.balanced())
    yield Alternative("batches", "batches of equal work", None, asked.steady())
    for g in _slow_links(asked)[:MOST_TRIED]:
        only = np.arange(len(job.groups)) == g
        mask = np.isin(every, roles.members[g])
        yield Alternative("link", f"links of group {job.groups[g]}", mask, asked.usual_transfers(only))
    for k, name in enumerate(WORK[:3]):
        yield Alternative(name, f"{name} spread evenly", None, asked.kind_as_usual(k, even))
    yield Alternative("transfers", "no transfers", None, asked.no_transfers())
    for role in np.unique(roles.of_group).tolist():
        yield Alternative(OF_ROLE, ROLES[role], None, asked.no_transfers(roles.of_group == role))


# -- which ranks, groups and stages


def _stage_work(roles: GroupRoles, mask: Mask) -> tuple[int, ...]:
    """Kinds of work that may legitimately differ if the ranks (mask) are all ranks of their stages: the duration of a
    stage is determined by the model's partition. Empty if other ranks have the same stage."""
    others = roles.stage[~mask]
    return (FORWARD, BACKWARD) if len(others) and not np.isin(roles.stage[mask], others).any() else ()


def _over_their_class(own: Floats, shapes: Shapes) -> Floats:
    """Pace of each rank relative to the median of its class."""
    pace = own.mean(axis=1)
    found = np.ones(len(pace))
    for one in np.unique(shapes.of_rank).tolist():
        mine = shapes.of_rank == one
        found[mine] = pace[mine] / max(float(np.median(pace[mine])), 1.0)
    # The median of one or two ranks says nothing: they are compared with all.
    few = np.bincount(shapes.of_rank)[shapes.of_rank] < 3
    found[few] = pace[few] / max(float(np.median(pace)), 1.0)
    return found


def _by_host(roles: GroupRoles) -> list[tuple[str, Mask]]:
    names = sorted(set(roles.host))
    host = np.array(roles.host)
    found = [(name, host == name) for name in names if name]
    return [one for one in found if 1 < one[1].sum() < len(host)]


def _by_group(job: JobRows, roles: GroupRoles) -> list[tuple[str, Mask]]:
    every = np.arange(job.ranks)
    found = []
    for g in np.flatnonzero(roles.of_group == TENSOR).tolist():
        if len(roles.members[g]) > 1:
            found.append((f"group {job.groups[g]}", np.isin(every, roles.members[g])))
    return found


def _longest_stage(roles: GroupRoles, own: Floats) -> tuple[str, Mask]:
    """The stage with the most work; the what-if gives all stages the same work."""
    pace = own.mean(axis=1)
    stages = np.unique(roles.stage)
    most = int(stages[np.argmax([pace[roles.stage == s].mean() for s in stages])])
    return f"stage {most}", roles.stage == most


def _slow_links(asked: _WhatIf) -> list[int]:
    """Groups whose transfers take far longer than comparable ones, slowest first."""
    job = asked.job
    group = job.group[job.first[:-1]]
    moving = job.unprofiled.transfer_ns - job.waited_ns
    mine = group >= 0
    took = np.bincount(group[mine], moving[mine], len(job.groups))
    usual = np.bincount(group[mine], asked.usual_transfer_ns[mine], len(job.groups))
    slow = np.flatnonzero(took > SLOW_LINK * np.maximum(usual, 1.0))
    return slow[np.argsort(-(took - usual)[slow], kind="stable")].tolist()


# -- their times


def _prepared(job: JobRows, roles: GroupRoles, shapes: Shapes, now: AsItIs) -> _WhatIf:
    """Prepares the what-ifs of a job: one pass over its rows."""
    times = job.unprofiled
    lags, owns = _sums(shapes.label_key, times.lag_ns), _sums(shapes.row_key, times.own_ns)
    return _WhatIf(
        job, roles, shapes, now.work_ns, lags, owns, _usual_transfers(job, roles),
        _comparable(shapes, lags, owns),
    )  # fmt: skip


def _comparable(shapes: Shapes, lags: _Sums, owns: _Sums) -> Mask:
    keys, least = shapes.label_key, owns.count[shapes.row_key]
    found = keys >= 0
    for k in range(keys.shape[1]):
        found[:, k] &= lags.count[keys[:, k]] >= least
    return found


@numba.njit(cache=True)
def _weighted(shares, factor, of):  # pragma: no cover - compiled
    found = np.ones(shares.shape[:2], np.float32)
    for row in range(shares.shape[0]):
        for k in range(shares.shape[1]):
            total, whole = 0.0, 0
            for q in range(shares.shape[2]):
                total += shares[row, k, q] * factor[of[row], q]
                whole += shares[row, k, q]
            if whole:
                found[row, k] = total / 255.0
    return found


def _sums(keys: Ints, values: Floats) -> _Sums:
    """Sums and counts by key; negative keys are ignored."""
    total, count = np.zeros((2, int(keys.max(initial=-1)) + 1))
    _add(keys.reshape(-1), values.reshape(-1), total, count)
    return _Sums(total, count)


@numba.njit(cache=True)
def _add(keys, values, total, count):  # pragma: no cover - compiled
    for i in range(len(keys)):
        if keys[i] >= 0:
            total[keys[i]] += values[i]
            count[keys[i]] += 1


def _of_others(sums: _Sums, keys: Ints, values: Floats) -> tuple[Floats, Floats]:
    """(mean of all values with the same key except these, their number)."""
    n = len(sums.total)
    total = sums.total - np.bincount(keys, values, n)
    count = sums.count - np.bincount(keys, minlength=n)
    return (total / np.maximum(count, 1))[keys], count[keys]


def _mean_by(values: Floats, of: Ints) -> Floats:
    """[classes, WORK] The mean over the ranks of each class."""
    n = int(of.max(initial=-1)) + 1
    total = np.zeros((n, values.shape[1]))
    np.add.at(total, of, values)
    return total / np.maximum(np.bincount(of, minlength=n), 1)[:, None]


def _ratio(wanted: Floats, there: Floats) -> Floats:
    """Factor of change for each kind of work; 1 if there is too little of it to compare."""
    whole = np.maximum(there.sum(axis=-1, keepdims=True), wanted.sum(axis=-1, keepdims=True))
    least = LEAST_KIND_SHARE * np.broadcast_to(whole, np.broadcast_shapes(wanted.shape, there.shape))
    ratio = wanted / np.maximum(there, 1.0)
    small = (there < least) | (np.broadcast_to(wanted, least.shape) < least)
    return np.where(small | (ratio > SAME_KIND_RATIO) | (ratio < 1 / SAME_KIND_RATIO), 1.0, ratio)


def _usual_transfers(job: JobRows, roles: GroupRoles) -> Floats:
    head = job.first[:-1]
    group = job.group[head]
    moving = job.unprofiled.transfer_ns - job.waited_ns
    role = np.where(group >= 0, roles.of_group[np.maximum(group, 0)], -1) if len(job.groups) else group
    sorts = np.stack([role, job.kind[head], job.bytes[head]])
    _, sort = np.unique(sorts, axis=1, return_inverse=True)
    sort = sort.reshape(-1)
    order = np.lexsort((moving, sort))
    counts = np.bincount(sort)
    starts = np.cumsum(counts) - counts
    middle = (moving[order[starts + (counts - 1) // 2]] + moving[order[starts + counts // 2]]) / 2
    return np.where(group >= 0, middle[sort], moving)
