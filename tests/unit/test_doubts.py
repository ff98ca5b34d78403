"""Confidence falls with what the recording lacks, and an unclear verdict names the other candidate, if there is one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from helpers.make_trace import graph_node
from helpers.program import MS, PLAIN, SHORT, US, Program

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Device, Diagnosis, Verdict
from gpuprof.diagnosis.verdict.doubts import Doubt
from gpuprof.diagnosis.verdict.headline import headline
from gpuprof.diagnosis.verdict.verdict import with_doubts
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.report.words.words import label


def launch_bound(program: Program) -> None:
    for _ in range(60):
        program.op("aten::mm", "nvjet_hsh_128x64", SHORT, [[128, 512], [512, 512]])
    program.backward(program.small_mm, 60)


def diagnosed(program: Program, folder: Path, steps: int = 4) -> Diagnosis:
    for _ in range(steps):
        program.step(lambda: launch_bound(program))
    folder.mkdir(exist_ok=True, parents=True)
    return gpuprof.diagnose(program.trace.write(folder / "trace.json"))


def sure(verdict: Verdict) -> float:
    assert verdict.confidence is not None
    return verdict.confidence


def test_a_whole_recording_is_believed(tmp_path: Path):
    found = diagnosed(Program(), tmp_path)
    assert found.verdict.bound == "host" and sure(found.verdict) > 0.9
    assert found.verdict.second is None and not found.verdict.doubts


def test_host_events_that_end_early(tmp_path: Path):
    """A CUDA graph continues after the last event of the CPU: what the CPU did meanwhile was not recorded."""
    program = Program()

    def body() -> None:
        launch_bound(program)
        program.python(12 * MS)

    for _ in range(3):
        program.step(body)
        begin = program.now - 12 * MS
        program.trace.call("cudaGraphLaunch", begin, begin + 20 * US, correlation=9000 + program.steps)
        for k in range(150):  # the graph's kernels, with pauses
            at = begin + (k + 1) * 70 * US
            program.trace.gpu(PLAIN, at, at + 20 * US, correlation=9000 + program.steps, **graph_node(k))
    found = gpuprof.diagnose(program.trace.write(tmp_path / "trace.json"))
    assert sure(found.verdict) < 0.5
    assert label(found).startswith("UNCLEAR: ") and " OR " in label(found)
    assert any("the CPU's last event" in text for text in found.verdict.doubts)


@pytest.mark.parametrize("steps", [1, 4])
def test_one_step_is_less_than_several(steps: int, tmp_path: Path):
    found = diagnosed(Program(), tmp_path, steps)
    assert any("a single step" in text for text in found.verdict.doubts) == (steps == 1)
    assert (sure(found.verdict) > 0.9) == (steps > 1)


def test_steps_that_differ(tmp_path: Path):
    program = Program()
    for times in (1, 1, 3, 1, 4):
        program.step(lambda times=times: [launch_bound(program) for _ in range(times)])
    found = gpuprof.diagnose(program.trace.write(tmp_path / "trace.json"))
    assert any("steps differ" in text for text in found.verdict.doubts)
    assert sure(found.verdict) < 0.9


@pytest.mark.parametrize(("timed", "advised"), [(False, True), (True, False)])
def test_an_unclear_verdict_on_a_whole_recording_says_why(timed: bool, advised: bool):
    """Nothing is missing, and yet two candidates gain about the same."""
    close = Verdict(bound="host", family="host", cause="launch", confidence=0.4, sentences=("The GPU works.",))
    found = with_doubts(close, Sensitivities(0.5, 0.0, 0.0, 0.0, 0.48, 0.4, 0.08, 0.0), [], timed)
    assert (found.second, found.confidence) == ("compute", 0.4)
    assert "What leaves it unclear: what would gain most differs within the noise" in found.summary
    assert ("gpuprof trace" in found.summary) == advised
    assert found.doubts and found.doubts[0] in found.summary


@pytest.mark.parametrize(("gain", "second"), [(0.2, "compute"), (0.04, None), (0.0, None)])
def test_what_gains_nothing_is_no_other_candidate(gain: float, second: str | None):
    """A resource that the step hardly uses does not limit it, however unsure the verdict is."""
    lacking = Verdict(bound="transfer", family="host", cause=None, confidence=0.9, sentences=("The GPU copies.",))
    doubt = Doubt(0.6, "44 % of the GPU's time has no recorded launch")
    found = with_doubts(lacking, Sensitivities(0.0, 0.0, 0.48, 0.0, gain, gain, 0.0, 0.0), [doubt])
    assert found.unclear and found.second == second


def test_the_headline_of_an_unclear_verdict(tmp_path: Path):
    """A single candidate is named as the most likely one. If most is waiting for no known reason, that is the
    headline."""
    sure_one = diagnosed(Program(), tmp_path)
    unsure = replace(sure_one, verdict=replace(sure_one.verdict, confidence=0.4))
    assert headline(unsure) == f"UNCLEAR, most likely {headline(sure_one)}"
    assert label(unsure) == "UNCLEAR: HOST"
    both = replace(unsure, verdict=replace(unsure.verdict, second="input"))
    assert headline(both) == "UNCLEAR: the CPU or the input" and label(both) == "UNCLEAR: HOST OR INPUT"
    waits = replace(unsure, devices_estimated=(), devices=tuple(_unknown(device) for device in unsure.devices))
    assert headline(waits).startswith("UNCLEAR: WAITING for what was not recorded ")


def _unknown(device: Device) -> Device:
    return replace(device, idle_by_cause=tuple(replace(one, cause="unknown") for one in device.idle_by_cause))


@pytest.mark.parametrize(("world", "doubted"), [(1, False), (8, True)])
def test_waits_for_ranks_that_were_not_recorded(world: int, doubted: bool, tmp_path: Path):
    """Much of the step is a collective; another rank may be the reason."""

    def body(program: Program) -> None:
        launch_bound(program)
        call = (program.now, program.now + 4 * US)
        program.launch("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", call, 1 * MS, stream=20)
        program.now += 10 * US

    program = Program()
    program.trace.top_level["distributedInfo"] = {"backend": "nccl", "rank": 0, "world_size": world}
    for _ in range(4):
        program.step(lambda: body(program))
    found = gpuprof.diagnose(program.trace.write(tmp_path / "trace.json"))
    assert found.verdict.bound == "host"
    assert any("7 of 8 ranks were not recorded" in text for text in found.verdict.doubts) == doubted
    assert (sure(found.verdict) > 0.9) != doubted
