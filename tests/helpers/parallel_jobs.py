"""Four ranks of tensor, pipeline and sharded data parallel training: exact times, and traces as torch writes them.

Each rank is a list of what its CPU does: launch kernels, begin collectives, sends and batches of them as
ProcessGroupNCCL does, let a stream wait for them, read the loss. `simulate` gives all of it its exact times, without
any of gpuprof's code: streams work in order, a collective ends on all its ranks when the last has begun and the data is
moved. Traces are those of torch 2.13, the jobs those of `scenarios/support/parallel.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from helpers.make_trace import TraceBuilder

MS, US = 1_000_000, 1_000
CALL, LATENCY, GAP, RETURN = 4 * US, 2 * US, 1 * US, 3 * US
RECEIVED = 20 * US
"""Time of a receive once a buffered message has arrived completely."""
OP = 20 * US
"""CPU time of an op."""
COMPUTE, LOSS_COPY = 7, "Memcpy DtoH (Device -> Pinned)"
WORLD, PAIR = 4, 2
LENGTHS = (1.4, 0.6, 1.2, 0.8)
LONG_STAGE = (6 / 7, 8 / 7)
"""Share of a stage's usual work: 8 layers in place of 7 for the last, 6 for the first."""
MICRO_BATCHES = 4


@dataclass(frozen=True)
class Group:
    """A process group; `stream`: the one that its collectives run on."""

    name: str
    described: str
    ranks: tuple[int, ...]
    stream: int


@dataclass(frozen=True)
class Part:
    """A collective, a send or a receive within one kernel."""

    name: str
    elements: int
    peer: int | None = None
    """Of a send or receive."""


@dataclass
class Work:
    """Work on a stream. `after`: work on other streams that has to end before it; `meets`: a key that all ranks of a
    collective share, with their number."""

    rank: int
    stream: int
    launched: int
    ns: int
    after: list[Work]
    meets: tuple[tuple, int] | None = None
    buffered: str = ""
    """`send` or `recv` of a message that fits into NCCL's buffers: the sender does not wait for the receiver."""
    record: int = 0
    """Correlation of the event that was recorded behind it."""
    start: int | None = None
    end: int | None = None


