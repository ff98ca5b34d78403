"""A program recorded by torch.profiler on the CPU, as if its matrix multiplications had run on a GPU.

Ops, shapes, autograd's numbers and ranges are torch's own; each matmul gets a launch and a kernel of a given length.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable
from pathlib import Path
from typing import Any

H200 = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 150_000_000_000, "numSms": 132}
KERNEL_US = 50.0
MATMULS = ("aten::addmm", "aten::mm", "aten::bmm")


def recorded(path: Path, step: Callable[[int], object], count: int = 3, kernel_us: float = KERNEL_US) -> Path:
    """Records some steps of a program, after one that is not recorded."""
    import torch

    step(0)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as profiler:
        for number in range(1, count + 1):
            with torch.profiler.record_function(f"ProfilerStep#{number}"):
                step(number)
    profiler.export_chrome_trace(str(path))
    document = json.loads(path.read_text())
    document["deviceProperties"] = [H200]
    document["traceEvents"] += _kernels(document["traceEvents"], kernel_us)
    path.write_text(json.dumps(document))
    return path


def _kernels(events: list[dict[str, Any]], kernel_us: float) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    free = 0.0
    ops = sorted((one for one in events if one.get("cat") == "cpu_op"), key=lambda one: float(one["ts"]))
    starts = [float(one["ts"]) for one in ops]
    matmuls = [at for at, one in enumerate(ops) if one["name"] in MATMULS]
    for number, at in enumerate(matmuls, start=1):
        op = ops[at]
        ended = starts[at] + float(op["dur"])
        # After the ops that it calls first, which expand and copy its inputs: the launch is its own.
        following = ops[at + 1 : bisect_left(starts, ended)]
        inner = [float(one["ts"]) + float(one["dur"]) for one in following if one["tid"] == op["tid"]]
        took = 0.5 * (ended - max([starts[at], *(end for end in inner if end < ended)]))
        begun = ended - 1.5 * took
        start = max(free, begun + 2)
        free = start + kernel_us
        where = {"pid": op["pid"], "tid": op["tid"], "ph": "X"}
        made.append({**where, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begun,
                     "dur": took, "args": {"correlation": number}})  # fmt: skip
        made.append({"ph": "X", "cat": "kernel", "name": "nvjet_hsh_128x64", "pid": 0, "tid": 7, "ts": start,
                     "dur": kernel_us, "args": {"correlation": number, "device": 0, "stream": 7,
                                                "grid": [132, 1, 1], "block": [128, 1, 1]}})  # fmt: skip
    return made
