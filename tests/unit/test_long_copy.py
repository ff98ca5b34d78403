"""One blocking copy that takes most of an iteration is named, and one such iteration is no basis for a verdict."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.present import present
from helpers.program import MS, US, Program
from helpers.valid_json import document

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report.terminal.terminal import plain

HOST_TO_GPU, TO_HOST = "Memcpy HtoD (Pageable -> Device)", "Memcpy DtoH (Device -> Pageable)"


def program(copy: int, steps: int = 1, at: tuple[int, ...] = (0,), name: str = HOST_TO_GPU, kernels: bool = False):
    """Steps of 10 ms of kernels; in some of them a copy of 1 GB blocks the CPU. `kernels`: it mostly waits for them."""
    made = Program()

    def body():
        for k in range(100):
            if k == 30 and made.steps in at:
                if kernels:
                    made.small_mm(gpu=copy)
                start = made.now
                begin = max(start + 20 * US, made.free.get(7, 0))
                end = begin + (2 * US if kernels else copy)
                made.trace.launch(name, (start, end + 10 * US), (begin, end), cat="gpu_memcpy", stream=7, bytes=10**9)
                made.free[7] = end
                made.trace.op("aten::copy_", start - 2 * US, end + 12 * US)
                made.now = end + 20 * US
            made.small_mm(gpu=100 * US)

    for _ in range(steps):
        made.step(body, sync=True)
    return made


def diagnosed(made: Program, folder: Path) -> Diagnosis:
    found = gpuprof.diagnose(made.trace.write(folder / "trace.json"))
    document(found)
    return found


@pytest.mark.parametrize("name", [HOST_TO_GPU, TO_HOST])
def test_it_is_named_in_the_answer(tmp_path, name):
    found = diagnosed(program(80 * MS, name=name), tmp_path)
    said = found.verdict.summary
    assert f"One copy ({name}, 1,000 MB, aten::copy_) blocks the CPU (host) for" in said
    assert "for 7" in said.split("blocks")[1] or "for 8" in said.split("blocks")[1]


def test_the_only_step_that_is_mostly_one_copy_is_not_reliable(tmp_path):
    found = diagnosed(program(80 * MS), tmp_path)
    assert present(found.verdict.confidence) < 0.5
    assert any("one copy is 8" in text for text in found.verdict.doubts)
    assert "reliable" not in plain(found, 120)
    timed = gpuprof.diagnose(tmp_path / "trace.json", step_ms=90)
    assert not any("one copy" in text for text in timed.verdict.doubts), "steps without a profiler are as long"
    (tmp_path / "each").mkdir()
    each = diagnosed(program(80 * MS, steps=3, at=(0, 1, 2)), tmp_path / "each")
    assert each.verdict.bound == "transfer" and present(each.verdict.confidence) > 0.8
    assert "One copy in each step" in each.verdict.summary


def test_a_copy_in_one_of_several_steps_says_so(tmp_path):
    found = diagnosed(program(80 * MS, steps=3, at=(1,)), tmp_path)
    assert "One copy in 1 of 3 steps" in found.verdict.summary


def test_a_short_copy_and_one_that_waits_for_kernels_are_not_named(tmp_path):
    for k, made in enumerate((program(4 * MS), program(80 * MS, name=TO_HOST, kernels=True))):
        (tmp_path / str(k)).mkdir()
        found = diagnosed(made, tmp_path / str(k))
        assert "One copy" not in found.verdict.summary
        assert not any("copy" in text for text in found.verdict.doubts)


def test_times_of_a_doubtful_verdict_are_not_called_reliable(tmp_path):
    """A third of the GPU's time has no launch, so nothing is replayed and the cost of recording is only counted."""
    made = Program()
    made.trace.gpu("gemm", made.now, made.now + 50 * MS, stream=9)  # not on a stream of recorded launches
    made.free[7] = made.now + 50 * MS
    made.step(lambda: [made.small_mm(gpu=500 * US) for _ in range(200)], sync=True)
    found = diagnosed(made, tmp_path)
    assert found.sensitivities is None and found.verdict.doubts
    text = plain(found, 200)
    assert "Recording cost at most" in text
    assert "reliable" not in text
