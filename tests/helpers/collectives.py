"""Collectives as one rank's recording holds them, from a few numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuprof.timeline.collectives.collectives import KINDS, CollectiveColumns, Collectives
from gpuprof.tracefile.trace import ABSENT


def collectives(
    ends_ns: Sequence[int] | np.ndarray,
    took_ns: Sequence[int] | np.ndarray,
    group: Sequence[str] | str = "0 [0,1]",
    *,
    size: int = 2,
    kind: str = "all_reduce",
    moved: Sequence[int] | int = 1 << 20,
    numbers: Sequence[int] | None = None,
) -> Collectives:
    """One row per end; `group`: of all or of each."""
    n = len(ends_ns)
    names = [group] * n if isinstance(group, str) else list(group)
    texts = ("float", *dict.fromkeys(names))
    end = np.array(ends_ns, np.int64)
    return Collectives(
        CollectiveColumns(
            row=np.arange(n),
            kind=np.full(n, KINDS.index(kind), np.int32),
            group=np.array([texts.index(name) for name in names], np.int32),
            dtype=np.zeros(n, np.int32),
            group_size=np.full(n, size or ABSENT),
            bytes=np.broadcast_to(np.array(moved, np.int64), n).copy(),
            sequence=np.arange(n),
            recorded_sequence=np.full(n, ABSENT) if numbers is None else np.array(numbers, np.int64),
            step=np.zeros(n, np.int64),
            start_ns=end - np.array(took_ns, np.int64),
            end_ns=end,
        ),
        texts,
    )
