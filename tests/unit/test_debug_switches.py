"""Switches for finding errors, found in the recorded ops and calls; not where a program checks something itself."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.case import only, run_of
from helpers.program import MS, PLAIN, US, Program

from gpuprof.calibration import kernels, latency, slow
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import cudnn_benchmark, debug_switches
from gpuprof.tracefile.run_folder.program import Program as Facts
from gpuprof.tracefile.run_folder.untrusted import read

LAYERS = 20


def check(program: Program, name: str = "aten::isnan") -> None:
    """What anomaly detection does with one gradient: is any of it NaN?"""
    for op in (name, "aten::_is_any_true"):
        program.op(op, PLAIN, 3 * US)
    start = program.now
    program.synchronize()
    program.trace.op("aten::item", start - US, program.now + US, program.tid)
    program.now += 2 * US


def training(folder: Path, name: str = "aten::isnan", host: int = 100 * US) -> Analysis:
    """Layers forward and backward; each gradient is checked in the engine's range."""
    program = Program()

    def layer() -> None:
        program.small_mm()
        check(program, name)

    def body() -> None:
        for _ in range(LAYERS):
            program.small_mm(host)
        program.backward(layer, LAYERS)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_anomaly_detection_checks_every_gradient(tmp_path: Path):
    case = training(tmp_path)
    proposal = only(debug_switches, case, "anomaly")
    assert f"{LAYERS} gradients a step are checked for NaN" in proposal.evidence[0].text
    after = proposal.change(case.graph)
    forward = LAYERS * 100 * US * slow.TRACEBACK_LEFT.value
    assert case.step_of(after) == pytest.approx(forward + LAYERS * 24 * US, rel=0.1)
    assert case.step_of(after) < 0.4 * case.step_ns


def test_values_that_a_program_reads_are_no_anomaly_detection(tmp_path: Path):
    assert not list(debug_switches.find(training(tmp_path, name="aten::abs")))


@pytest.mark.parametrize("blocking", [True, False])
def test_launches_that_wait_for_their_kernels(tmp_path: Path, blocking: bool):
    program, kernel = Program(), 100 * US

    def blocked() -> None:
        for _ in range(LAYERS):
            start = program.now
            end = start + 8 * US + kernel if blocking else start + 6 * US
            begin = max(start + 4 * US, program.free.get(7, 0) + US)
            program.free[7] = begin + kernel
            program.trace.launch(PLAIN, (start + 2 * US, end), (begin, begin + kernel), tid=program.tid, stream=7)
            program.trace.op("aten::mul", start, end + 2 * US)
            program.now = end + 30 * US

    for _ in range(3):
        program.step(blocked, sync=True)
    case = program.case(tmp_path)
    found = list(debug_switches.find(case))
    assert [one.key for one in found] == (["blocking"] if blocking else [])
    if blocking:
        after = case.step_of(found[0].change(case.graph))
        assert after == pytest.approx(LAYERS * (kernel + US), rel=0.1) and after < 0.85 * case.step_ns
        assert latency.HOST_LAUNCH_NS.value < kernel


@pytest.mark.parametrize("inside", ["aten::empty", "aten::zeros"])
def test_new_tensors_that_deterministic_mode_fills(tmp_path: Path, inside: str):
    program = Program()

    def body() -> None:
        for _ in range(LAYERS):
            start = program.now
            program.op("aten::fill_", PLAIN, 500 * US, [[1 << 20]], ["float"])
            program.trace.op(inside, start - US, program.now + US)
            program.now += 2 * US
            program.small_mm(gpu=500 * US)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    found = list(debug_switches.find(case))
    assert [one.key for one in found] == (["filled"] if inside == "aten::empty" else [])
    for one in found:
        gone = LAYERS * 500 * US * slow.FILLED_AGAIN.value
        assert case.step_ns - case.step_of(one.change(case.graph)) == pytest.approx(gone, rel=0.05)


@pytest.mark.parametrize(
    ("switches", "sizes", "left"),
    [
        ((), 1, kernels.TUNED_CONVOLUTIONS.value),
        (("cudnn_benchmark",), 1, None),
        (("deterministic",), 1, None),
        (None, 1, None),
        ((), 3, None),
        (("cudnn_deterministic",), 3, kernels.ANY_ALGORITHM_LEFT.value),
        (("cudnn_benchmark", "cudnn_deterministic"), 1, kernels.ANY_ALGORITHM_LEFT.value),
    ],
)
def test_algorithms_are_tried_where_shapes_stay_or_only_deterministic_ones_are_used(
    tmp_path: Path, switches: tuple[str, ...] | None, sizes: int, left: float | None
):
    program = Program()
    for step in range(3):
        size = 32 + step % sizes

        def body(size: int = size) -> None:
            for _ in range(LAYERS):
                shapes = [[8, 64, size, size], [64, 64, 3, 3]]
                program.op("aten::cudnn_convolution", "cudnn_conv", 1 * MS, shapes, ["float", "float"])

        program.step(body)
    case = program.case(tmp_path, replace(run_of(), program=Facts(switches=switches)))
    found = list(cudnn_benchmark.find(case))
    assert bool(found) is (left is not None)
    for one in found:
        assert left is not None
        assert case.step_of(one.change(case.graph)) == pytest.approx(left * case.step_ns, rel=0.02)


def test_switches_are_read_as_written_and_nothing_else():
    assert read(Facts, {"switches": ["deterministic", "made_up", 3]}) == Facts(switches=("deterministic",))
    assert read(Facts, {"switches": "anomaly"}) == Facts() == read(Facts, {})
