"""The replay's oracle: programs of host threads and GPU streams, run by a simulator that is slow and plain.

A program is data: steps of the main thread, with operators, launches, copies, events, waits and synchronisations in
them, passes of autograd's thread, and maybe a second thread with streams of its own. `run` executes it on a `Machine`
by doing what the hardware does, one instruction after another, in Python integers. `oracle_trace` puts what happened
into a Kineto trace, `random_programs` makes programs. A program run again with a faster resource gives what the replay
of its trace must predict.

It shares no code with gpuprof. All times are whole ns; all durations are even, so that half of each is whole too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from helpers.make_trace import AUTOGRAD, MAIN

SECOND = 300
"""The thread next to the main one, with streams of its own."""
UNBOUNDED = 1024
"""Items in a launch queue that is never full here: no program has this many."""
LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"

# ---- what a program consists of


@dataclass(frozen=True, slots=True)
class Machine:
    """The constants of a host and its GPU."""

    launch_own_ns: int
    latency_ns: int
    """From the end of a call's own work to the earliest start of what it launches."""
    gap_ns: int
    """From the end of one kernel or copy to the earliest start of the next on its stream."""
    event_gap_ns: int
    """From the end of awaited work on another stream to the earliest start."""
    queue_items: int
    """Most items of a stream that are launched and have not ended."""
    sync_own_ns: int
    sync_return_ns: int
    copy_own_ns: int
    """What the call of a copy that blocks does before the copy may start."""
    copy_return_ns: int
    record_own_ns: int
    wait_own_ns: int
    graph_own_ns: int


@dataclass(frozen=True, slots=True)
class Cpu:
    """The thread works."""

    ns: int


@dataclass(frozen=True, slots=True)
class Call:
    """A call that is nothing but work of the host (cudaMalloc)."""

    name: str
    ns: int


@dataclass(frozen=True, slots=True)
class Launch:
    """`kind`: compute, communication, copy or memset. A blocking copy is from pageable memory."""

    stream: int
    ns: int
    kind: str = "compute"
    blocking: bool = False
    api: str = "cudaLaunchKernel"


@dataclass(frozen=True, slots=True)
class GraphLaunch:
    """A CUDA graph: one call, kernels as (gap before it, duration); the first has no gap of its own."""

    stream: int
    kernels: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Record:
    stream: int
    event: int


@dataclass(frozen=True, slots=True)
class Wait:
    """What is pushed to `stream` from now on starts after the event."""

    stream: int
    event: int


@dataclass(frozen=True, slots=True)
class Sync:
    """Waits for an event, else for a stream, else for the device."""

    stream: int | None = None
    event: int | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """An operator around its body; `kind` cpu_op or user_annotation."""

    name: str
    body: tuple[Instruction, ...]
    kind: str = "cpu_op"


@dataclass(frozen=True, slots=True)
class Backward:
    """The main thread hands over to autograd's, and stalls until that has done the body."""

    body: tuple[Instruction, ...]


Instruction = Cpu | Call | Launch | GraphLaunch | Record | Wait | Sync | Op | Backward


@dataclass(frozen=True, slots=True)
class Program:
    steps: tuple[tuple[Instruction, ...], ...]
    second: tuple[Instruction, ...] = ()


@dataclass(frozen=True, slots=True)
class Rates:
    """Factors on the durations of each resource."""

    host: Fraction = Fraction(1)
    """Host time and own costs of calls, but not the input's."""
    input: Fraction = Fraction(1)
    """Host time in the data loader."""
    transfer: Fraction = Fraction(1)
    """Copies between host and device."""
    communication: Fraction = Fraction(1)
    device: Fraction = Fraction(1)
    """Kernels that do not communicate, and sets of memory."""


UNCHANGED = Rates()


# ---- what happened


@dataclass(frozen=True, slots=True)
class HostSpan:
    thread: int
    category: str
    name: str
    start: int
    end: int
    correlation: int = 0


@dataclass(slots=True)
class Work:
    """An item of a stream."""

    stream: int
    kind: str
    name: str
    start: int
    end: int
    correlation: int
    within_graph: bool = False
    """Whether it is a kernel of a graph other than its first."""


@dataclass(frozen=True, slots=True)
class SyncRecord:
    """CUPTI's record of a call that waits, if it writes one."""

    name: str
    start: int
    end: int
    correlation: int
    stream: int = -1
    wait_stream: int = -1
    wait_correlation: int = -1


