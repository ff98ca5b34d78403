"""Generated jobs of tensor × pipeline × data parallel ranks, as digests, and what each step takes exactly.

The exact times come from a separate simulation: every rank is a list of work and exchanges, a pointer per rank goes
through its list, and an exchange ends when the last of its members has come and it is moved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.plain_digest import labels_of, plain_digest
from gpuprof.ranks.digest_data import BACKWARD, FORWARD, LOCAL, OPTIMIZER, OTHER, Digest, previous
from gpuprof.timeline.collectives.collectives import KINDS
from gpuprof.timeline.collectives.point_to_point import p2p_text
from gpuprof.tracefile.trace import ABSENT

MS, US = 1_000_000, 1_000
_ALL_REDUCE, _REDUCE_SCATTER, _SEND = (KINDS.index(k) for k in ("all_reduce", "reduce_scatter", "send_recv"))


@dataclass(frozen=True, slots=True)
class Shape:
    """The job."""

    tensor: int = 2
    pipeline: int = 2
    data: int = 2
    layers: int = 2
    """Layers of each stage."""
    micro_batches: int = 4
    steps: int = 4
    gpus: int = 4
    """GPUs of a host."""

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data

    def place(self, rank: int) -> tuple[int, int, int]:
        """(stage, data rank, tensor rank); consecutive ranks are one tensor group."""
        return rank // (self.tensor * self.data), rank // self.tensor % self.data, rank % self.tensor

    def rank(self, stage: int, data: int, tensor: int) -> int:
        return (stage * self.data + data) * self.tensor + tensor


@dataclass(frozen=True, slots=True)
class Slow:
    """What is slow: work of these ranks, or the exchanges of this group, takes this many times as long."""

    ranks: frozenset[int] = frozenset()
    group: str = ""
    factor: float = 1.0
    uneven: float = 0.0
    """Spread of the length of micro-batches, alike for all ranks that work on one; 0: all equal."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One row: the work before it, and the exchange that follows; the end of a step exchanges with no one."""

    work_ns: int
    work: int
    group: str
    kind: int
    bytes: int
    size: int
    transfer_ns: int
    step: int


