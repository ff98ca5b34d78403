"""GPUs of one process that take turns are distinguished from those that work together."""

from __future__ import annotations

import pytest
from helpers.make_trace import TraceBuilder
from helpers.timeline import timeline_of

from gpuprof.timeline.gpu.gpu_concurrency import take_turns

US = 1_000


def two_gpus(tmp_path, shift: int, second: int = 100 * US):
    """Ten kernels of 100 µs on GPU 0, each with one on GPU 1 that begins `shift` later."""
    trace = TraceBuilder()
    now = 10 * US
    for _ in range(10):
        for device, begin, ns in ((0, now + 10 * US, 100 * US), (1, now + 10 * US + shift, second)):
            trace.launch("kernel", (now, now + 4 * US), (begin, begin + ns), stream=7 + 8 * device, device=device)
        now += 250 * US
    return timeline_of(trace.write(tmp_path / "t.json"))


@pytest.mark.parametrize(
    ("shift", "second", "gpus"),
    [(100, 100, 2), (85, 100, 2), (50, 100, 0), (0, 100, 0), (100, 5, 0)],
    ids=["one after the other", "a little at once", "a pipeline", "together", "one that hardly works"],
)
def test_gpus_take_turns_where_hardly_any_time_both_work(tmp_path, shift: int, second: int, gpus: int):
    assert take_turns(two_gpus(tmp_path, shift * US, second * US)) == gpus