@dataclass(slots=True)
class Executed:
    """A run: its spans, GPU work in the order of its launches, and the ends of the steps."""

    host: list[HostSpan] = field(default_factory=list)
    work: list[Work] = field(default_factory=list)
    records: list[SyncRecord] = field(default_factory=list)
    step_end: list[int] = field(default_factory=list)
    thread_end: list[int] = field(default_factory=list)


def run(program: Program, machine: Machine, rates: Rates = UNCHANGED) -> Executed:
    """Executes a program from time 0: always the thread that is furthest behind does its next instruction."""
    done = Executed()
    gpu = _Gpu(machine, done)
    threads = [_Thread(MAIN, gpu, rates), _Thread(SECOND, gpu, rates)]
    waiting = {0: threads[0].steps(program.steps), 1: threads[1].body(program.second)}
    while waiting:
        k = min(waiting, key=lambda i: threads[i].now)
        if next(waiting[k], None) is None:
            del waiting[k]
    done.thread_end = [t.now for t in threads]
    return done


class _Gpu:
    """Streams are lists of work. All that work waits for was pushed before it, so its start is known at once."""

    def __init__(self, machine: Machine, done: Executed) -> None:
        self.machine = machine
        self.done = done
        self.streams: dict[int, list[Work]] = {}
        self.queued: dict[int, list[Work]] = {}
        """What takes a place in the queue until it has ended: of a graph, which takes one, the last kernel."""
        self.awaited: dict[int, list[Work]] = {}
        """What the next item of each stream has to wait for."""
        self.events: dict[int, tuple[Work | None, int, int]] = {}
        """Event → the work that it stands for, its stream, and the correlation of the call that recorded it."""
        self.calls = 0

    def room_at(self, stream: int, t: int) -> int:
        """When the queue has room for one more item, no earlier than t."""
        queue = self.queued.get(stream, [])
        if len(queue) < self.machine.queue_items:
            return t
        return max(t, queue[-self.machine.queue_items].end)

    def push(self, stream: int, launched: int, ns: int, kind: str, name: str, correlation: int) -> Work:
        before = self.streams.setdefault(stream, [])
        starts = [launched + self.machine.latency_ns]
        if before:
            starts.append(before[-1].end + self.machine.gap_ns)
        starts += [work.end + self.machine.event_gap_ns for work in self.awaited.pop(stream, [])]
        work = Work(stream, kind, name, max(starts), max(starts) + ns, correlation)
        self.queued.setdefault(stream, []).append(work)
        self._append(work)
        return work

    def push_behind(self, first: Work, gap: int, ns: int, name: str) -> None:
        """A further kernel of the graph whose last one so far is the last of the stream."""
        start = self.streams[first.stream][-1].end + gap
        work = Work(first.stream, "compute", name, start, start + ns, first.correlation, within_graph=True)
        self.queued[first.stream][-1] = work
        self._append(work)

    def _append(self, work: Work) -> None:
        self.streams[work.stream].append(work)
        self.done.work.append(work)

    def last(self, stream: int) -> Work | None:
        return self.streams[stream][-1] if self.streams.get(stream) else None