def programs(shape: Shape, slow: Slow = Slow(), seed: int = 0, jitter: float = 0.01) -> list[list[Piece]]:
    """What every rank does; the same seed gives the same job except for what is slow."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(slow.uneven * rng.standard_normal((shape.steps, shape.data, shape.micro_batches)))
    return [
        _program(shape, slow, rank, lengths, np.random.default_rng([seed, rank]), jitter) for rank in range(shape.ranks)
    ]


def _program(
    shape: Shape, slow: Slow, rank: int, lengths: np.ndarray, rng: np.random.Generator, jitter: float
) -> list[Piece]:
    stage, data, tensor = shape.place(rank)
    factor = slow.factor if rank in slow.ranks else 1.0
    made: list[Piece] = []

    def add(ns: float, work: int, group: str, kind: int, size: int, moved: int, transfer: int, step: int) -> None:
        took = round(ns * factor * (1 + jitter * rng.standard_normal()))
        far = slow.factor if group and group == slow.group else 1.0
        made.append(Piece(max(took, 0), work, group, kind, moved, size, round(transfer * far), step))

    def layer(ns: float, work: int, step: int) -> None:
        if shape.tensor > 1:
            add(ns, work, f"tp{stage}.{data}", _ALL_REDUCE, shape.tensor, 8 << 20, 40 * US, step)
        else:
            add(ns, work, "", -1, 1, 0, 0, step)

    for step in range(shape.steps):
        for forward in (True, False):
            work, per_layer = (FORWARD, 1 * MS) if forward else (BACKWARD, 2 * MS)
            before, after = (stage - 1, stage + 1) if forward else (stage + 1, stage - 1)
            for m in range(shape.micro_batches):
                if 0 <= before < shape.pipeline:
                    source = shape.rank(before, data, tensor)
                    add(5 * US, OTHER, p2p_text(source, rank), _SEND, 2, 4 << 20, 30 * US, step)
                for _ in range(shape.layers):
                    layer(per_layer * lengths[step, data, m], work, step)
                if 0 <= after < shape.pipeline:
                    target = shape.rank(after, data, tensor)
                    add(5 * US, OTHER, p2p_text(rank, target), _SEND, 2, 4 << 20, 30 * US, step)
        if shape.data > 1:
            add(20 * US, OTHER, f"dp{stage}.{tensor}", _REDUCE_SCATTER, shape.data, 64 << 20, 500 * US, step)
        if shape.ranks > 1:
            add(20 * US, OTHER, "all", _ALL_REDUCE, shape.ranks, 4, 20 * US, step)
        add(1 * MS, OPTIMIZER, "", -1, 1, 0, 0, step)
    return made


@dataclass(frozen=True, slots=True)
class Times:
    """Per rank and piece its arrival and end, per step its finish."""

    arrival: list[list[int]]
    end: list[list[int]]
    finish: list[int]

    @property
    def step_ns(self) -> float:
        """The usual step."""
        return float(np.median(np.diff(self.finish)))


def simulate(made: list[list[Piece]]) -> Times:
    """The exact times."""
    at, free = [0] * len(made), [0] * len(made)
    arrival: list[list[int]] = [[] for _ in made]
    end: list[list[int]] = [[] for _ in made]
    waiting: dict[str, list[int]] = {}
    ready = list(range(len(made)))
    finish = [0] * (max(piece.step for piece in made[0]) + 1)
    while ready:
        rank = ready.pop()
        while at[rank] < len(made[rank]):
            piece = made[rank][at[rank]]
            arrival[rank].append(free[rank] + piece.work_ns)
            come = [rank] if not piece.group else waiting.setdefault(piece.group, [])
            if piece.group:
                come.append(rank)
            if len(come) < piece.size:
                break
            done = max(arrival[one][-1] for one in come) + piece.transfer_ns
            for one in come:
                end[one].append(done)
                free[one] = done
                finish[piece.step] = max(finish[piece.step], done)
                at[one] += 1
                if one != rank:
                    ready.append(one)
            waiting.pop(piece.group, None)
    if waiting:
        raise ValueError("the generated job waits for itself")
    return Times(arrival, end, finish)


def digests(
    shape: Shape, made: list[list[Piece]], times: Times, clock: Callable[[int], int] = lambda rank: 0
) -> list[Digest]:
    """Digests as the recordings of these ranks would give; `clock`: how far a rank's clock is ahead."""
    return [_digest(shape, r, one, times.arrival[r], times.end[r], clock(r)) for r, one in enumerate(made)]


def _digest(shape: Shape, rank: int, made: list[Piece], arrival: list[int], end: list[int], clock: int) -> Digest:
    n = len(made)
    groups: dict[str, int] = {}
    group = np.array([groups.setdefault(p.group, len(groups)) if p.group else LOCAL for p in made], np.int32)
    shared = group != LOCAL
    work_ns = np.array([p.work_ns for p in made])
    ways = [
        [(previous(n - 1) if row == 0 else row - 1, p.work_ns if p.group else 0, p.work)] for row, p in enumerate(made)
    ]
    anchor = np.full(n, -np.inf)
    anchor[0] = ways[0][0][1]
    step = np.array([p.step for p in made], np.int32)
    first = np.searchsorted(step, np.arange(shape.steps))
    return plain_digest(
        rank=rank, world_size=shape.ranks, gpus=shape.gpus, begin_ns=clock, groups=tuple(groups),
        labels=labels_of(ways, np.where(shared, 0, work_ns), np.array([p.work for p in made])),
        step_begin_ns=np.array([0 if k == 0 else end[k - 1] for k in first.tolist()], np.float64), group=group,
        kind=np.array([p.kind for p in made]), bytes=np.array([p.bytes for p in made]),
        size=np.array([p.size for p in made]), number=np.full(n, ABSENT), step=step,
        start_ns=np.array(arrival) + clock, end_ns=np.array(end) + clock, anchor_ns=anchor,
    )  # fmt: skip
