"""Trees of sums for the icicle view: spans merged by the names on the path down to them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.report.page.views.nesting_rows import levels
from gpuprof.report.page.views.view_colours import BY_GAIN
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Convention, Nodes, Share

MOST_NODES: Convention[Nodes] = 50_000
"""Nodes of one tree. Beyond that the smallest are summed up in their parents: no screen shows them."""

ONE_KIND: Convention[Share] = 0.9
"""Share of a node's time from which on it is of one kind, such as a module that only multiplies matrices."""


@dataclass(frozen=True, slots=True)
class Tree:
    """Nodes as columns: node 0 is the root, and a parent comes before its children."""

    id: str
    title: str
    levels: str
    """What the levels are, from the top down."""
    note: str
    parent: I64
    """-1 for the root."""
    text: I64
    paint: I64
    own_ns: I64
    count: I64


@dataclass(frozen=True, slots=True)
class Paths:
    """Paths down a forest, distinguished by their labels: the node of each row, and each node's parent (-1: top) and
    label."""

    node: I64
    parent: I64
    label: I64


def paths(parent: I64, label: I64) -> Paths:
    """Merges rows whose ancestors have the same labels. `parent`: row of each row's parent, or -1."""
    node = np.full(len(parent), -1, np.int64)
    level = levels(parent)
    parents, labels, size = [], [], 0
    for depth in range(int(level.max(initial=-1)) + 1):
        rows = np.flatnonzero(level == depth)
        above = np.where(parent[rows] >= 0, node[parent[rows]], -1)
        keys = (above + 1) * (int(label.max(initial=0)) + 1) + label[rows]
        _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
        node[rows] = size + inverse
        parents.append(above[first])
        labels.append(label[rows][first])
        size += len(first)
    empty = np.empty(0, np.int64)
    return Paths(node, np.concatenate([empty, *parents]), np.concatenate([empty, *labels]))


def among(parent: I64, keep: np.ndarray, climbed: I64) -> tuple[I64, I64]:
    """(rows kept, position among them of each one's nearest kept ancestor or -1), given that ancestor's row."""
    rows = np.flatnonzero(keep)
    position = np.full(len(parent) + 1, -1, np.int64)
    position[rows] = np.arange(len(rows))
    return rows, position[climbed[rows]]


class Builder:
    """Builds a tree of texts path by path."""

    def __init__(self, root: int) -> None:
        self._children: list[dict[int, int]] = [{}]
        self._parent = [-1]
        self._text = [root]

    def child(self, node: int, text: int) -> int:
        """The child of a node with a text, added if there is none."""
        found = self._children[node].get(text)
        if found is None:
            found = self._children[node][text] = len(self._parent)
            self._parent.append(node)
            self._text.append(text)
            self._children.append({})
        return found

    def columns(self) -> tuple[I64, I64]:
        """(parents, texts) of all nodes."""
        return np.array(self._parent, np.int64), np.array(self._text, np.int64)


def tree(
    id: str, title: str, levels: str, note: str, parent: I64, text: I64, leaf: I64, ns: I64, count: I64,
    paint: I64 | F64, plain: int, mixed: int | None = None,
) -> Tree:  # fmt: skip
    """Sums up times at the nodes in which they end (`leaf`); a node has the paint of most of the time below it. If
    `paint` holds shares of the time instead, it has the shade of their mean, without those that are not known (NaN).

    `plain`: the paint of a node without time; `mixed`: that of a node in which no paint has nearly all the time, if
    given.
    """
    own, times = np.zeros(len(parent), np.int64), np.zeros(len(parent), np.int64)
    np.add.at(own, leaf, ns)
    np.add.at(times, leaf, count)
    kept = _largest(parent, own)
    place = np.cumsum(kept) - 1
    # The nearest remaining ancestor gets the time of a node that is left out; ancestors are never smaller.
    home = np.where(kept, place, -1)
    for node in np.flatnonzero(~kept).tolist():
        home[node] = home[parent[node]]
    rows = np.flatnonzero(kept)
    owned, counted = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    np.add.at(owned, home, own)
    np.add.at(counted, home, times)
    up = np.where(parent[rows] >= 0, home[parent[rows]], -1)
    if np.issubdtype(paint.dtype, np.floating):
        paints = _shades(up, home[leaf], ns, paint.astype(np.float64), plain)
    else:
        paints = _paints(up, home[leaf], ns, paint.astype(np.int64), plain, mixed)
    return Tree(id, title, levels, note, up, text[rows], paints, owned, counted)


def _largest(parent: I64, own: I64) -> np.ndarray:
    """Mask of the nodes to keep: those with the most time in and below them."""
    if len(parent) <= MOST_NODES:
        return np.ones(len(parent), bool)
    total = own.tolist()
    ancestors = parent.tolist()
    for node in range(len(ancestors) - 1, 0, -1):
        total[ancestors[node]] += total[node]
    # Among equal ones the first are kept: a parent comes before its children.
    kept = np.zeros(len(parent), bool)
    kept[np.argsort(-np.array(total), kind="stable")[:MOST_NODES]] = True
    return kept


def _paints(parent: I64, leaf: I64, ns: I64, paint: I64, plain: int, mixed: int | None) -> I64:
    kinds, code = np.unique(paint, return_inverse=True)
    if not len(kinds):
        return np.full(len(parent), plain)
    time = np.zeros((len(parent), len(kinds)))
    np.add.at(time, (leaf, code.reshape(-1)), ns)
    for node, above in zip(range(len(parent) - 1, 0, -1), parent[:0:-1].tolist(), strict=True):
        time[above] += time[node]
    whole, most = time.sum(axis=1), kinds[time.argmax(axis=1)]
    if mixed is not None:
        most = np.where(time.max(axis=1) >= ONE_KIND * whole, most, mixed)
    return np.where(whole > 0, most, plain)


def _shades(parent: I64, leaf: I64, ns: I64, share: F64, plain: int) -> I64:
    known = np.isfinite(share)
    time = np.zeros((len(parent), 2))
    np.add.at(time, leaf[known], np.stack([ns[known], ns[known] * share[known]], axis=1))
    for node, above in zip(range(len(parent) - 1, 0, -1), parent[:0:-1].tolist(), strict=True):
        time[above] += time[node]
    whole, gained = time.T
    mean = np.divide(gained, whole, out=np.zeros(len(parent)), where=whole > 0)
    shade = BY_GAIN[(mean * len(BY_GAIN)).astype(np.int64).clip(0, len(BY_GAIN) - 1)]
    return np.where(whole > 0, shade, plain)
