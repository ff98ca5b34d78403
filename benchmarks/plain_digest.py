"""Digests of jobs that were generated or that others recorded: what is the same in all of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuprof.ranks.digest_data import LABELS, NO_ROW, WORK, Digest, Floats, Ints, Labels, Own, Rows, Ways

Way = tuple[int, float, int]
"""Row that an arrival depends on, the time from there in ns, and the kind of work that it consists of."""


def labels_of(ways: Sequence[Sequence[Way]], own_ns: Ints, own_work: Ints) -> Labels:
    """At most LABELS ways to each row."""
    n = len(ways)
    pred = np.full((n, LABELS), NO_ROW, np.int32)
    lag, shares = np.zeros((n, LABELS), np.float32), np.zeros((n, LABELS, len(WORK)), np.uint8)
    for row, all_of_it in enumerate(ways):
        for c, (before, ns, what) in enumerate(all_of_it):
            pred[row, c], lag[row, c], shares[row, c, what] = before, ns, 255
    return Labels(pred, lag, own_ns.astype(np.float32), shares, own_work.astype(np.uint8))


def plain_digest(
    *, rank: int, world_size: int, groups: Sequence[str], labels: Labels, step_begin_ns: Floats, group: Ints,
    kind: Ints, bytes: Ints, size: Ints, number: Ints, step: Ints, start_ns: Ints, end_ns: Ints, anchor_ns: Floats,
    gpus: int = 0, begin_ns: int = 0, looped: bool = True,
) -> Digest:  # fmt: skip
    """A digest without a profiler, and so without any cost of one."""
    n = len(group)
    rows = Rows(
        group=group.astype(np.int32), kind=kind.astype(np.int32), dtype=np.zeros(n, np.int32), bytes=bytes, size=size,
        number=number, step=step.astype(np.int32), start_ns=start_ns, end_ns=end_ns,
        expected_ns=np.full(n, np.nan, np.float32), anchor_ns=anchor_ns,
    )  # fmt: skip
    return Digest(
        source=f"rank{rank}.json", rank=rank, world_size=world_size, host=None, gpus=gpus, gpu=None, clock_ns=0,
        begin_ns=begin_ns, step_begin_ns=step_begin_ns, looped=looped, groups=tuple(groups), dtypes=("",), rows=rows,
        recorded=Ways(labels.pred, labels.lag_ns.copy(), labels.own_ns), unprofiled=labels,
        removed_ns=np.zeros((n, LABELS), np.float32), host_pace=1.0, fit=0.0, own=Own(None, None, 0.9, 1.1),
        doings=(),
    )  # fmt: skip
