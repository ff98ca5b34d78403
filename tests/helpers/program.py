"""A small training program that is written down as a recording while it runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.result.run_model import Run
from helpers.case import case_of
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder

US, MS, GB = 1_000, 1_000_000, 1 << 30

BF16, FLOAT = "c10::BFloat16", "float"
PLAIN = "void at::native::vectorized_elementwise_kernel<4>"
MATMUL = "nvjet_sm90_tst_128x128_64x6_2x1_v_bz_TNT"
GRID = [132, 8, 1]

OP = 20 * US
"""CPU time of an op, its launch included."""
SHORT = 3 * US
"""A kernel of a launch-bound program."""
LATENCY, GAP = 2 * US, 1 * US
"""From a launch to the earliest start of its kernel, and between two kernels of a stream."""


class Program:
    """A training loop: a CPU that runs one thread at a time, and a clock per stream; all times in ns."""

    def __init__(self, memory: int = 140 * GB, *, gradients: bool = True) -> None:
        gpus = [{"id": 0, "name": "NVIDIA H200", "totalGlobalMem": memory, "numSms": 132}]
        self.trace = TraceBuilder(deviceProperties=gpus)
        self.now, self.sequence, self.steps, self.tid = 1 * MS, 0, 0, MAIN
        self.gradients = gradients
        """Whether autograd records: ops of the forward pass have sequence numbers."""
        self.free: dict[int, int] = {}
        """Stream → end of what was launched on it."""

    @property
    def idle_at(self) -> int:
        """When the GPU has finished everything that was launched."""
        return max(self.free.values(), default=0)

    def numbered(self) -> dict[str, int]:
        """The arguments of a new op of the forward pass (a checkpoint's repeated one too)."""
        if not self.gradients:
            return {}
        self.sequence += 1
        return {"Sequence number": self.sequence, "Fwd thread id": 0}

    # -- what the host does

    def python(self, ns: int) -> None:
        self.now += ns

    def op(
        self, name: str, kernel: str = "", gpu: int = 2 * US, dims=(), types=(), inner=(), host: int = OP, grid=GRID,
        **more,
    ) -> None:  # fmt: skip
        """An op that launches one kernel near its end (or none); `inner`: names of the ops inside of it."""
        start, call = self.now, self.now + host - min(host // 2, 10 * US)
        if kernel:
            self.launch(kernel, (call, call + min(host // 5, 4 * US)), gpu, grid=grid)
        numbers = self.numbered() if self.tid == MAIN else {}
        arguments: dict[str, Any] = {"Input Dims": dims, "Input type": list(types), **numbers, **more}
        for depth, one in enumerate((name, *inner)):
            self.trace.op(one, start + depth * US, start + host - depth * US, self.tid, **arguments)
        self.now = start + host

    def launch(
        self, kernel: str, call: tuple[int, int], gpu: int, stream: int = 7, cat: str = "kernel", **where
    ) -> int:
        """Work of `gpu` ns on a stream; when it begins."""
        begin = max(call[1] + LATENCY, self.free.get(stream, 0) + GAP)
        self.free[stream] = begin + gpu
        where = {"grid": GRID, "block": [128, 1, 1], **where} if cat == "kernel" else where
        self.trace.launch(kernel, call, (begin, begin + gpu), tid=self.tid, cat=cat, stream=stream, **where)
        return begin

    def mm(self, m: int, k: int, n: int, gpu: int = 2 * US, type: str = BF16, kernel: str = MATMUL) -> None:
        self.op("aten::mm", kernel, gpu, [[m, k], [k, n]], [type, type])

    def small_mm(self, host: int = OP, gpu: int = SHORT) -> None:
        """A matmul whose kernel is short by default, with shapes that do not show its format."""
        self.op("aten::mm", "nvjet_hsh_128x64", gpu, [[128, 512], [512, 512]], host=host)

    def elementwise(self, gpu: int = SHORT) -> None:
        """An op without recorded shapes."""
        self.op("aten::mul", PLAIN, gpu)

    def linear(self, m: int, k: int, n: int, gpu: int = 2 * US, type: str = BF16, kernel: str = MATMUL) -> None:
        self.op("aten::linear", kernel, gpu, [[1, m, k], [n, k], []], [type, type, ""])

    def plain(self, name: str, shape: list[int], *others, gpu: int = 2 * US, type: str = BF16) -> None:
        shapes = [shape, *others]
        self.op(f"aten::{name}", PLAIN, gpu, shapes, [type if shape else "Scalar" for shape in shapes])

    def cast(self, shape: list[int], source: str, target: str, gpu: int = 2 * US) -> None:
        """`.to()` another format; the copy inside names both formats."""
        start = self.now
        self.op("aten::copy_", PLAIN, gpu, [shape, shape, []], [target, source, "Scalar"], host=OP - 2 * US)
        self.now = start + OP
        for name in ("aten::_to_copy", "aten::to"):
            arguments: dict[str, Any] = {"Input Dims": [shape], "Sequence number": self.sequence}
            self.trace.op(name, start, self.now, self.tid, **arguments)

    # -- waits

    def synchronize(self, call: str = "cudaStreamSynchronize") -> None:
        """A call that returns when the GPU is done."""
        start, self.now = self.now, max(self.now + 5 * US, self.idle_at + 5 * US)
        self.trace.call(call, start, self.now, self.tid)

    def item(self) -> None:
        """`.item()`: a copy to the host, and a wait for all that was launched."""
        start = self.now
        call = (start + 2 * US, start + 6 * US)
        self.launch("Memcpy DtoH (Device -> Pinned)", call, 1 * US, cat="gpu_memcpy", bytes=4)
        end = max(start + 10 * US, self.idle_at + 3 * US)
        self.trace.call("cudaStreamSynchronize", start + 8 * US, end)
        self.trace.op("aten::_local_scalar_dense", start + 1 * US, end + 1 * US)
        self.trace.op("aten::item", start, end + 2 * US)
        self.now = end + 2 * US

    def nonzero(self, rows: list[int]) -> None:
        """Finds rows, and waits for their count."""
        start = self.now
        self.launch("void at_cuda_detail::cub::DeviceSelect", (start + 2 * US, start + 6 * US), 2 * US)
        self.now = start + 8 * US
        self.synchronize()
        self.now += 2 * US
        self.trace.op("aten::nonzero", start, self.now, self.tid, **{"Input Dims": [rows], "Input type": ["long int"]})

    # -- passes and steps

    def backward(self, layer: Callable[[], object], layers: int) -> None:
        """The autograd engine's thread runs the layers while the main thread blocks."""
        self.tid = AUTOGRAD
        self.now += 5 * US
        for _ in range(layers):
            start = self.now
            layer()
            self.engine(start - 1 * US, self.now + 1 * US)
            self.now += 2 * US
        self.tid = MAIN
        self.now += 5 * US

    def engine(self, start: int, end: int, node: str = "MmBackward0") -> None:
        """The autograd engine's range around what computes a node's gradients."""
        self.sequence += 1
        arguments: dict[str, Any] = {"Sequence number": self.sequence, "Fwd thread id": 1}
        self.trace.op(f"autograd::engine::evaluate_function: {node}", start, end, AUTOGRAD, **arguments)

    def step(self, body: Callable[[], object], sync: bool = False) -> None:
        start = self.now
        body()
        if sync:
            self.synchronize()
        self.steps += 1
        self.trace.step(self.steps, start, self.now)
        self.now += 1 * US

    def case(self, folder: Path, run: Run | None = None) -> Analysis:
        """The analysis that findings get; the profiler costs these programs nothing."""
        folder.mkdir(parents=True, exist_ok=True)
        return case_of(self.trace.write(folder / "trace.json"), as_recorded=True, run=run)


def checkpointed(program: Program) -> None:
    """Forward 2 ms; backward 3 ms, in which the forward's 2 ms are repeated."""
    for _ in range(2):
        program.mm(4096, 4096, 4096, gpu=1 * MS)
    program.tid, start = AUTOGRAD, program.now
    shapes, types = [[4096, 4096], [4096, 4096]], [BF16, BF16]
    for _ in range(2):
        program.op("aten::mm", MATMUL, 1 * MS, shapes, types, **program.numbered())
    for _ in range(3):
        program.op("aten::mm", MATMUL, 1 * MS, shapes, types)
    program.engine(start - US, program.now, "CheckpointFunctionBackward")
    program.tid = MAIN
