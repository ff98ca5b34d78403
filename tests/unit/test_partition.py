"""The partition of the device's time in hand-made traces."""

from __future__ import annotations

from helpers.make_trace import TraceBuilder
from helpers.present import present

import gpuprof
from gpuprof.tracefile.kineto.reader import read_kineto


def diagnose(path, **options):
    return gpuprof.diagnose(read_kineto(path, path.stat().st_size, small_bytes=1 << 28), **options)


def test_two_gpus_of_one_process_are_each_half_idle(tmp_path):
    """Two GPUs that take turns: together always busy, each idle half of the time (other tools say 0 %)."""
    trace = TraceBuilder(gpus=2).step(1, 0, 10_000)
    for i in range(10):
        start = 1000 * i
        trace.launch("gemm", (start, start + 10), (start, start + 1000), device=i % 2)
    diagnosis = diagnose(trace.write(tmp_path / "two.json"))
    assert [(d.device, d.compute_ns, d.idle_ns) for d in diagnosis.devices] == [
        (0, 5000, 5000),
        (1, 5000, 5000),
    ]
    assert diagnosis.phases[0].busy_ns == 10_000


def test_precedence_on_one_device(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    trace.gpu("gemm", 100, 300)
    trace.gpu("ncclDevKernel_AllReduce", 200, 500, stream=20)
    trace.gpu("Memcpy HtoD (Pinned -> Device)", 400, 700, stream=21, cat="gpu_memcpy", bytes=1)
    trace.gpu("Memset (Device)", 650, 660, cat="gpu_memset")
    (device,) = diagnose(trace.write(tmp_path / "t.json")).devices
    assert (device.compute_ns, device.communication_ns, device.copy_ns, device.idle_ns) == (
        200,
        200,
        200,
        400,
    )
    assert device.streams == 3


def test_work_that_crosses_the_window(tmp_path):
    """What runs past the end is carried out, what was launched before the window is carried in; both are clipped."""
    trace = TraceBuilder()
    trace.launch("early", (0, 10), (900, 1100))
    trace.step(1, 1000, 2000)
    trace.launch("inside", (1200, 1210), (1300, 1400))
    trace.launch("late", (1900, 1910), (1950, 2450))
    (device,) = diagnose(trace.write(tmp_path / "t.json")).devices
    assert (device.carry_in_ns, device.carry_out_ns) == (100, 450)
    assert device.busy_ns == 100 + 100 + 50


def test_zero_and_negative_durations_take_no_time(tmp_path):
    trace = TraceBuilder().step(1, 0, 1000)
    trace.launch("gemm", (0, 5), (100, 200))
    trace.launch("gemm", (10, 15), (300, 300))
    trace.launch("gemm", (20, 25), (600, 400))
    diagnosis = diagnose(trace.write(tmp_path / "t.json"))
    (device,) = diagnosis.devices
    assert (device.compute_ns, device.idle_ns) == (100, 900)
    assert present(diagnosis.kernels).count == 3
    assert "negative_durations" in {issue.id for issue in diagnosis.quality.issues}
    assert [g.ns for g in present(diagnosis.gaps).largest] == [800, 100]
