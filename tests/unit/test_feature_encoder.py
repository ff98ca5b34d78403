"""Convolutions over raw sound in front of a model of transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from helpers.case import only, run_of
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import MS, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import feature_encoder

SOUND = [16, 1, 96_000]


def trained(tmp_path, sound: list[int] = SOUND, library: str | None = "transformers", back: int = 2 * MS) -> Analysis:
    """Three convolutions, a matrix multiplication and a late convolution; their backward passes take `back` each."""
    made = Program()

    def convolve(shape: list[int], weight: list[int]) -> None:
        made.op("aten::conv1d", "conv", 1 * MS, [shape, weight], ["float", "float"])

    def body() -> None:
        start = made.sequence
        convolve(sound, [512, 1, 10])
        convolve([16, 512, 19_199], [512, 512, 3])
        convolve([16, 512, 9_599], [512, 512, 3])
        made.mm(4096, 512, 768, gpu=1 * MS)
        convolve([16, 768, 299], [768, 48, 128])
        made.tid = AUTOGRAD
        for number in range(made.sequence, start, -1):
            begin = made.now
            made.op("aten::convolution_backward", "dgrad", back)
            arguments: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 1}
            made.trace.op("autograd::engine::evaluate_function: Backward0", begin, made.now, AUTOGRAD, **arguments)
        made.tid = MAIN

    for _ in range(3):
        made.step(body)
    run = replace(run_of(), model={"library": library}) if library else None
    return made.case(tmp_path, run=run)


def test_the_backward_pass_of_the_convolutions_over_sound_goes(tmp_path):
    case = trained(tmp_path)
    found = only(feature_encoder, case)
    assert found.changes and found.odds < 1
    assert case.step_ns - case.step_of(found.change(case.graph)) == pytest.approx(3 * 2 * MS, rel=0.02)
    assert "freeze_feature_encoder" in str(found.fix)


@pytest.mark.parametrize(
    "more",
    [{"sound": [16, 80, 3000]}, {"sound": [16, 1, 600]}, {"library": None}, {"back": 50_000}],
    ids=["a spectrum", "short", "another library", "little"],
)
def test_not_of_spectra_other_libraries_or_little_time(tmp_path, more):
    assert not list(feature_encoder.find(trained(tmp_path, **more)))