class Rank:
    """What the CPU of one rank does, as a generator that yields where it has to wait for the GPU."""

    def __init__(self, rank: int, clock_ns: int, job: Job) -> None:
        self.rank, self.clock, self.buffered = rank, clock_ns, job.buffered
        self.now = 0
        self.queues: dict[int, list[Work]] = defaultdict(list)
        self.events: list[Callable[[], None]] = []
        self.waits: dict[int, list[Work]] = defaultdict(list)
        self.met: dict[tuple, int] = defaultdict(int)
        self.bounds: list[int] = []
        self.number = 0
        self.trace = TraceBuilder(
            gpus=WORLD, baseTimeNanoseconds=0, distributedInfo={"backend": "nccl", "rank": rank, "world_size": WORLD}
        )
        self.rng, self.jitter = np.random.default_rng([job.seed, rank]), job.jitter

    # -- the CPU

    def op(self, name: str, ns: int, cat: str = "cpu_op", **args) -> None:
        """An op that begins now; what it does comes within it."""
        self.trace.op(name, self.now + self.clock, self.now + ns + self.clock, cat=cat, **args)

    def call(self, name: str, took: int = US) -> int:
        self.number += 1
        start = self.now
        self.now += took
        self.trace.call(name, start + self.clock, self.now + self.clock, correlation=self.number)
        return self.number

    def sleep(self, ns: int) -> None:
        self.now += ns

    def launch(
        self, kernel: str, stream: int, ns: int, meets: tuple[tuple, int] | None = None, cat: str = "kernel", **args
    ) -> Work:
        number = self.call("cudaMemcpyAsync" if cat == "gpu_memcpy" else "cudaLaunchKernelExC", CALL)
        work = Work(self.rank, stream, self.now, ns, self.waits.pop(stream, []), meets)
        self.queues[stream].append(work)

        def drawn() -> None:
            assert work.start is not None and work.end is not None
            times = (work.start + self.clock, work.end + self.clock)
            self.trace.gpu(kernel, *times, device=self.rank, stream=stream, correlation=number, cat=cat, **args)

        self.events.append(drawn)
        return work

    def let_wait(self, stream: int, other: int) -> None:
        """Work launched on a stream from now on waits for what was launched on another."""
        record = self.call("cudaEventRecord")
        self._wait_event(stream, other, record)
        if self.queues[other]:
            self.waits[stream].append(self.queues[other][-1])

    def _wait_event(self, stream: int, other: int, record: int) -> None:
        wait = self.call("cudaStreamWaitEvent")
        self.trace.event(
            ph="X", cat="cuda_sync", name="Stream Wait Event", pid=self.rank, tid=stream,
            ts=self.now + self.clock, dur=0,
            args={
                "cuda_sync_kind": "Stream Wait Event", "stream": stream, "device": self.rank, "wait_on_stream": other,
                "wait_on_cuda_event_record_corr_id": record, "correlation": wait, "context": 1,
            },
        )  # fmt: skip

    # -- what a training does

    def compute(self, name: str, ns: float, backward: bool = False) -> None:
        self.number += 1
        said: dict[str, Any] = {"Sequence number": self.number} | ({"Fwd thread id": 1} if backward else {})
        self.op(name, OP, **said)
        begun = self.now
        self.now += 8 * US
        self.launch("gemm", COMPUTE, max(round(ns * (1 + self.jitter * self.rng.standard_normal())), US))
        self.now = begun + OP

    def collective(self, group: Group, name: str, elements: int, transfer: int, in_place: bool = False) -> Work:
        """`in_place`: on the caller's stream, as torch runs those that it waits for at once."""
        stream = COMPUTE if in_place else group.stream
        begun = self.now
        with_peers = self._said(group, Part(name, elements))
        self.op(f"c10d::{name}_", 60 * US)
        self.now += 4 * US
        self.op("record_param_comms", 50 * US, **with_peers)
        if stream != COMPUTE:
            self.let_wait(stream, COMPUTE)
        self.op(f"nccl:{name}", 20 * US, cat="user_annotation")
        key = (group.ranks, group.name, "all")
        work = self.launch(_KERNEL[name], stream, transfer, self._meet(key, len(group.ranks)), **with_peers)
        work.record = self.call("cudaEventRecord")
        self.now = begun + 60 * US
        return work

    def send_or_receive(self, group: Group, part: Part, transfer: int) -> Work:
        """One by itself: its kernel is launched within record_param_comms."""
        begun = self.now
        said = self._said(group, part)
        self.op(f"c10d::{part.name}", 40 * US)
        self.now += 4 * US
        self.op("record_param_comms", 34 * US, **said)
        self.let_wait(group.stream + 1, COMPUTE)
        work = self.launch(_KERNEL["send"], group.stream + 1, transfer, self._met_by(group, (part,)), **said)
        work.buffered = part.name if self.buffered else ""
        work.record = self.call("cudaEventRecord")
        self.now = begun + 40 * US
        return work

    def batch(self, group: Group, parts: tuple[Part, ...], transfer: int) -> Work:
        """`batch_isend_irecv`: the kernel is launched where the batch ends, without arguments."""
        for part in parts:
            self.op(f"c10d::{part.name}", 12 * US)
            self.now += 2 * US
            self.op("record_param_comms", 9 * US, **self._said(group, part))
            self.now += 10 * US
        begun = self.now
        self.op("nccl:coalesced", 30 * US, cat="user_annotation")
        self.let_wait(group.stream, COMPUTE)
        work = self.launch(_KERNEL["send"], group.stream, transfer, self._met_by(group, parts))
        work.buffered = parts[0].name if self.buffered and len(parts) == 1 else ""
        work.record = self.call("cudaEventRecord")
        self.now = begun + 34 * US
        return work

    def wait(self, work: Work) -> None:
        """`work.wait()`: the stream of the computation waits, the CPU continues."""
        if work.stream == COMPUTE:
            return
        self._wait_event(COMPUTE, work.stream, work.record)
        self.waits[COMPUTE].append(work)

    def read_loss(self) -> Iterator[Work]:
        """`loss.item()`: the CPU waits for the copy."""
        begun = self.now
        copy = self.launch(LOSS_COPY, COMPUTE, 2 * US, cat="gpu_memcpy", bytes=4)
        self.number += 1
        number, called = self.number, self.now
        yield copy
        assert copy.end is not None
        self.now = max(called + US, copy.end + RETURN)
        self.trace.call("cudaStreamSynchronize", called + self.clock, self.now + self.clock, correlation=number)
        self.trace.op("aten::item", begun + self.clock, self.now + self.clock)

    def _meet(self, key: tuple, members: int) -> tuple[tuple, int]:
        self.met[key] += 1
        return (*key, self.met[key]), members

    def _met_by(self, group: Group, parts: tuple[Part, ...]) -> tuple[tuple, int]:
        pair = tuple(sorted({self.rank, *(part.peer for part in parts if part.peer is not None)}))
        assert len(pair) == 2
        return self._meet((pair, group.name, len(parts)), 2)

    def _said(self, group: Group, part: Part) -> dict:
        said = {
            "Collective name": part.name, "In msg nelems": part.elements, "Out msg nelems": part.elements,
            "dtype": "BFloat16", "Group size": len(group.ranks), "In split size": "[]", "Out split size": "[]",
            "Process Group Name": group.name, "Process Group Description": group.described,
            "Process Group Ranks": str(list(group.ranks)),
        }  # fmt: skip
        if part.peer is not None:
            said["Dst Rank" if part.name == "send" else "Src Rank"] = part.peer
        return said


