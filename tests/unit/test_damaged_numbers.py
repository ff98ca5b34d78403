"""Impossible numbers in a recording do not make findings fail."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import case_of
from helpers.program import BF16, MS, Program

import gpuprof
from gpuprof.diagnosis.detect.kept_ops import mean_tokens


def recording(path: Path, embedded: list, **properties: object) -> Path:
    """Three launch-bound steps that begin with an embedding of these shapes."""
    program = Program()
    gpu = {"id": 0, "name": "NVIDIA H200", "totalGlobalMem": 140 << 30, "numSms": 132, **properties}
    program.trace.top_level["deviceProperties"] = [gpu]

    def body() -> None:
        program.op("aten::embedding", "indexSelect", dims=embedded, types=[BF16, "long int"])
        for _ in range(60):
            program.small_mm()
            program.elementwise()
        program.backward(program.small_mm, 60)
        program.python(2 * MS)

    for _ in range(3):
        program.step(body)
    return program.trace.write(path)


def test_findings_are_not_lost_to_more_sms_than_a_float_holds(tmp_path: Path, monkeypatch):
    monkeypatch.setenv("GPUPROF_DEBUG", "1")  # raises what would be noted as a finding that failed
    found = gpuprof.diagnose(recording(tmp_path / "trace.json", [[1000, 64], [4, 128]], numSms=10**400))
    assert found.findings


@pytest.mark.parametrize(("embedded", "tokens"), [([[1000, 64], [4, 128]], 512), ([[1000, 64]], None)])
def test_tokens_of_embeddings_with_and_without_indices(tmp_path: Path, embedded: list, tokens: int | None):
    case = case_of(recording(tmp_path / "trace.json", embedded))
    assert mean_tokens(case, 1.0) == tokens
