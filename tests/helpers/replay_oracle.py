"""The replay's oracle: random programs of host threads and GPU streams, run by a simulator that is slow and plain.

A program is data: steps of the main thread, with operators, launches, copies, events, waits and synchronisations in
them, passes of autograd's thread, and maybe a second thread with streams of its own. `run` executes it on a `Machine`
by doing what the hardware does, one instruction after the other, in Python integers. `write` puts what happened into a
Kineto trace. Run again with a resource made faster, it says what the replay of that trace has to predict.

It shares no code with gpuprof. All times are whole ns; all durations are even, so that half of each is whole too.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder

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
    """What the durations of each resource are multiplied by."""

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
    """What CUPTI writes, where it does, about a call that waits."""

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


# ---- the trace of a run

_TRACE_CATEGORY = {"copy": "gpu_memcpy", "memset": "gpu_memset"}


def write(executed: Executed, path: Path, *, records: bool, origin: int = 0) -> Path:
    """The Kineto trace of a run that began at `origin`; its GPU events are in the order of `executed.work`."""
    trace = TraceBuilder()
    for number, span in enumerate(executed.host, start=1):
        times = (origin + span.start, origin + span.end)
        if span.category == "cuda_runtime":
            trace.call(span.name, *times, tid=span.thread, correlation=span.correlation)
        else:
            args = {"External id": number, **(_autograd_args(span, number) if span.category == "cpu_op" else {})}
            trace.op(span.name, *times, span.thread, span.category, **args)
    for work in executed.work:
        cat = _TRACE_CATEGORY.get(work.kind, "kernel")
        node = {"graph node id": 1 + work.within_graph} if work.name == "gemm_graph" else {}
        times = (origin + work.start, origin + work.end)
        trace.gpu(work.name, *times, stream=work.stream, correlation=work.correlation, cat=cat, **node)
    for record in executed.records if records else ():
        trace.event(
            ph="X", cat="cuda_sync", name=record.name, pid=0, tid=record.stream, ts=origin + record.start,
            dur=record.end - record.start, args=_sync_args(record),
        )  # fmt: skip
    return trace.write(path)


def _autograd_args(span: HostSpan, number: int) -> dict[str, int]:
    """Ops of a forward pass have a sequence number; nodes of the backward also say whose forward it was."""
    if span.thread == MAIN:
        return {"Sequence number": number, "Fwd thread id": 0}
    if span.thread == AUTOGRAD and ("autograd::" in span.name or span.name.endswith("Backward0")):
        return {"Sequence number": number, "Fwd thread id": 1}
    return {}


def _sync_args(record: SyncRecord) -> dict[str, int | str]:
    args: dict[str, int | str] = {"cuda_sync_kind": record.name, "stream": record.stream, "device": 0}
    if record.name in ("Stream Wait Event", "Event Sync"):
        args["wait_on_stream"] = record.wait_stream
        args["wait_on_cuda_event_record_corr_id"] = record.wait_correlation
    return {**args, "correlation": record.correlation, "context": 1}


# ---- random programs


@dataclass(frozen=True, slots=True)
class Case:
    """A program, the machine that it runs on, and whether its trace has synchronisation records."""

    machine: Machine
    program: Program
    records: bool


Choose = Callable[[int, int], int]
"""A whole number between two, both included: what all randomness is made of."""


def seeded(seed: int) -> Choose:
    return random.Random(seed).randint


def make_case(choose: Choose, grain: int = 100, threads: int = 2) -> Case:
    """A random program whose trace shows each constant of the machine where nothing else hides it.

    Times are some to hundreds of `grain` ns. With `threads` 1 there is only the main thread, and autograd's.
    """
    return _Maker(choose, grain, threads).case()


def showing(
    machine: Machine, streams: Sequence[int], times: int, clear_ns: int, short_ns: int, *,
    device_sync: bool = False, events: int = 0,
) -> list[Instruction]:  # fmt: skip
    """Shows every constant: each launch, wait and synchronisation when it binds, and when it does not.

    Several times and by a wide margin, `clear_ns`, as a recording of real work does. Ends with the last launch on the
    first stream; the numbers of its events (one or two each time, all on that stream) follow `events`.
    """
    m, s = machine, streams[0]
    small_queue = m.queue_items < UNBOUNDED
    filling = m.queue_items + 6 if small_queue else 2
    own = [m.launch_own_ns, m.record_own_ns, m.wait_own_ns, m.sync_own_ns, m.latency_ns]
    long = clear_ns + 4 * sum(own) + filling * (m.launch_own_ns + short_ns)
    ops: list[list[Instruction]] = []
    for _ in range(times):
        ops.append([Launch(s, long), Sync(stream=s), Cpu(short_ns), Sync(stream=s)])
        ops.append([Cpu(clear_ns), Launch(s, short_ns, api="cudaLaunchKernelExC")])
        ops += [[Cpu(clear_ns), Launch(s, short_ns, kind)] for kind in ("copy", "memset")]
        ops.append([Cpu(clear_ns), Launch(s, short_ns, "copy", blocking=True)])
        ops.append([Cpu(clear_ns), Launch(s, long)])
        if len(streams) > 1:
            events += 1
            ops.append([Record(s, events), Wait(streams[1], events), Launch(streams[1], short_ns)])
        # In a full queue every launch waits for a kernel that takes longer than a launch does.
        behind = 4 * m.launch_own_ns if small_queue else short_ns
        ops.append([Launch(s, behind) for _ in range(filling)])
        events += 1
        ops.append([Record(s, events), Sync(event=events), Cpu(short_ns), Sync(event=events)])
        if device_sync:
            ops.append([Launch(s, long), Sync(), Cpu(short_ns), Sync()])
    return [instruction for body in ops for instruction in (Op("aten::mm", tuple(body)), Cpu(short_ns))]


class _Maker:
    """Makes one case. Keeps what a reader of a trace without synchronisation records can know, and stays within it."""

    def __init__(self, choose: Choose, grain: int, threads: int) -> None:
        self.choose = choose
        self.grain = grain
        self.records = bool(choose(0, 1))
        self.two_threads = threads > 1 and choose(0, 3) == 3
        self.graphs = choose(0, 2) == 2
        self.machine = self._machine()
        self.main_streams = [7, 13, 20][: choose(1, 3)]
        self.second_streams = [24, 28][: choose(1, 2)] if self.two_threads and len(self.main_streams) > 1 else [24]
        self.uses_device_sync = not self.two_threads and bool(choose(0, 1))
        self.events = 0
        self.known_events: dict[bool, list[tuple[int, int]]] = {False: [], True: []}
        """Events recorded so far, and their streams, by whether the second thread recorded them."""
        self.last_stream: dict[int, int] = {}
        """The stream that each thread launched on last."""
        self.thread = MAIN

    # chance

    def ns(self, low: int, high: int) -> int:
        return 2 * self.choose(max(low * self.grain // 2, 1), high * self.grain // 2)

    def chance(self, out_of: int) -> bool:
        return self.choose(0, out_of - 1) == out_of - 1

    def pick(self, items: Sequence):
        return items[self.choose(0, len(items) - 1)]

    # a case

    def case(self) -> Case:
        # In the first step only, the host may run ahead of the GPU from step to step.
        shown = self.pick(((4, 0, 0), (2, 2, 2)))[: self.choose(2, 3)]
        steps = tuple((*self._preamble(times), self._op(), *self._body(self.choose(0, 8))) for times in shown)
        second: tuple[Instruction, ...] = ()
        if self.two_threads:
            self.thread = SECOND
            # Where it does nothing on record it may wait for anything, so all that it does is on record from the start.
            second = tuple(
                Op("aten::add", (part,)) if isinstance(part, (Cpu, Sync)) else part
                for part in (self._op(), *self._body(self.choose(0, 12)))
            )
        program = Program(steps, second)
        ends = run(program, self.machine).thread_end
        # What the second thread does after the last step is outside of the window.
        rest = Cpu(max(ends[1] - ends[0], 0) + self.ns(1, 20))
        return Case(self.machine, replace(program, steps=(*steps[:-1], (*steps[-1], rest))), self.records)

    def _machine(self) -> Machine:
        return Machine(
            launch_own_ns=self.ns(20, 60),
            latency_ns=self.ns(1, 120),
            gap_ns=self.ns(2, 20),
            event_gap_ns=self.ns(2, 40),
            queue_items=UNBOUNDED if self.chance(2) else self.choose(4, 16),
            sync_own_ns=self.ns(10, 40),
            sync_return_ns=self.ns(5, 60),
            copy_own_ns=self.ns(20, 200),
            copy_return_ns=self.ns(5, 80),
            record_own_ns=self.ns(5, 20),
            wait_own_ns=self.ns(5, 20),
            graph_own_ns=self.ns(30, 90),
        )

    def _preamble(self, times: int) -> list[Instruction]:
        self.thread, stream, before = MAIN, self.main_streams[0], self.events
        short, sync = self.ns(2, 10), self.uses_device_sync
        body = showing(self.machine, self.main_streams, times, 250 * self.grain, short, device_sync=sync, events=before)
        self.events += times * min(len(self.main_streams), 2)
        self.known_events[False] += [(event, stream) for event in range(before + 1, self.events + 1)]
        if times:
            self.last_stream[MAIN] = stream
        return body

    def _launch(self, stream: int, ns: int, kind: str = "compute", api: str = "cudaLaunchKernel") -> Launch:
        self.last_stream[self.thread] = stream
        return Launch(stream, ns, kind, api=api)

    def _event(self, stream: int) -> list[Instruction]:
        self.events += 1
        self.known_events[self.thread == SECOND].append((self.events, stream))
        return [Record(stream, self.events)]

    @property
    def streams(self) -> list[int]:
        return self.second_streams if self.thread == SECOND else self.main_streams

    # what a thread does

    def _body(self, count: int) -> tuple[Instruction, ...]:
        body: list[Instruction] = []
        for _ in range(count):
            if self.thread == MAIN and self.chance(4):
                body += self._backward() if self.chance(2) else self._loading()
            elif self.chance(4):
                body.append(Cpu(self.ns(1, 200)))
            elif self.chance(6):
                body += self._calls()
            else:
                body.append(self._op())
        return tuple(body)

    def _op(self) -> Op:
        body: list[Instruction] = []
        for k in range(self.choose(1, 3)):
            if not k or self.chance(3):
                body.append(Cpu(self.ns(1, 60)))
            if self.chance(4):
                body.append(Op("aten::mul", (Cpu(self.ns(1, 20)), *self._calls())))
            else:
                body += self._calls()
        if self.chance(2):
            body.append(Cpu(self.ns(1, 60)))
        return Op(self.pick(("aten::linear", "aten::add", "aten::copy_")), tuple(body))

    def _loading(self) -> list[Instruction]:
        return [Op(LOADER, (Cpu(self.ns(1, 400)), Op("aten::stack", (Cpu(self.ns(1, 100)),))))]

    def _backward(self) -> list[Instruction]:
        """A pass begins and ends with an op: in a trace nothing else tells when autograd's thread had the turn."""
        self.thread = AUTOGRAD
        body: list[Instruction] = []
        for k in range(self.choose(1, 4)):
            if k and self.chance(2):
                body.append(Cpu(self.ns(1, 40)))
            node = Op("MmBackward0", (Cpu(self.ns(1, 20)), self._op()))
            body.append(Op("autograd::engine::evaluate_function: MmBackward0", (Cpu(self.ns(1, 20)), node)))
        self.thread = MAIN
        passing: list[Instruction] = [Backward(tuple(body))]
        if self.chance(2):
            return [Op("aten::sum", (Cpu(self.ns(1, 20)),)), *passing]
        return [Op("train_backward", (Cpu(self.ns(1, 20)), *passing), "user_annotation")] if self.chance(2) else passing

    def _calls(self) -> list[Instruction]:
        kinds = [self._burst] * 3 + [self._copy, self._sync, self._wait, self._host_call, self._blocking_copy]
        if self.graphs:
            kinds.append(self._graph)
        return self.pick(kinds)()

    def _burst(self) -> list[Instruction]:
        stream, calls = self.pick(self.streams), []
        kind = "communication" if self.chance(6) else "memset" if self.chance(6) else "compute"
        for _ in range(self.choose(1, 12 if self.chance(3) else 2)):
            if self.chance(3):
                calls.append(Cpu(self.ns(1, 30)))
            api = self.pick(("cudaLaunchKernel", "cudaLaunchKernelExC"))
            calls.append(self._launch(stream, self.ns(10, 40 if self.chance(2) else 400), kind, api))
        return calls

    def _copy(self) -> list[Instruction]:
        """From pinned memory; maybe waited for, as `.item()` does."""
        stream = self.pick(self.streams)
        copy = self._launch(stream, self.ns(10, 300), "copy")
        return [copy, Sync(stream=stream)] if self.chance(2) else [copy]

    def _blocking_copy(self) -> list[Instruction]:
        copy = self._launch(self.pick(self.streams), self.ns(10, 300), "copy")
        return [replace(copy, blocking=True)]

    def _sync(self) -> list[Instruction]:
        if self.uses_device_sync and self.chance(3):
            return [Sync()]
        events = self.known_events[self.thread == SECOND]
        if self.records and events and self.chance(2):
            return [Sync(event=self.pick(events)[0])]
        if self.records:
            return [Sync(stream=self.pick(self.streams))]
        # Without records a trace does not name the stream: it is treated as the one that was launched on.
        stream = self.last_stream.get(self.thread)
        if stream is None:
            return []
        if self.chance(3):
            more = [self._launch(stream, self.ns(10, 200))] if self.chance(2) else []
            return [*self._event(stream), *more, Sync(event=self.events)]
        return [Sync(stream=stream)]

    def _wait(self) -> list[Instruction]:
        if len(self.streams) < 2:
            return []
        source = self.pick(self.streams)
        waiter = self.pick([s for s in self.streams if s != source])
        events = [event for event in self.known_events[self.thread == SECOND] if event[1] != waiter]
        if self.records and events and self.chance(2):
            return [Wait(waiter, self.pick(events)[0]) for _ in range(self.choose(1, 3))]
        calls = [self._launch(source, self.ns(10, 300)), *self._event(source)]
        awaited = self.events
        if self.chance(3):
            calls.append(self._launch(source, self.ns(10, 100)))
        if self.chance(3):
            calls += [self._launch(waiter, self.ns(10, 100)), *self._event(waiter)]
        return [*calls, Wait(waiter, awaited), self._launch(waiter, self.ns(10, 200))]

    def _graph(self) -> list[Instruction]:
        stream = self.pick(self.streams)
        self.last_stream[self.thread] = stream
        rest = [(self.ns(1, 10), self.ns(10, 100)) for _ in range(self.choose(0, 4))]
        return [GraphLaunch(stream, ((0, self.ns(10, 100)), *rest))]

    def _host_call(self) -> list[Instruction]:
        return [Call(self.pick(("cudaMalloc", "cudaGetErrorString", "cudaStreamIsCapturing")), self.ns(1, 150))]
