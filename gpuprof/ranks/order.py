"""Orders instances so that each comes after everything that its members depend on."""

from __future__ import annotations

import numba
import numpy as np

from gpuprof.ranks.digest_data import Ints


def in_order(instance: Ints, pred: Ints) -> tuple[Ints, Ints, Ints, int]:
    """(instance of each row, rows in order, first row of each instance in that order, number of split instances).
    `instance`: of each row, from 0; `pred`: [rows, labels] the rows that it depends on; negative ones are not in this
    round. A real execution has no cycle: if there is one, rows were matched wrongly, and its instances are split into
    single rows.
    """
    dropped = 0
    while True:
        count = int(instance.max(initial=-1)) + 1
        first = np.zeros(count + 1, np.int64)
        np.cumsum(np.bincount(instance, minlength=count), out=first[1:])
        done = _kahn(instance, pred, first)
        if len(done) == count:
            break
        stuck = np.ones(count, bool)
        stuck[done] = False
        several = stuck & (np.diff(first) > 1)
        if not several.any():
            raise AssertionError("a rank's own rows depend on each other in a circle")
        dropped += int(several.sum())
        apart = np.flatnonzero(several[instance])
        instance = instance.copy()
        instance[apart] = count + np.arange(len(apart))
        _, instance = np.unique(instance, return_inverse=True)
        instance = instance.reshape(-1)
    place = np.empty(count, np.int64)
    place[done] = np.arange(count)
    moved = place[instance]
    order = np.argsort(moved, kind="stable")
    first = np.zeros(count + 1, np.int64)
    np.cumsum(np.bincount(moved, minlength=count), out=first[1:])
    return moved, order, first, dropped


@numba.njit(cache=True)
def _kahn(instance, pred, first):  # pragma: no cover - compiled
    count, labels = len(first) - 1, pred.shape[1]
    waits = np.zeros(count, np.int64)
    leads = np.zeros(count + 1, np.int64)
    for row in range(len(instance)):
        for k in range(labels):
            p = pred[row, k]
            if p >= 0 and instance[p] != instance[row]:
                waits[instance[row]] += 1
                leads[instance[p] + 1] += 1
    for i in range(count):
        leads[i + 1] += leads[i]
    to = np.empty(leads[count], np.int32)  # instances
    fill = leads.copy()
    for row in range(len(instance)):
        for k in range(labels):
            p = pred[row, k]
            if p >= 0 and instance[p] != instance[row]:
                to[fill[instance[p]]] = instance[row]
                fill[instance[p]] += 1
    done = np.empty(count, np.int64)
    n = 0
    for i in range(count):
        if waits[i] == 0:
            done[n] = i
            n += 1
    at = 0
    while at < n:
        i = done[at]
        at += 1
        for e in range(leads[i], leads[i + 1]):
            waits[to[e]] -= 1
            if waits[to[e]] == 0:
                done[n] = to[e]
                n += 1
    return done[:n]
