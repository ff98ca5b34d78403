"""Small training programs of one stream whose time on the host is what counts."""

from __future__ import annotations

from gpuprof.costs.roofline import roofline
from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.stack import stack_of
from gpuprof.replay.build import build
from gpuprof.replay.profiler_fit import Removal, remove_profiler
from gpuprof.replay.sensitivity import sensitivities
from gpuprof.replay.simulate import ROUNDS, simulate
from gpuprof.timeline.timeline import build_timeline
from gpuprof.tracefile.read import read_recording
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder

US, MS = 1_000, 1_000_000


LATENCY, GAP = 2 * US, 1 * US


class Program:
    """A training loop on one host thread and one stream, with its clock; all times in ns."""

    def __init__(self) -> None:
        self.trace = TraceBuilder()
        self.now, self.free, self.tid, self.sequence, self.steps = 1 * MS, 0, MAIN, 0, 0

    def python(self, ns: int) -> None:
        self.now += ns

    def op(self, name: str, ns: int = 20 * US, *, kernel: str = "", work_ns: int = 3 * US, dims=None) -> None:
        """An op that launches one kernel near its end (or none)."""
        start, after = self.now, min(ns // 2, 10 * US)
        if kernel:
            self.launch(kernel, (start + ns - after - min(ns // 4, 5 * US), start + ns - after), work_ns)
        self.trace.op(name, start, start + ns, self.tid, "cpu_op", **{"Input Dims": dims or []})
        self.now = start + ns

    def launch(self, kernel: str, call: tuple[int, int], work_ns: int, cat: str = "kernel", **where) -> None:
        begin = max(call[1] + LATENCY, self.free + GAP)
        self.free = begin + work_ns
        self.trace.launch(kernel, call, (begin, self.free), tid=self.tid, cat=cat, **where)

    def mm(self, ns: int = 20 * US, work_ns: int = 3 * US) -> None:
        self.op("aten::mm", ns, kernel="nvjet_hsh_128x64", work_ns=work_ns, dims=[[128, 512], [512, 512]])

    def elementwise(self, work_ns: int = 3 * US) -> None:
        self.op("aten::mul", kernel="void at::native::vectorized_elementwise_kernel<4>", work_ns=work_ns)

    def item(self) -> None:
        """`.item()`: a copy to the host, and a wait for all that was launched."""
        start = self.now
        self.launch("Memcpy DtoH (Device -> Pinned)", (start + 2 * US, start + 6 * US), 1 * US, "gpu_memcpy", bytes=4)
        end = max(start + 10 * US, self.free + 3 * US)
        self.trace.call("cudaStreamSynchronize", start + 8 * US, end)
        self.trace.op("aten::_local_scalar_dense", start + 1 * US, end + 1 * US)
        self.trace.op("aten::item", start, end + 2 * US)
        self.now = end + 2 * US

    def synchronize(self) -> None:
        start, self.now = self.now, max(self.now + 5 * US, self.free + 5 * US)
        self.trace.call("cudaDeviceSynchronize", start, self.now)

    def backward(self, layer, layers: int) -> None:
        """The engine's thread works off the layers while the main one stands still."""
        self.tid = AUTOGRAD
        self.now += 5 * US
        for _ in range(layers):
            start = self.now
            self.sequence += 1
            layer()
            self.trace.op(
                "autograd::engine::evaluate_function: MmBackward0",
                start - 1 * US,
                self.now + 1 * US,
                AUTOGRAD,
                "cpu_op",
                **{"Sequence number": self.sequence, "Fwd thread id": 1},
            )
            self.now += 2 * US
        self.tid = MAIN
        self.now += 5 * US

    def step(self, body) -> None:
        start = self.now
        body()
        self.steps += 1
        self.trace.step(self.steps, start, self.now)
        self.now += 1 * US

    def case(self, tmp_path) -> Case:
        """The recording as it is: the profiler of these programs costs nothing."""
        return case_of(self.trace.write(tmp_path / "trace.json"), as_recorded=True)


def case_of(path, *, ms: float | None = None, as_recorded: bool = False) -> Case:
    """Everything that findings look at; ms: an unprofiled step that was measured."""
    trace = read_recording(str(path)).trace
    assert trace is not None
    timeline = build_timeline(trace)
    assert timeline is not None
    graph = build(timeline)
    if as_recorded:
        step = simulate(graph, ROUNDS).step_ns
        removal = Removal(graph, step, step, step, True, 0.0, 1.0, graph, graph)
    else:
        removal = remove_profiler(graph, ms * 1e6 if ms else None)
    return Case(
        timeline=timeline,
        origin_ns=timeline.window[0],
        removal=removal,
        sensitivities=sensitivities(removal.graph),
        roofline=roofline(timeline),
        run=None,
        stack=stack_of(trace, None),
    )


def only(module, case: Case, key: str = ""):
    found = [p for p in module.find(case) if p.key == key]
    assert len(found) == 1, f"{module.PAGE.id}: {[p.title for p in found]}"
    return found[0]
