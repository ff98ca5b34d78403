"""Random programs for the replay's oracle, whose traces show each constant of the machine."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from helpers.make_trace import AUTOGRAD, MAIN
from helpers.replay_oracle import (
    LOADER,
    SECOND,
    UNBOUNDED,
    Backward,
    Call,
    Cpu,
    GraphLaunch,
    Instruction,
    Launch,
    Machine,
    Op,
    Program,
    Record,
    Sync,
    Wait,
    run,
)


@dataclass(frozen=True, slots=True)
class Case:
    """A program, the machine that it runs on, and whether its trace has synchronisation records."""

    machine: Machine
    program: Program
    records: bool


Choose = Callable[[int, int], int]
"""A random whole number between two, both included: the only source of randomness."""


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
            # Unrecorded time may be a wait for anything, so everything that it does is recorded from the start.
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
        """A pass begins and ends with an op: nothing else in a trace shows when autograd's thread had the turn."""
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
