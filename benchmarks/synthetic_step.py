"""One training step as a profiler sees it: ops that nest, the calls they make, and the GPU work those start.

A step is recorded once and written many times. So times are kept as boundaries, each with what it costs to
get there from the one before: scaling the costs moves every event and breaks no nesting. And ids are kept as
places in counters, so that the next step continues where this one ended.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from benchmarks.kernels import BYTES

MAIN, AUTOGRAD, PROFILER = (513, 513), (513, 575), (-1, 0)
"""Threads as (pid, tid)."""
COMPUTE, COPY = 7, 20
"""Streams of device 0."""
MULTIPROCESSORS, FLOPS_PER_NS, BYTES_PER_NS, FLOOR_NS = 132, 600_000, 4_000, 1_000
"""Roughly an H200; no kernel is shorter than the floor."""
CALLBACKS = {
    "cudaLaunchKernel": 211, "cudaLaunchKernelExC": 430, "cuLaunchKernel": 307, "cuLaunchKernelEx": 652,
    "cudaMemcpyAsync": 41, "cudaMemsetAsync": 51, "cudaStreamIsCapturing": 317, "cudaDeviceGetAttribute": 200,
    "cudaDeviceSynchronize": 165,
}  # fmt: skip
"""CUPTI's number of each call."""

Number = tuple[str, int]
"""A number that grows from step to step: the counter it is of, and its place within the step."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a profiler writes down of a tensor."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def of(cls, dtype: str, *shape: int) -> Tensor:
        """A contiguous tensor."""
        return cls(dtype, shape, tuple(math.prod(shape[i + 1 :]) for i in range(len(shape))))

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """What it takes in memory, in bytes."""
        return self.size * BYTES[self.dtype]

    def transposed(self, a: int, b: int) -> Tensor:
        """The same memory with two dimensions exchanged."""
        shape, strides = list(self.shape), list(self.strides)
        shape[a], shape[b], strides[a], strides[b] = shape[b], shape[a], strides[b], strides[a]
        return Tensor(self.dtype, tuple(shape), tuple(strides))


Input = Tensor | Sequence[Tensor] | Sequence[int] | float | None


def described(inputs: Sequence[Input]) -> str:
    """The inputs of an op in the profiler's four parallel lists."""
    concrete, types, strides, dims = [], [], [], []
    for value in inputs:
        text, kind, stride, dim = "", "", [], []
        if isinstance(value, Tensor):
            kind, stride, dim = value.dtype, value.strides, value.shape
        elif isinstance(value, Sequence) and value and isinstance(value[0], Tensor):
            tensors = [item for item in value if isinstance(item, Tensor)]
            kind, stride, dim = "TensorList", [t.strides for t in tensors], [t.shape for t in tensors]
        elif isinstance(value, Sequence):
            text, kind = json.dumps(value), "ScalarList"
        elif value is not None:
            text, kind = str(value), "Scalar"
        concrete.append(text)
        types.append(kind)
        strides.append(stride)
        dims.append(dim)
    columns = {"Concrete Inputs": concrete, "Input type": types, "Input Strides": strides, "Input Dims": dims}
    return "".join(f'"{key}": {json.dumps(column)}, ' for key, column in columns.items())


@dataclass(slots=True)
class Event:
    """One event of a step; `start` and `end` are places among the step's times."""

    phase: str
    category: str
    name: str
    thread: tuple[int, int]
    """pid and tid; for GPU work device and stream."""
    start: int
    end: int = 0
    args: str = ""
    named: list[Number] = field(default_factory=list)
    """The number in the name, or the id of a flow."""
    numbers: list[Number] = field(default_factory=list)
    """The numbers in the arguments, each a `%d`."""


@dataclass(slots=True)
class GpuWork:
    """A kernel, copy or set."""

    stream: int
    launched: int
    """Place at which the launching call ends."""
    ns: int
    varies: bool = True
    """Kernels take longer or shorter from step to step; a copy's arguments name the bandwidth it had."""


