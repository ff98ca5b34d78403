"""Small training programs that are written down as a recording while they run."""

from __future__ import annotations

from dataclasses import replace

from gpuprof.costs.roofline import roofline
from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.run_model import Baseline, Run, RunMemory, Telemetry, Throughput, Work
from gpuprof.diagnosis.stack import stack_of
from gpuprof.replay.build import build
from gpuprof.replay.profiler_fit import remove_profiler
from gpuprof.replay.sensitivity import sensitivities
from gpuprof.timeline.timeline import build_timeline
from gpuprof.tracefile.read import read_recording
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder

US, MS, GB = 1_000, 1_000_000, 1 << 30


BF16, FLOAT = "c10::BFloat16", "float"


OP = 20 * US
"""What an op takes the host, its launch included."""


PLAIN = "void at::native::vectorized_elementwise_kernel<4>"


GRID = [132, 8, 1]


PRODUCT = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT"


class Program:
    """A training loop that is written down as it runs: one host clock, a clock per stream; all times in ns."""

    def __init__(self, memory: int = 140 * GB) -> None:
        gpus = [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": memory, "numSms": 132}]
        self.trace = TraceBuilder(deviceProperties=gpus)
        self.now, self.free, self.sequence, self.steps, self.tid = 1 * MS, {}, 0, 0, MAIN

    def op(
        self, name: str, kernel="", gpu=2 * US, dims=(), types=(), inner=(), host: int = OP, grid=GRID, **more
    ) -> None:
        """An op that launches one kernel in its middle; `inner`: names of ops around that, from the outside in."""
        start = self.now
        if kernel:
            self.launch(kernel, (start + host // 2, start + host // 2 + 4 * US), gpu, grid=grid)
        self.sequence += 1
        arguments = {
            "Input Dims": list(dims),
            "Input type": list(types),
            "Sequence number": self.sequence,
            "Fwd thread id": 0,
            **more,
        }
        for depth, one in enumerate((name, *inner)):
            self.trace.op(one, start + depth * US, start + host - depth * US, self.tid, **arguments)
        self.now += host

    def launch(
        self, kernel: str, call: tuple[int, int], gpu: int, stream: int = 7, cat: str = "kernel", **where
    ) -> int:
        begin = max(call[1] + 2 * US, self.free.get(stream, 0) + 1 * US)
        self.free[stream] = begin + gpu
        where = {"grid": GRID, "block": [128, 1, 1], **where}
        self.trace.launch(kernel, call, (begin, begin + gpu), tid=self.tid, cat=cat, stream=stream, **where)
        return begin

    def mm(self, m: int, k: int, n: int, gpu: int = 2 * US, type: str = BF16, kernel: str = PRODUCT) -> None:
        self.op("aten::mm", kernel, gpu, [[m, k], [k, n]], [type, type])

    def linear(self, m: int, k: int, n: int, gpu: int = 2 * US, type: str = BF16, kernel: str = PRODUCT) -> None:
        self.op("aten::linear", kernel, gpu, [[1, m, k], [n, k], []], [type, type, ""])

    def plain(self, name: str, shape: list[int], *others, gpu: int = 2 * US, type: str = BF16) -> None:
        shapes = [shape, *others]
        self.op(f"aten::{name}", PLAIN, gpu, shapes, [type if shape else "Scalar" for shape in shapes])

    def cast(self, shape: list[int], source: str, target: str, gpu: int = 2 * US) -> None:
        """`.to()` another format: the copy inside says between which."""
        start = self.now
        self.op("aten::copy_", PLAIN, gpu, [shape, shape, []], [target, source, "Scalar"], host=OP - 2 * US)
        self.now = start + OP
        self.trace.op(
            "aten::_to_copy", start, self.now, self.tid, **{"Input Dims": [shape], "Sequence number": self.sequence}
        )
        self.trace.op(
            "aten::to", start, self.now, self.tid, **{"Input Dims": [shape], "Sequence number": self.sequence}
        )

    def synchronize(self) -> None:
        start, self.now = self.now, max(self.now + 5 * US, max(self.free.values(), default=0) + 5 * US)
        self.trace.call("cudaStreamSynchronize", start, self.now, self.tid)

    def nonzero(self, rows: list[int]) -> None:
        """Finds rows, and waits for how many they are."""
        start = self.now
        self.launch("void at_cuda_detail::cub::DeviceSelect", (start + 2 * US, start + 6 * US), 2 * US)
        self.now = start + 8 * US
        self.synchronize()
        self.now += 2 * US
        self.trace.op("aten::nonzero", start, self.now, self.tid, **{"Input Dims": [rows], "Input type": ["long int"]})

    def step(self, body, sync: bool = False) -> None:
        start = self.now
        body()
        if sync:
            self.synchronize()
        self.steps += 1
        self.trace.step(self.steps, start, self.now)
        self.now += 1 * US

    def case(self, tmp_path, run: Run | None = None) -> Case:
        return case_of(self.trace.write(tmp_path / "trace.json"), as_recorded=True, run=run)


def case_of(path, as_recorded: bool = False, run: Run | None = None, ms: float | None = None) -> Case:
    """What findings look at. as_recorded: the profiler cost nothing. ms: a measured unprofiled step."""
    trace = read_recording(str(path)).trace
    assert trace is not None
    timeline = build_timeline(trace)
    assert timeline is not None
    graph = build(timeline)
    roof = roofline(timeline)
    removal = remove_profiler(graph, ms * 1e6 if ms else None)
    if as_recorded:
        removal = replace(removal, graph=graph, fitted=True)
        removal = replace(removal, step_ns=_step(removal.graph))
    return Case(
        timeline=timeline,
        origin_ns=timeline.window[0],
        removal=removal,
        sensitivities=sensitivities(removal.graph, None),
        roofline=roof,
        run=run,
        stack=stack_of(trace, None),
    )


def _step(graph) -> float:
    from gpuprof.replay.simulate import ROUNDS, simulate

    return simulate(graph, ROUNDS).step_ns


def run_of(work: Work | None = None, memory: RunMemory | None = None, telemetry: Telemetry | None = None) -> Run:
    nothing = Baseline(None, None, None, 0, None, 0, None, False)
    return Run(
        path="runs/one", status="finished", exit=None, step_source="optimizer", steps_seen=10, steps_total=None,
        remaining_ns=None, baseline=nothing, after_ns=None, throughput=Throughput(None, None, None),
        work=work or Work(None, None, None, None), model=None, optimizer=None, loader=None,
        memory=memory or RunMemory(None, None, None), telemetry=telemetry, notes=(),
    )  # fmt: skip


def checkpointed(program: Program) -> None:
    """Forward 2 ms; backward 3 ms, in which the forward's 2 ms are repeated."""
    for _ in range(2):
        program.mm(4096, 4096, 4096, gpu=1 * MS)
    program.tid, start = AUTOGRAD, program.now
    for _ in range(2):
        program.op("aten::mm", PRODUCT, 1 * MS, [[4096, 4096], [4096, 4096]], [BF16, BF16], **{"Fwd thread id": 0})
    middle = program.now
    for _ in range(3):
        program.op("aten::mm", PRODUCT, 1 * MS, [[4096, 4096], [4096, 4096]], [BF16, BF16], **{"Sequence number": -1})
    engine: dict = {"Sequence number": 1, "Fwd thread id": 1}
    program.trace.op(
        "autograd::engine::evaluate_function: CheckpointFunctionBackward", start - US, program.now, AUTOGRAD, **engine
    )
    assert middle > start
    program.tid = MAIN