_KERNEL = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_allgather_base": "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "_reduce_scatter_base": "ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    "send": "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)",
}


# -- exact times


def simulate(ranks: list[Rank], programs: list[Iterator[Work]]) -> None:
    """Runs all ranks to their ends. ValueError where they wait for each other forever."""
    blocked: list[Work | None] = [None] * len(ranks)
    done = [False] * len(ranks)
    at: dict[tuple[int, int], int] = defaultdict(int)
    here: dict[tuple, list[Work]] = defaultdict(list)
    while not all(done):
        moved = False
        for r, program in enumerate(programs):
            while not done[r] and (blocked[r] is None or blocked[r].end is not None):  # type: ignore[union-attr]
                blocked[r] = next(program, None)
                done[r] = blocked[r] is None
                moved = True
        while _settle(ranks, at, here):
            moved = True
        if not moved:
            raise ValueError("the generated job waits for itself")
    for rank in ranks:
        for drawn in rank.events:
            drawn()


def _settle(ranks: list[Rank], at: dict[tuple[int, int], int], here: dict[tuple, list[Work]]) -> bool:
    """Gives the next work of each stream its times, if all that it waits for has ended."""
    moved = False
    for rank in ranks:
        for stream, queue in rank.queues.items():
            key = (rank.rank, stream)
            while at[key] < len(queue):
                work = queue[at[key]]
                if work.start is None:
                    before = [queue[at[key] - 1]] if at[key] else []
                    ends = [one.end for one in (*before, *work.after)]
                    if any(end is None for end in ends):
                        break
                    work.start = max([work.launched + LATENCY, *(end + GAP for end in ends if end is not None)])
                    moved = True
                    if work.meets is None:
                        work.end = work.start + work.ns
                    else:
                        here[work.meets[0]].append(work)
                        _meet(here[work.meets[0]], work.meets[1])
                if work.end is None:
                    break
                at[key] += 1
    return moved


def _meet(members: list[Work], count: int) -> None:
    for one in members:
        if one.buffered == "send" and one.end is None and one.start is not None:
            one.end = one.start + one.ns
    if len(members) < count:
        return
    if any(one.buffered for one in members):
        sender, receiver = sorted(members, key=lambda one: one.buffered == "recv")
        assert sender.end is not None and receiver.start is not None
        receiver.end = max(receiver.start, sender.end) + RECEIVED
        return
    end = max(one.start or 0 for one in members) + max(one.ns for one in members)
    for one in members:
        one.end = end


# -- the jobs


@dataclass(frozen=True)
class Job:
    """A layout of `scenarios/support/parallel.py` and what is slow in it."""

    layout: str
    change: str = ""
    """slow_rank | long_stage | uneven | "" """
    steps: int = 4
    """The number of LENGTHS, so that uneven batches are the same work in total."""
    layers: int = 2
    """Of the model, or of each stage."""
    all_batched: bool = False
    """Whether single sends are batches too, as before torch 2.13."""
    buffered: bool = False
    """Whether a message fits into NCCL's buffers."""
    sleep_ns: int = 12 * MS
    slow: int = 1
    forward_ns: int = 1 * MS
    """Of one half of a layer."""
    jitter: float = 0.004
    seed: int = 0

    def length(self, number: int) -> float:
        return LENGTHS[number % len(LENGTHS)] if self.change == "uneven" else 1.0


def _groups(described: str, of: list[tuple[int, ...]], stream: int, first: int) -> dict[int, Group]:
    """Per rank its group; `first`: the number of the first."""
    found = [Group(str(first + i), described, ranks, stream) for i, ranks in enumerate(of)]
    return {rank: group for group in found for rank in group.ranks}


EVERYONE = tuple(range(WORLD))
WORLD_GROUP = Group("0", "default_pg", EVERYONE, 17)
NEIGHBOURS, ACROSS = [(0, 1), (2, 3)], [(0, 2), (1, 3)]
TENSOR = _groups("mesh_tp", NEIGHBOURS, 20, 1)
DATA = _groups("mesh_dp", ACROSS, 24, 3)
STAGES = _groups("mesh_pp", ACROSS, 28, 5)
SHARDS = _groups("mesh_dp_shard", NEIGHBOURS, 34, 7)
COPIES = _groups("mesh_dp_replicate", ACROSS, 38, 9)
ALL_DATA = _groups("mesh_default", [EVERYONE], 42, 11)


