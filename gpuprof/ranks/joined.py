"""Joins the digests of all ranks into one job: their clocks, and what each rank exchanges with the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuprof.errors import UnreadableTrace
from gpuprof.ranks.assemble import assemble
from gpuprof.ranks.digest_data import Digest
from gpuprof.ranks.job import JobRows
from gpuprof.timeline.collectives.collectives import CollectiveColumns, Collectives
from gpuprof.timeline.collectives.matching import Matched, match


@dataclass(frozen=True, slots=True)
class Exchanged:
    """Summary of one rank's collectives."""

    late_share: float
    """Share of the collectives with a wait in which this rank arrived last; NaN: no rank waited."""
    transfer_ns: int | None
    """Transfers of a step, overlapped or not; None if none is known."""
    offset_ns: int | None
    to_first_clock_ns: int | None


@dataclass(frozen=True, slots=True)
class Joined:
    """All ranks as one job."""

    job: JobRows
    exchanged: tuple[Exchanged, ...]
    """[ranks]"""


def joined(digests: Sequence[Digest]) -> Joined:
    """Joins digests, in order of rank.
    Raises UnreadableTrace, one line, if two recordings share no collective.
    """
    # Clocks are compared as Unix times if all recordings give theirs.
    known = all(one.clock_ns for one in digests)
    clocks = [one.clock_ns if known else 0 for one in digests]
    found = [_collectives(one, clock) for one, clock in zip(digests, clocks, strict=True)]
    expected = [d.rows.expected_ns[one.columns.row].astype(float) for d, one in zip(digests, found, strict=True)]
    matched = match(found, expected)
    if not matched.collectives:
        first, second = (one.source.rsplit("/", 1)[-1] for one in digests[:2])
        raise UnreadableTrace(
            f"{first} and {second} share no collective: they are not ranks of one training, or were recorded at"
            " different times; give one of them"
        )
    exchanged = tuple(_exchanged(matched, i, one, clocks) for i, one in enumerate(found))
    return Joined(assemble(digests, matched, found), exchanged)


def _exchanged(matched: Matched, i: int, found: Collectives, clocks_ns: Sequence[int]) -> Exchanged:
    """`clocks_ns`: Unix time of each recording's time 0; all 0 if one of them is not known."""
    waited, inside = int(matched.waited_for[i].sum()), found.columns.step >= 0
    transfer, steps = matched.transfer_ns[i][inside], len(np.unique(found.columns.step[inside]))
    return Exchanged(
        int(matched.last[i].sum()) / waited if waited else float("nan"),
        round(float(np.nansum(transfer)) / steps) if steps and not np.isnan(transfer).all() else None,
        (offset := matched.offset_ns[i]),
        None if offset is None and not clocks_ns[i] else clocks_ns[i] - clocks_ns[0] - (offset or 0),
    )


def _collectives(digest: Digest, clock_ns: int) -> Collectives:
    """The shared rows in the form that matching needs; times from `clock_ns`."""
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
