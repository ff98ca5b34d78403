"""The oracle of `replay_oracle` a second time, as a simulator that only ever knows the present nanosecond."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from helpers.replay_oracle import (
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
)


@dataclass
class Waiting:
    """Work in a stream that has not started."""

    number: int
    ready: int
    ns: int
    gap: int | None
    awaited: list[int]


@dataclass
class TickStream:
    waiting: list[Waiting] = field(default_factory=list)
    done_at: int = -(10**9)
    """When its last kernel or copy ended, or will end."""
    items: list[int] = field(default_factory=list)
    """Of each item that was pushed the work that ends it."""


@dataclass
class Thread:
    todo: list[Instruction | None]
    """None: the end of a step."""
    works: int = 0
    """Until when it works."""
    waits: list[tuple[int, int]] = field(default_factory=list)
    """What its call waits for: the work, and the ns after its end."""


def tick(program: Program, machine: Machine) -> tuple[list[int], list[int]]:
    """Start of every kernel or copy in the order of launches, and the ends of the steps; one ns after the other."""
    clock = Clock(program, machine)
    while clock.runs():
        clock.tick()
    return [clock.start[number] for number in range(clock.count)], clock.step_end


class Clock:
    """The state of a run at one nanosecond, `t`."""

    def __init__(self, program: Program, machine: Machine) -> None:
        lanes = [[*flat(step), None] for step in program.steps]
        self.machine, self.t, self.count = machine, 0, 0
        self.threads = [Thread([i for lane in lanes for i in lane]), Thread(flat(program.second))]
        self.streams: dict[int, TickStream] = defaultdict(TickStream)
        self.start: dict[int, int] = {}
        self.end: dict[int, int] = {}
        self.at_event: dict[int, int | None] = {}
        self.held: dict[int, list[int]] = defaultdict(list)
        self.last: dict[int, int] = {}
        self.step_end: list[int] = []

    def runs(self) -> bool:
        """Whether a thread works or has work, or work waits in a stream."""
        return any(one.todo or one.works > self.t for one in self.threads) or any(
            stream.waiting for stream in self.streams.values()
        )

    def tick(self) -> None:
        """One nanosecond."""
        for stream in self.streams.values():
            while stream.waiting and self._may_start(stream):
                work = stream.waiting.pop(0)
                self.start[work.number], self.end[work.number] = self.t, self.t + work.ns
                stream.done_at = self.t + work.ns
        for thread in self.threads:
            while self._may_run(thread):
                instruction = thread.todo.pop(0)
                thread.works, thread.waits = self.t, []
                self._run(thread, instruction)
        self.t += 1

    def _may_start(self, stream: TickStream) -> bool:
        work = stream.waiting[0]
        after = self.machine.gap_ns if work.gap is None else work.gap
        ready = self.t >= work.ready and self.t >= stream.done_at + after
        return ready and all(self._ended(one, self.machine.event_gap_ns) for one in work.awaited)

    def _may_run(self, thread: Thread) -> bool:
        if self.t < thread.works or not all(self._ended(*wait) for wait in thread.waits) or not thread.todo:
            return False
        first = thread.todo[0]
        return not (isinstance(first, (Launch, GraphLaunch)) and self._is_full(first.stream))

    def _ended(self, work: int, ns: int) -> bool:
        """Whether that work ended so long ago."""
        return work in self.end and self.t >= self.end[work] + ns

    def _is_full(self, stream: int) -> bool:
        return sum(not self._ended(one, 0) for one in self.streams[stream].items) >= self.machine.queue_items

    def _run(self, thread: Thread, i: Instruction | None) -> None:
        m = self.machine
        if i is None:
            self.step_end.append(self.t)
        elif isinstance(i, (Cpu, Call)):
            thread.works += i.ns
        elif isinstance(i, Launch):
            own = m.copy_own_ns if i.blocking else m.launch_own_ns
            number = self._push(i.stream, own, i.ns)
            thread.works += own
            thread.waits = [(number, m.copy_return_ns)] if i.blocking else []
        elif isinstance(i, GraphLaunch):
            thread.works += m.graph_own_ns
            self._push(i.stream, m.graph_own_ns, i.kernels[0][1])
            for gap, ns in i.kernels[1:]:
                self._push(i.stream, m.graph_own_ns, ns, gap)
        elif isinstance(i, Record):
            self.at_event[i.event] = self.last.get(i.stream)
            thread.works += m.record_own_ns
        elif isinstance(i, Wait):
            self.held[i.stream] += [one for one in [self.at_event[i.event]] if one is not None]
            thread.works += m.wait_own_ns
        elif isinstance(i, Sync):
            thread.works += m.sync_own_ns
            thread.waits = [(one, m.sync_return_ns) for one in self._awaited(i) if one is not None]

    def _awaited(self, sync: Sync) -> list[int | None]:
        if sync.event is not None:
            return [self.at_event[sync.event]]
        return [self.last.get(one) for one in ([sync.stream] if sync.stream is not None else list(self.last))]

    def _push(self, stream: int, own_ns: int, ns: int, gap: int | None = None) -> int:
        """Puts work into a stream. gap: ns behind the work before it in its graph, None for what is launched."""
        number, self.count = self.count, self.count + 1
        awaited = self.held.pop(stream, []) if gap is None else []
        ready = self.t + own_ns + self.machine.latency_ns if gap is None else 0
        items = self.streams[stream].items
        self.streams[stream].waiting.append(Waiting(number, ready, ns, gap, awaited))
        if gap is None:
            items.append(number)
        items[-1] = number
        self.last[stream] = number
        return number


def flat(body: tuple[Instruction, ...]) -> list[Instruction | None]:
    """Instructions in the order in which they run; what is an op does not matter to a clock."""
    found: list[Instruction | None] = []
    for instruction in body:
        found += flat(instruction.body) if isinstance(instruction, (Op, Backward)) else [instruction]
    return found
