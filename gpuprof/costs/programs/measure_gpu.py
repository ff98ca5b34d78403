"""Measures the first GPU and its CPU; run as a script under the user's own Python with torch.

Imports nothing from gpuprof, which that Python may not have. Prints one line of JSON, or on stderr why it cannot.
"""

from __future__ import annotations

import datetime
import json
import statistics
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Convention, Elements, Rounds


ROUNDS: Convention[Rounds] = 5
"""Rounds of each measurement; the best rate counts, since a ceiling is what can be reached."""
MATRIX_SIDE: Convention[Elements] = 8192
"""Side of the matrices: large enough that everything around the matmul costs less than 1 %."""


def best_seconds(torch, work, repeats):
    """Smallest mean time, s, of `repeats` runs of `work` over ROUNDS rounds, measured with events on the device."""
    work()
    torch.cuda.synchronize()
    seconds = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(repeats):
            work()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3 / repeats)
    return min(seconds)


def matmul_flops(torch, dtype, size, repeats):
    """FLOP/s of a square matmul of random numbers: zeros draw less power and run faster."""
    left, right = (torch.randn(size, size, device="cuda").to(dtype) for _ in range(2))
    out = torch.empty(size, size, device="cuda", dtype=dtype)
    return 2.0 * size**3 / best_seconds(torch, lambda: torch.mm(left, right, out=out), repeats)


def copy_bytes_per_s(torch, free_bytes):
    """Bytes read and written a second by a copy far larger than any cache."""
    size = min(1 << 30, free_bytes // 8)
    source, to = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    return 2.0 * size / best_seconds(torch, lambda: to.copy_(source), 10)


def link_bytes_per_s(torch):
    """Bytes a second from pinned host memory to the device."""
    size = 256 << 20
    source, to = torch.empty(size, dtype=torch.uint8).pin_memory(), torch.empty(size, dtype=torch.uint8, device="cuda")
    return size / best_seconds(torch, lambda: to.copy_(source, non_blocking=True), 5)


def launch_ns(torch):
    """CPU time of a small op, ns, in batches that the launch queue takes without blocking."""
    x = torch.ones(16, device="cuda")
    times = []
    for _ in range(20):
        torch.cuda.synchronize()
        begin = time.perf_counter_ns()
        for _ in range(400):
            x.add_(1)
        times.append((time.perf_counter_ns() - begin) / 400)
    return statistics.median(times)


def host_loop_ns():
    """CPU time of one iteration of a plain loop, ns."""
    times = []
    for _ in range(ROUNDS):
        value, turns = 1, 300_000
        begin = time.perf_counter_ns()
        for i in range(turns):
            value = (value * 3 + i) & 0xFFFF
        times.append((time.perf_counter_ns() - begin) / turns)
    return min(times)


def all_flops(torch, size):
    """dtype → FLOP/s, for the formats that this GPU multiplies."""
    rates = {"fp16": matmul_flops(torch, torch.float16, size, 20)}
    if torch.cuda.get_device_capability()[0] >= 8 or torch.version.hip:
        rates["bf16"] = matmul_flops(torch, torch.bfloat16, size, 20)
        torch.backends.cuda.matmul.allow_tf32 = True
        if not torch.version.hip:
            rates["tf32"] = matmul_flops(torch, torch.float32, size, 10)
    torch.backends.cuda.matmul.allow_tf32 = False
    rates["fp32"] = matmul_flops(torch, torch.float32, size // 2, 10)
    return rates


def main():
    try:
        import torch
    except ImportError:
        return "it has no torch"
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    try:
        free, _ = torch.cuda.mem_get_info()
        size = MATRIX_SIDE if free > 4 << 30 else MATRIX_SIDE // 2
        properties = torch.cuda.get_device_properties(0)
        with torch.no_grad():
            result = {
                "device_name": torch.cuda.get_device_name(0),
                "memory_bytes": properties.total_memory,
                "flops": all_flops(torch, size),
                "memory_bytes_per_s": copy_bytes_per_s(torch, free),
                "link_bytes_per_s": link_bytes_per_s(torch),
                "launch_ns": launch_ns(torch),
                "host_loop_ns": host_loop_ns(),
                "taken": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
                "torch": torch.__version__,
            }
    except RuntimeError as error:  # raised by torch if the GPU is full or busy
        return str(error).strip().splitlines()[0]
    print(json.dumps(result))
    return None


if __name__ == "__main__":
    sys.exit(main())
