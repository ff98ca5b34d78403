"""Finds ranks and steps that do the same work, whose rows can be compared."""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np

from gpuprof.ranks.digest_data import Ints
from gpuprof.ranks.job import JobRows
from gpuprof.ranks.roles import GroupRoles
from gpuprof.timeline.collectives.point_to_point import is_exchange, p2p_pair


@dataclass(frozen=True, slots=True)
class Shapes:
    """Keys: rows (or labels) with the same key do the same work, on different ranks and in different steps."""

    of_rank: Ints
    """[ranks] Class of ranks whose usual step has the same collectives."""
    row_key: Ints
    """[rows]"""
    label_key: Ints
    """[rows, LABELS] -1 where unused."""


def shapes_of(job: JobRows, roles: GroupRoles) -> Shapes:
    """The shape of a step, per stage: the number of rows of each sort (role, kind, bytes, peer's stage).
    A row's place is its number among rows of its sort, because the order between streams varies from step to step.
    """
    sign = _signs(job, roles)
    unit = job.rank.astype(np.int64) * job.steps + job.step
    position = _number_of_sort(job, unit, sign)
    total = np.zeros(job.ranks * job.steps, np.uint64)
    np.add.at(total, unit, _mixed(sign, position))
    stage = np.repeat(roles.stage, job.steps)
    # Steps without rows have no shape and are not compared.
    _, shape = np.unique(_mixed(total.view(np.int64), stage), return_inverse=True)
    shape = shape.reshape(-1)
    place = _mixed(sign, position).view(np.int64)
    row_key, label_key = _mixed(shape[unit], place), _label_keys(job, shape[unit], place)
    _, of_row = np.unique(row_key, return_inverse=True)
    used = label_key != 0
    of_label = np.full(label_key.shape, -1, np.int32)
    of_label[used] = np.unique(label_key[used], return_inverse=True)[1].reshape(-1)
    usual = np.array([_most(shape[r * job.steps : (r + 1) * job.steps]) for r in range(job.ranks)])
    of_row = of_row.reshape(-1).astype(np.int32)
    return Shapes(np.unique(usual, return_inverse=True)[1].reshape(-1), of_row, of_label)


def _signs(job: JobRows, roles: GroupRoles) -> Ints:
    """One number per row, equal for comparable rows."""
    marks = _mixed(np.full(len(job), -1), np.where(job.kind == -1, 16 + job.own_work, job.kind))
    if not len(job.groups):
        return marks.view(np.int64)
    pairs = [p2p_pair(text) or (-1, -1) for text in job.groups]
    number = {one.rank: r for r, one in enumerate(job.digests)}
    step = np.zeros((len(pairs), 2), np.int64)  # how many stages before its peer the sender is, and the receiver
    for g, (a, b) in enumerate(pairs):
        if a in number and b in number:
            further = int(roles.stage[number[b]] - roles.stage[number[a]])
            step[g] = further, -further
    group = np.maximum(job.group, 0)
    receives = np.array([b for _, b in pairs])[group] == np.array([one.rank for one in job.digests])[job.rank]
    toward = np.where(receives, step[group, 1] + 100, step[group, 0])
    toward += 200 * np.array([is_exchange(text) for text in job.groups])[group]
    shared = _mixed(roles.of_group[group] * 64 + job.kind, _mixed(job.bytes, job.size * 512 + toward).view(np.int64))
    return np.where(job.group >= 0, shared, marks).view(np.int64)


def _number_of_sort(job: JobRows, unit: Ints, sign: Ints) -> Ints:
    """For each row the number of earlier rows of its sort in its rank's step."""
    order = np.lexsort((job.source_row, sign, unit))
    new = (np.diff(unit[order], prepend=-1) != 0) | (np.diff(sign[order], prepend=sign[order[:1]] ^ 1) != 0)
    starts = np.flatnonzero(new)
    number = np.empty(len(job), np.int64)
    number[order] = np.arange(len(job)) - np.repeat(starts, np.diff(np.append(starts, len(job))))
    return number


def _most(values: Ints) -> int:
    found, counts = np.unique(values, return_counts=True)
    return int(found[np.argmax(counts)])


def _label_keys(job: JobRows, shape: Ints, place: Ints) -> np.ndarray:
    """Keys from the row, and from the predecessor's place and its distance in steps."""
    keys = np.zeros(job.pred.shape, np.uint64)
    _fill(job.pred, job.step, place, shape, job.steps, keys)
    return keys


@numba.njit(cache=True)
def _fill(pred, step, place, shape, steps, keys):  # pragma: no cover - compiled
    for row in range(pred.shape[0]):
        for k in range(pred.shape[1]):
            p = pred[row, k]
            if p == -1:
                continue
            back = 0
            if p < -1:
                p, back = -2 - p, steps
            earlier = step[row] - step[p] + back
            h = np.uint64(shape[row]) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(place[row])
            h = (h ^ (h >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9) + np.uint64(place[p])
            h = (h ^ (h >> np.uint64(29))) * np.uint64(0x94D049BB133111EB) + np.uint64(earlier)
            h = (h ^ (h >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
            keys[row, k] = (h ^ (h >> np.uint64(32))) | np.uint64(1)


def _mixed(a: Ints, b: Ints) -> np.ndarray:
    """Hashes two numbers to one; equal pairs give equal results."""
    h = a.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + b.astype(np.uint64)
    h = (h ^ (h >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    return h ^ (h >> np.uint64(29))