class _Thread:
    """A host thread and its clock. Its methods yield the clock before every instruction."""

    def __init__(self, thread: int, gpu: _Gpu, rates: Rates) -> None:
        self.now = 0
        self.thread = thread
        self.gpu = gpu
        self.rates = rates
        self.loading = False

    def steps(self, steps: Iterable[tuple[Instruction, ...]]) -> Iterator[int]:
        for number, body in enumerate(steps):
            yield from self._op(Op(f"ProfilerStep#{number}", body, "user_annotation"))
            self.gpu.done.step_end.append(self.now)

    def body(self, body: Iterable[Instruction]) -> Iterator[int]:
        for instruction in body:
            yield self.now
            if isinstance(instruction, Op):
                yield from self._op(instruction)
            elif isinstance(instruction, Backward):
                self.thread = AUTOGRAD
                yield from self.body(instruction.body)
                self.thread = MAIN
            elif isinstance(instruction, Cpu):
                self.now += self._own(instruction.ns)
            else:
                self._call(instruction)

    def _op(self, op: Op) -> Iterator[int]:
        start, thread = self.now, self.thread
        place = len(self.gpu.done.host)
        self.loading = self.loading or op.name == LOADER
        yield from self.body(op.body)
        self.loading = self.loading and op.name != LOADER
        # Before what lies in it: ids of ops are given out as they begin.
        self.gpu.done.host.insert(place, HostSpan(thread, op.kind, op.name, start, self.now))

    def _call(self, call: Instruction) -> None:
        gpu, machine = self.gpu, self.gpu.machine
        gpu.calls += 1
        start, number = self.now, gpu.calls
        name = type(call).__name__
        if isinstance(call, Call):
            name = call.name
            self.now += self._own(call.ns)
        elif isinstance(call, Launch):
            name = {"copy": "cudaMemcpyAsync", "memset": "cudaMemsetAsync"}.get(call.kind, call.api)
            t_call = gpu.room_at(call.stream, start)
            ns = _scaled(call.ns, self._rate_of(call.kind))
            # What a copy that blocks does on the host is part of the transfer.
            own = (
                _scaled(machine.copy_own_ns, self.rates.transfer) if call.blocking else self._own(machine.launch_own_ns)
            )
            launched = t_call + own
            work = gpu.push(call.stream, launched, ns, call.kind, _work_name(call), number)
            self.now = max(launched, work.end + machine.copy_return_ns) if call.blocking else launched
        elif isinstance(call, GraphLaunch):
            name = "cudaGraphLaunch"
            t_call = gpu.room_at(call.stream, start)
            kernels = [(gap, _scaled(ns, self.rates.device)) for gap, ns in call.kernels]
            self.now = t_call + self._own(machine.graph_own_ns)
            first = gpu.push(call.stream, self.now, kernels[0][1], "compute", "gemm_graph", number)
            for gap, ns in kernels[1:]:
                gpu.push_behind(first, gap, ns, "gemm_graph")
        elif isinstance(call, Record):
            name = "cudaEventRecord"
            gpu.events[call.event] = (gpu.last(call.stream), call.stream, number)
            self.now += self._own(machine.record_own_ns)
        elif isinstance(call, Wait):
            name = "cudaStreamWaitEvent"
            work, stream, recorded = gpu.events[call.event]
            if work is not None:
                gpu.awaited.setdefault(call.stream, []).append(work)
            self.now += self._own(machine.wait_own_ns)
            self._record("Stream Wait Event", start, number, call.stream, stream, recorded)
        elif isinstance(call, Sync):
            name = self._sync(call, start, number)
        self._span("cuda_runtime", name, start, number)

    def _sync(self, sync: Sync, start: int, number: int) -> str:
        gpu, machine = self.gpu, self.gpu.machine
        stream = recorded = -1
        if sync.event is not None:
            work, stream, recorded = gpu.events[sync.event]
            awaited = [work]
        elif sync.stream is not None:
            awaited = [gpu.last(sync.stream)]
        else:
            awaited = [gpu.last(s) for s in gpu.streams]
        ends = [work.end + machine.sync_return_ns for work in awaited if work is not None]
        self.now = max([start + self._own(machine.sync_own_ns), *ends])
        if sync.event is not None:
            self._record("Event Sync", start, number, -1, stream, recorded)
            return "cudaEventSynchronize"
        if sync.stream is not None:
            self._record("Stream Sync", start, number, sync.stream)
            return "cudaStreamSynchronize"
        self._record("Context Sync", start, number)
        return "cudaDeviceSynchronize"

    def _own(self, ns: int) -> int:
        return _scaled(ns, self.rates.input if self.loading else self.rates.host)

    def _rate_of(self, kind: str) -> Fraction:
        return {"copy": self.rates.transfer, "communication": self.rates.communication}.get(kind, self.rates.device)

    def _span(self, category: str, name: str, start: int, correlation: int = 0) -> None:
        self.gpu.done.host.append(HostSpan(self.thread, category, name, start, self.now, correlation))

    def _record(self, name: str, start: int, number: int, *waits: int) -> None:
        self.gpu.done.records.append(SyncRecord(name, start, self.now, number, *waits))


def _scaled(ns: int, rate: Fraction) -> int:
    scaled = ns * rate
    assert scaled.denominator == 1, "durations are to stay whole"
    return int(scaled)


def _work_name(launch: Launch) -> str:
    if launch.kind == "copy":
        return "Memcpy DtoH (Device -> Pageable)" if launch.blocking else "Memcpy HtoD (Pinned -> Device)"
    names = {"communication": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "memset": "Memset (Device)"}
    return names.get(launch.kind, "gemm_kernel")
