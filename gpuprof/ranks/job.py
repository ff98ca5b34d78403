"""All digests as one job: their rows, and which rows belong to one collective."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.ranks.digest_data import Digest, Floats, Ints
from gpuprof.tracefile.trace import U8, Mask


@dataclass(frozen=True, slots=True)
class Times:
    """All durations: everything that a what-if changes."""

    lag_ns: Floats
    """[rows, LABELS]"""
    own_ns: Floats
    """[rows]"""
    transfer_ns: Floats
    """[instances] Duration once all present ranks have arrived, including the lateness of missing ranks."""


@dataclass(frozen=True, slots=True)
class JobRows:
    """Rows of all ranks in replay order: by instance, each instance after all that its members depend on.

    An instance is one collective with all its members, a send with its receive, or a mark by itself.
    """

    digests: tuple[Digest, ...]
    """Without their rows, which are below."""
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
    """[rows, LABELS] Row of the job; `previous(row)` and NO_ROW as in a digest."""
    shares: U8
    """[rows, LABELS, WORK] What each lag consists of, in 255ths."""
    own_work: U8
    anchor_ns: Floats
    """On the first rank's clock, from the job's beginning."""
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
    """[instances] Whether all members are present."""
    waited_ns: Floats
    """[instances] Part of the transfer caused by late missing ranks."""
    steps: int
    step_begin_ns: Floats
    looped: bool
    recorded: Times
    unprofiled: Times
    recorded_pred: Ints
    dropped: int
    """Instances that could not be ordered and were split, because rows were matched wrongly."""

    def __len__(self) -> int:
        return len(self.rank)

    @property
    def ranks(self) -> int:
        return len(self.digests)
