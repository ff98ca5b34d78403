"""Kernels on other GPUs whose traffic is estimated, or whose work is unknown: a wrong estimate does not make them
slow."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from helpers.make_trace import TraceBuilder
from helpers.timeline import timeline_of

from gpuprof.calibration import projection as projection_calibrated
from gpuprof.costs.hardware import find
from gpuprof.costs.roofline import Roofline, roofline
from gpuprof.costs.split import MEMORY
from gpuprof.projection.changes.batch import grown
from gpuprof.projection.changes.other_gpu import Scaled, scaled_kernels
from gpuprof.projection.sustained_rates import Reach, reach
from gpuprof.timeline.timeline import Timeline

NS = 1_000_000
ALL = 4.276e12 * NS / 1e9 / 4
"""About how many fp32 elements an H200 moves in that time; if each is read and written once, half as many."""
GUESSED, KNOWN = "Swiglu", "aten::silu"


@pytest.fixture(autouse=True)
def _no_saved_measurements(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def recorded(*kernels: tuple[str, str, float]) -> tuple[Timeline, Roofline]:
    """Kernels of NS each: (op or none, kernel, share of the bandwidth according to the op's tensors)."""
    trace, end = TraceBuilder(), NS * (len(kernels) + 1)
    trace.step(0, 0, end)
    for i, (op, name, share) in enumerate(kernels):
        work = (NS * (i + 1), NS * (i + 2))
        if op:
            tensors = 2 if op.startswith(name) else 1  # a compiled kernel's outputs are recorded, too
            dims = {"Input Dims": [[round(share * ALL / 2)]] * tensors, "Input type": ["float"] * tensors}
            trace.op(op, 1000 * i, 1000 * i + 900, **dims)
        trace.launch(name, (1000 * i + 10, 1000 * i + 20), work, grid=[9999, 1, 1], block=[i + 1, 1, 1])
    timeline = timeline_of(trace)
    found = roofline(timeline)
    assert found is not None
    return timeline, found


def an_h200() -> Reach:
    gpu = find("NVIDIA H200")
    assert gpu is not None
    return reach(gpu)


def elsewhere(
    *kernels: tuple[str, str, float], memory: float = 0.5, compute: float = 1.0, clock: float = 1.0
) -> Scaled:
    """Times on an H200 with this many times the bandwidth, the arithmetic and the clock."""
    here = an_h200()
    there = dataclasses.replace(
        here, memory_bytes_per_s=here.memory_bytes_per_s * memory,
        flops={dtype: rate * compute for dtype, rate in here.flops.items()},
        gpu=dataclasses.replace(here.gpu, boost_mhz=(here.gpu.boost_mhz or 0) * clock),
    )  # fmt: skip
    timeline, found = recorded(*kernels)
    return scaled_kernels(timeline, found, here, there, grown(timeline, found, 1.0, None))


def by_squares(reached: float, memory: float = 0.5, clock: float = 1.0) -> float:
    return float(np.hypot(reached / memory, np.sqrt(1 - reached**2) / clock))


@pytest.mark.parametrize("share", [0.02, 0.3, 0.7, 1.5, 3.0])
def test_a_guess_that_is_too_little_or_too_much_is_not_believed(share: float):
    """With half the bandwidth and 1.5 times the clock it is slower, not faster. The estimate is in the interval."""
    found = elsewhere((GUESSED, "_swiglu", share), clock=1.5)
    assert found.factor == pytest.approx([by_squares(projection_calibrated.USUAL_REACH.value, clock=1.5)], rel=0.01)
    believed = by_squares(share if share < 1 else 0.0, clock=1.5)
    assert found.low == pytest.approx([min(believed, found.factor[0])], rel=0.01)
    assert found.high == pytest.approx([2.0], rel=0.01)
    assert found.bound.tolist() == [MEMORY]


@pytest.mark.parametrize("share", [0.93, 1.0, 1.05])
def test_a_guess_that_can_well_be_is_believed(share: float):
    found = elsewhere((GUESSED, "_swiglu", share))
    assert found.factor == pytest.approx([by_squares(min(share, 1.0))], rel=0.01)
    assert found.low == found.factor == found.high


@pytest.mark.parametrize("op", [KNOWN, "_swiglu_3", "library::swiglu"])
@pytest.mark.parametrize("share", [0.1, 0.3, 0.7])
def test_what_is_known_to_be_held_back_stays_so(op: str, share: float):
    """The tensors of torch's ops, compiled kernels and a library's ops are the kernel's."""
    found = elsewhere((op, "_swiglu", share))
    assert found.factor == pytest.approx([by_squares(share)], rel=0.01)
    assert found.low == found.factor == found.high


def test_on_the_same_gpu_all_of_them_stay():
    kernels = ((GUESSED, "_swiglu", 0.1), (GUESSED, "_more", 3.0), ("", "nobody_knows", 0.0), (KNOWN, "silu", 0.3))
    found = elsewhere(*kernels, memory=1.0)
    assert (found.factor == 1).all()


def test_a_short_kernel_may_be_latency_alone():
    timeline, found = recorded((GUESSED, "_swiglu", 0.1))
    gpu = timeline.trace.gpu
    gpu.end_ns[:] = gpu.start_ns + 1_500
    here = an_h200()
    there = dataclasses.replace(here, memory_bytes_per_s=here.memory_bytes_per_s / 2)
    limits = found.ceilings
    assert projection_calibrated.USUAL_REACH.value * (1_500 - limits.launch_floor_ns) < limits.launch_floor_ns
    latency = dataclasses.replace(found.split, latency_ns=np.array([1_500], np.int64))
    found = dataclasses.replace(found, split=latency)
    scaled = scaled_kernels(timeline, found, here, there, grown(timeline, found, 1.0, None))
    assert scaled.factor == pytest.approx([1.0])


def test_unknown_work_goes_with_its_name_then_its_category():
    kernels = [(KNOWN, "silu_kernel", 1.0), (KNOWN, "gelu_kernel", 0.2), ("", "silu_kernel", 0.0)]
    found = elsewhere(*kernels)
    assert found.factor[2] == pytest.approx(found.factor[0])
    assert found.low[2] == 1.0
    assert found.high[2] == pytest.approx(2.0)


def test_unknown_work_without_products_goes_with_the_memory_where_there_is_no_other():
    """Whatever the arithmetic is; the work of a matmul goes with both."""
    found = elsewhere(("", "nobody_knows", 0.0), ("", "nvjet_tst_1", 0.0), compute=0.125)
    assert found.factor == pytest.approx([by_squares(projection_calibrated.USUAL_REACH.value), 4.0])


def test_collectives_stay_as_long_as_they_were():
    found = elsewhere(("", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0.0), compute=0.25)
    assert found.factor.tolist() == [1.0]
