"""Sends and receives: between which two ranks, and which of them a kernel performs.

PyTorch records a send with the rank that it goes to (`Dst Rank`) and a receive with the rank that it comes from (`Src
Rank`), each in a `record_param_comms` of its own. A kernel launched inside one has its arguments. Of a batch
(`batch_isend_irecv`, what pipeline schedules use for a send together with a receive) the kernel is launched later, when
the batch ends: it has no arguments, and performs the sends and receives that its thread announced since the last batch
(ProcessGroupNCCL: `startCoalescing`, `endCoalescing`; pytorch/pytorch#194693).
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from gpuprof.tracefile.trace import I32, I64, Trace

P2P = "p2p"
COMMS = "record_param_comms"
_TEXT = re.compile(P2P + r" (\d+)(<?>)(\d+)")

Arguments = dict[str, Any]
"""What PyTorch records of a collective, a send or a receive."""


def p2p_text(source: int, destination: int) -> str:
    """The group of the sends from one rank to another and of their receives."""
    return f"{P2P} {source}>{destination}"


def exchange_text(one: int, other: int) -> str:
    """The group of the kernels with which two ranks send to each other at the same time."""
    return f"{P2P} {min(one, other)}<>{max(one, other)}"


def p2p_pair(text: str) -> tuple[int, int] | None:
    """(sender, receiver) of such a group, or of an exchange the smaller and the larger rank; None for other groups."""
    match = _TEXT.fullmatch(text)
    return (int(match[1]), int(match[3])) if match else None


def is_exchange(text: str) -> bool:
    """Whether both ranks of the pair send."""
    match = _TEXT.fullmatch(text)
    return match is not None and match[2] == "<>"


def pair_text(rank: int | None, said: Iterable[Arguments]) -> str | None:
    """The group of what a rank sends and receives in one kernel; None if more than one other rank takes part."""
    to, from_ = set(), set()
    for one in said:
        to.add(one.get("Dst Rank"))
        from_.add(one.get("Src Rank"))
    to -= {None, rank}
    from_ -= {None, rank}
    peers = to | from_
    if rank is None or len(peers) != 1:
        return None
    peer = peers.pop()
    if not isinstance(peer, int) or isinstance(peer, bool) or peer < 0:
        return None
    if to and from_:
        return exchange_text(rank, peer)
    return p2p_text(rank, peer) if to else p2p_text(peer, rank)


def batched(
    trace: Trace, announced: Sequence[int], launching: I64, bare: I64, thread: I32, begun_ns: I64
) -> dict[int, list[int]]:
    """Per kernel without arguments, by its index in `bare`, the ops of the sends and receives that it performs.

    `announced`: rows of ops that record a send or receive; `launching`: rows of ops that launched a kernel themselves;
    `thread`, `begun_ns`: of the calls that launched the bare kernels.
    """
    ops = trace.ops
    waiting = np.setdiff1d(np.array(announced, np.int64), launching)
    found: dict[int, list[int]] = {}
    for one in np.unique(thread).tolist():
        mine = waiting[ops.thread[waiting] == one]
        mine = mine[np.argsort(ops.start_ns[mine], kind="stable")]
        starts = ops.start_ns[mine].tolist()
        kernels = np.flatnonzero(thread == one)
        last = None
        for k in kernels[np.argsort(begun_ns[kernels], kind="stable")].tolist():
            moment = int(begun_ns[k])
            low = 0 if last is None else bisect_left(starts, last)
            rows = mine[low : bisect_right(starts, moment)].tolist()
            if rows:
                found[int(bare[k])] = rows
            last = moment
    return found
