"""Image networks, recorded on an H200, with the measured steps of their fixes."""

from __future__ import annotations

import json

import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from helpers.present import present

from gpuprof import diagnose
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.findings import channels_last, frozen_encoder
from gpuprof.diagnosis.fixes.predicted_step import predict

VISION = ROOT / "tests" / "data" / "vision"
TRUTH = json.loads((VISION / "truth.json").read_text())["runs"]
FIXES = [(name, fix["finding"], fix["step_ms"]) for name, run in TRUTH.items() for fix in run["fixes"]]
FIND = {"channels_last": channels_last.find, "frozen_encoder": frozen_encoder.find}


@pytest.mark.parametrize(("name", "finding", "step_ms"), FIXES)
def test_what_a_fix_measured_lies_in_its_interval(name: str, finding: str, step_ms: float):
    diagnosis = diagnose(VISION / f"{name}.json.gz", step_ms=TRUTH[name]["unprofiled_ms"])
    case = present(analysis_of(diagnosis))
    (proposal,) = FIND[finding](case)
    step = predict(case, proposal)
    assert step.low <= step_ms * 1e6 <= step.high
    assert step.expected == pytest.approx(step_ms * 1e6, rel=0.07)
    if step_ms > TRUTH[name]["unprofiled_ms"]:
        assert finding not in {one.id for one in diagnosis.findings}


@pytest.mark.parametrize("name", TRUTH)
def test_none_gets_advice_for_language_models(name: str):
    diagnosis = diagnosed(VISION / f"{name}.json.gz")
    assert not present(analysis_of(diagnosis)).trains_on_tokens
    named = {*(one.id for one in diagnosis.findings), *(one.id for one in diagnosis.considered)}
    assert not {"padding", "fused_elementwise"} & named


def test_batch_norms_without_conversions_are_advised():
    diagnosis = diagnose(VISION / "batch_norm.json.gz", step_ms=TRUTH["batch_norm"]["unprofiled_ms"])
    assert "channels_last" in {one.id for one in diagnosis.findings}