class Step:
    """Records a step. Host boundary `i` is place `i + 1` among its times, place 0 being the step's start.

    GPU work `j` starts at place `-2j - 1` and ends at `-2j - 2`, counted from the end, since it is not known
    beforehand how many host boundaries there will be.
    """

    def __init__(self) -> None:
        self.costs_ns: list[int] = []
        self.gpu: list[GpuWork] = []
        self.synchronized = 0
        """Place from which on the host has waited for the GPU."""
        self.counts: Counter[str] = Counter()
        self.sections: dict[str, list[Event]] = {"autograd": [], "main": [], "device": [], "spans": []}
        """Events in the order in which a trace has them: all steps of one section, then all of the next."""
        self._thread = MAIN
        self._launcher: list[Number] = []
        """The External id of the op that is running, if one is."""
        self._recorded = False
        self._tape: list[tuple[str, Number, Number, Tensor, list[Callable[[], None]]]] = []

    # The host

    def tick(self, ns: int) -> int:
        """Let the host spend time; the place at which it is spent."""
        self.costs_ns.append(ns)
        return len(self.costs_ns)

    def number(self, counter: str) -> Number:
        """The next number of a counter."""
        self.counts[counter] += 1
        return counter, self.counts[counter] - 1

    @contextmanager
    def annotation(self, name: str, *named: Number) -> Iterator[None]:
        """A range named by the user or by PyTorch, shown on the GPU too if it launched anything."""
        first = len(self.gpu)
        with self._range("user_annotation", name, '"Record function id": 0, ') as event:
            event.named = list(named)
            yield
        if first < len(self.gpu):
            span = (-2 * first - 1, -2 * len(self.gpu))
            ids, stream = (event.named, event.numbers[:1]), self.gpu[-1].stream
            on_gpu = Event("X", "gpu_user_annotation", name, (0, stream), *span, '"External id": %d', *ids)
            self.sections["spans"].append(on_gpu)

    @contextmanager
    def op(
        self, name: str, *inputs: Input, node: str = "", grad: Tensor | None = None
    ) -> Iterator[list[Callable[[], None]]]:
        """An op. With `node`, autograd records it; what is put on the list it gives runs in its backward."""
        knowledge, known = "", []
        if self._thread == MAIN and not self._recorded:
            knowledge = '"Sequence number": %d, "Fwd thread id": 0, '
            known = [("sequence", self.counts["sequence"])]
        args = f'{knowledge}"Record function id": 0, {described(inputs)}'
        with self._range("cpu_op", name, args, *known) as event:
            backward: list[Callable[[], None]] = []
            outer, self._recorded = self._recorded, self._recorded or bool(node)
            if node and not outer:
                flow, sequence = self.number("fwdbwd"), self.number("sequence")
                grad = grad or next(i for i in inputs if isinstance(i, Tensor))
                self._tape.append((node, sequence, flow, grad, backward))
                self._flow("s", "fwdbwd", flow, event)
            yield backward
            self._recorded = outer

    def leaf(self, name: str, *inputs: Input, node: str = "", grad: Tensor | None = None) -> None:
        """An op that calls nothing."""
        with self.op(name, *inputs, node=node, grad=grad):
            pass

    def backward(self) -> None:
        """Run on autograd's thread what was recorded, last first."""
        self._thread = AUTOGRAD
        while self._tape:
            node, sequence, flow, grad, steps = self._tape.pop()
            with self._evaluated(node, '"Sequence number": %d, "Fwd thread id": 1, ', sequence):
                knowledge = '"Sequence number": %d, "Fwd thread id": 1, "Record function id": 0, '
                with self._range("cpu_op", node, knowledge + described([grad]), sequence) as event:
                    self._flow("f", "fwdbwd", flow, event)
                    for step in steps:
                        step()
            if node == "TBackward0":
                accumulate = "torch::autograd::AccumulateGrad"
                with self._evaluated(accumulate), self.op(accumulate, grad), self.op("aten::detach", grad):
                    self.leaf("detach", grad)
        self._thread = MAIN

    @contextmanager
    def _evaluated(self, node: str, args: str = "", *known: Number) -> Iterator[None]:
        name = f"autograd::engine::evaluate_function: {node}"
        with self._range("cpu_op", name, f'"Record function id": 0, {args}', *known):
            yield

    @contextmanager
    def _range(self, category: str, name: str, args: str, *known: Number) -> Iterator[Event]:
        section = "main" if self._thread == MAIN else "autograd"
        ids = [self.number("external"), *known, self.number(section)]
        args = f'"External id": %d,{args}"Ev Idx": %d'
        event = Event("X", category, name, self._thread, self.tick(1_300), args=args, numbers=ids)
        self.sections[section].append(event)
        outer = self._launcher
        self._launcher = ids[:1] if category == "cpu_op" else []
        yield event
        self._launcher = outer
        event.end = self.tick(600)

    def _flow(self, phase: str, category: str, number: Number, event: Event) -> None:
        section = "device" if category == "ac2g" else "main" if event.thread == MAIN else "autograd"
        flow = Event(phase, category, category, event.thread, event.start, named=[number])
        self.sections[section].append(flow)

    def overhead(self, name: str, ns: int) -> None:
        """Time the profiler took for itself."""
        start = self.tick(200)
        self.sections["device"].append(Event("X", "overhead", name, PROFILER, start, self.tick(ns)))

    # Calls, and the GPU

    def call(self, name: str, ns: int = 500) -> Event:
        """A call of CUDA's runtime or driver that starts nothing."""
        event = self._call(name, ns)
        self.sections["device"].append(event)
        return event

    def _call(self, name: str, ns: int) -> Event:
        external = '"External id": %d,' if self._launcher else ""
        args = f'{external}      "cbid": {CALLBACKS[name]}, "correlation": %d'
        category = "cuda_runtime" if name.startswith("cuda") else "cuda_driver"
        ids = [*self._launcher, self.number("correlation")]
        return Event("X", category, name, self._thread, self.tick(800), self.tick(ns), args, numbers=ids)

    def synchronize(self) -> None:
        """Wait for the GPU; once a step, at its end, so that steps do not depend on one another."""
        event = self.call("cudaDeviceSynchronize", 2_000)
        self._flow("s", "ac2g", event.numbers[-1], event)
        self.synchronized = event.end

    def launch(self, name: str, nbytes: int, flops: int = 0, call: str = "cudaLaunchKernel", block: int = 128) -> None:
        """A kernel that moves this many bytes and does this many operations."""
        ns = FLOOR_NS + max(nbytes // BYTES_PER_NS, flops // FLOPS_PER_NS)
        blocks = max(1, nbytes // (block * 64))
        per_multiprocessor = blocks / MULTIPROCESSORS
        warps = per_multiprocessor * block / 32
        args = (
            f'"registers per thread": {32 + len(name) % 200},      "shared memory": {1024 * (flops > 0)},'
            f'      "blocks per SM": {per_multiprocessor:.6f},      "warps per SM": {warps:.6f},'
            f'      "grid": [{blocks}, 1, 1],      "block": [{block}, 1, 1],'
            f'      "est. achieved occupancy %%": {min(100, round(warps / 64 * 100))}'
        )
        self._start("kernel", name, call, args, ns, COMPUTE)

    def copy(self, name: str, nbytes: int, call: str, stream: int = COMPUTE) -> None:
        """A copy or set of memory."""
        ns = FLOOR_NS + nbytes // (50 if "Pinned" in name else BYTES_PER_NS)
        args = f'"bytes": {nbytes}, "memory bandwidth (GB/s)": {nbytes / ns!r}'
        self._start("gpu_memset" if "Memset" in name else "gpu_memcpy", name, call, args, ns, stream)

    def _start(self, category: str, name: str, call: str, args: str, ns: int, stream: int) -> None:
        event, place = self._call(call, 5_000), -2 * len(self.gpu) - 1
        self.gpu.append(GpuWork(stream, event.end, ns, varies=category == "kernel"))
        queued = '"queued": 0, ' if category == "kernel" else ""
        external = '"External id": %d,' if self._launcher else ""
        args = (
            f'{external}      {queued}"device": 0, "context": 1,'
            f'      "stream": {stream}, "correlation": %d,      {args}'
        )
        work = Event("X", category, name, (0, stream), place, place - 1, args, numbers=event.numbers)
        self.sections["device"].append(work)
        self._flow("f", "ac2g", event.numbers[-1], work)
        self.sections["device"].append(event)
        self._flow("s", "ac2g", event.numbers[-1], event)
