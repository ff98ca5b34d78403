"""A digest: one rank's part in the job, in less than 1 MB.
Its rows are the rank's synchronisation points, ordered so that each depends only on earlier ones: collectives, sends
and receives, which other ranks share, and its own marks (the end of a step on the CPU and on each stream). Between two
rows is the time that the rank needs from the end of one to its arrival at the other:

    arrival(row) = max over labels of (end(predecessor) + lag)

A digest needs no other rank's recording, because waiting for peers is removed only in the joint replay.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuprof.tracefile.trace import U8
from gpuprof.units import Code, Convention, Entries, Version

Floats = NDArray[np.floating]
Ints = NDArray[np.integer]

FORMAT_VERSION: Convention[Version] = 2
LABELS: Convention[Entries] = 4
"""Predecessors kept per row. `fit` is the resulting error of a digest's replay against its whole graph."""
WORK = ("forward", "backward", "optimizer", "other")
"""Kinds of work that a lag consists of; `other` is data, communication calls and the time between steps."""
FORWARD, BACKWARD, OPTIMIZER, OTHER = range(len(WORK))
NO_ROW: Convention[Code] = -1
LOCAL: Convention[Code] = -1
"""Group of a mark that no other rank shares."""


@dataclass(frozen=True, slots=True)
class Ways:
    """For each row LABELS paths to its arrival, as matrices [rows, LABELS], and the marks' own time."""

    pred: Ints
    """Row whose end the arrival depends on; `previous(row)`: in the window's previous round; NO_ROW: unused."""
    lag_ns: Floats
    """Longest time from there to the arrival."""
    own_ns: Floats
    """[rows] Time that the row takes on this rank alone: a mark's last kernel. 0 for shared rows."""


@dataclass(frozen=True, slots=True)
class Labels(Ways):
    """The same, with the kinds of work in each lag."""

    shares: U8
    """[rows, LABELS, WORK] What the lag consists of, in 255ths."""
    own_work: U8
    """[rows] Index into WORK."""


Row = TypeVar("Row", int, Ints)


def previous(row: Row) -> Row:
    """Encodes a row of the previous round in `Ways.pred`; its own inverse."""
    return -2 - row


@dataclass(frozen=True, slots=True)
class Rows:
    """Columns of one length, one row per synchronisation point."""

    group: Ints
    """Index into `Digest.groups`; LOCAL for marks."""
    kind: Ints
    """Index into `collectives.KINDS`; for marks -1 for the end of a step on the CPU, -2 - k for that of stream k."""
    dtype: Ints
    """Index into `Digest.dtypes`."""
    bytes: Ints
    size: Ints
    """Ranks of the group; ABSENT where not recorded."""
    number: Ints
    """The recorded sequence number of the group; ABSENT where not recorded."""
    step: Ints
    """Step of this recording, from 0; -1 outside of the window: such rows are used only for matching."""
    start_ns: Ints
    end_ns: Ints
    """On the rank's own clock, from `Digest.clock_ns`."""
    expected_ns: Floats
    """Expected duration of the transfer, from the message size and the link."""
    anchor_ns: Floats
    """Earliest arrival in the recorded round because of work under way when the recording began, from
    `Digest.begin_ns`; -inf if there was none."""

    def __len__(self) -> int:
        return len(self.group)


@dataclass(frozen=True, slots=True)
class Doing:
    """One kind of work of a rank, per step, profiler cost removed."""

    resource: str
    phase: str
    what: str
    """The op, or Python outside of ops; on the device the kernels' category."""
    ns: float
    frame: str | None
    """The line of Python of its longest stretch, and its position in the rank's window."""
    start_ns: int
    longest_ns: int


@dataclass(frozen=True, slots=True)
class Own:
    """The rank's own diagnosis, profiler cost removed."""

    bound: str | None
    cause: str | None
    low: float
    """80 % interval of a step, as shares of it."""
    high: float


@dataclass(frozen=True, slots=True)
class Digest:
    """One rank."""

    source: str
    """Path of the recording as it was given."""
    rank: int | None
    world_size: int | None
    host: str | None
    """Name of the machine; if None, ranks are split into hosts by `gpus`."""
    gpus: int
    """GPUs that the recording lists."""
    gpu: str | None
    clock_ns: int
    """Unix time of the recording's time 0; 0 where not recorded."""
    begin_ns: int
    """Start of the window on the recording's clock."""
    step_begin_ns: Floats
    """Start of each step, from `begin_ns`."""
    looped: bool
    """Whether the steps are consecutive; else each is a separate sample and is replayed alone."""
    groups: tuple[str, ...]
    dtypes: tuple[str, ...]
    rows: Rows
    recorded: Ways
    unprofiled: Labels
    """The same without the profiler's cost."""
    removed_ns: Floats
    """[rows, LABELS] Profiler cost removed from `unprofiled.lag_ns`, at the rank's own CPU pace."""
    host_pace: float
    fit: float
    """Error of the digest's replay against its whole graph's, as a share of the window."""
    own: Own
    doings: tuple[Doing, ...]
    notes: tuple[tuple[str, str], ...] = ()
    """(id, sentence) about the recording."""


_NO_WAYS = (np.empty((0, LABELS), np.int32), np.empty((0, LABELS), np.float32), np.empty(0, np.float32))
_NO_LABELS = Labels(*_NO_WAYS, np.empty((0, LABELS, len(WORK)), np.uint8), np.empty(0, np.uint8))
_NONE: Any = np.empty(0, np.int64)
_NO_ROWS = Rows(*(_NONE for _ in fields(Rows)))


def without_rows(digest: Digest) -> Digest:
    """The digest with empty columns."""
    return replace(digest, rows=_NO_ROWS, recorded=Ways(*_NO_WAYS), unprofiled=_NO_LABELS, removed_ns=_NO_LABELS.lag_ns)