def _layer(rank: Rank, tensor: Group | None, ns: float, backward: bool) -> None:
    for part in ("aten::mm", "aten::bmm"):
        rank.compute(part, ns * (2 if backward else 1), backward)
        if tensor is not None:
            rank.wait(rank.collective(tensor, "allreduce", 8 << 20, 80 * US))


def _sharded(rank: Rank, job: Job, step: int, shards: Group, copies: Group | None, tensor: Group | None, place: int):
    """FSDP2: weights of a layer are gathered while the one before computes, gradients scattered behind each."""
    ns = job.forward_ns * job.length(step + place)
    for backward in (False, True):
        gathered = rank.collective(shards, "_allgather_base", 50 << 20, 300 * US)
        scattered = []
        for layer in range(job.layers):
            rank.wait(gathered)
            if layer + 1 < job.layers:
                gathered = rank.collective(shards, "_allgather_base", 50 << 20, 300 * US)
            _layer(rank, tensor, ns, backward)
            if backward:
                scattered.append(rank.collective(shards, "_reduce_scatter_base", 50 << 20, 400 * US))
                if copies is not None:
                    scattered.append(rank.collective(copies, "allreduce", 25 << 20, 300 * US))
        for one in scattered:
            rank.wait(one)


def _pipelined(rank: Rank, job: Job, step: int) -> None:
    """`Schedule1F1B` of two stages: a send goes together with the receive that follows it, where there is one."""
    stage, group, tensor = rank.rank // PAIR, STAGES[rank.rank], TENSOR[rank.rank]
    peer = next(one for one in group.ranks if one != rank.rank)
    share = LONG_STAGE[stage] if job.change == "long_stage" else 1.0
    to, from_ = Part("send", 32 << 20, peer), Part("recv", 32 << 20, peer)

    def run(number: int, backward: bool) -> None:
        for _ in range(job.layers):
            _layer(rank, tensor, job.forward_ns * share * job.length(step + number) / 2, backward)

    def exchange(first: Part, *more: Part) -> Work:
        if more or job.all_batched:
            return rank.batch(group, (first, *more), 250 * US)
        return rank.send_or_receive(group, first, 250 * US)

    count = MICRO_BATCHES
    if stage == 0:
        run(0, False)
        sent = exchange(to)
        run(1, False)
        rank.wait(sent)
        for number in range(count):
            rank.wait(exchange(*((to, from_) if number + 1 < count else (from_,))))
            run(number, True)
            if number + 2 < count:
                run(number + 2, False)
        return
    for number in range(count):
        rank.wait(exchange(*((to, from_) if number else (from_,))))
        run(number, False)
        run(number, True)
    rank.wait(exchange(to))


def _program(rank: Rank, job: Job) -> Iterator[Work]:
    r = rank.rank
    for step in range(job.steps):
        rank.bounds.append(rank.now)
        if job.layout == "tensor_pipeline":
            _pipelined(rank, job, step)
        elif job.layout == "tensor_data":
            _sharded(rank, job, step, DATA[r], None, TENSOR[r], r // PAIR)
        elif job.layout == "hsdp":
            _sharded(rank, job, step, SHARDS[r], COPIES[r], None, r)
        else:
            _sharded(rank, job, step, ALL_DATA[r], None, None, r)
        rank.op("Optimizer.step#AdamW.step", 2 * OP, cat="user_annotation")
        rank.compute("aten::_fused_adamw_", job.forward_ns)
        rank.now += OP
        rank.collective(WORLD_GROUP, "allreduce", 1, 20 * US, in_place=True)
        yield from rank.read_loss()
        if job.change == "slow_rank" and r == job.slow:
            rank.sleep(job.sleep_ns)
    rank.bounds.append(rank.now)


def run(job: Job) -> list[Rank]:
    """All ranks of a job with exact times, on clocks that differ by some ms."""
    clocks = np.random.default_rng(job.seed).integers(0, 5 * MS, WORLD)
    ranks = [Rank(r, 10**9 + int(clocks[r]), job) for r in range(WORLD)]
    simulate(ranks, [_program(rank, job) for rank in ranks])
    for rank in ranks:
        for number, (begin, end) in enumerate(zip(rank.bounds, rank.bounds[1:], strict=False)):
            rank.trace.step(number, begin + rank.clock, end + rank.clock)
    return ranks


def step_ns(ranks: list[Rank]) -> float:
    """The usual step of all: each ends when the last rank is done."""
    ends = np.max([rank.bounds for rank in ranks], axis=0)
    return float(np.median(np.diff(ends)))


def write(ranks: list[Rank], folder: Path) -> list[Path]:
    return [rank.trace.write(folder / f"rank{rank.rank}.json") for rank in ranks]
