"""Waits of torch's distributions, which check their arguments: the switch is named."""

from __future__ import annotations

import json
import shutil

import pytest
from helpers.paths import ROOT
from helpers.present import present

import gpuprof
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.findings import syncs


@pytest.mark.parametrize("checked", [True, False])
def test_the_switch_of_the_checks_is_named(tmp_path, checked: bool):
    """The reads of a loss, as if a distribution made them."""
    folder = tmp_path / "recording"
    shutil.copytree(ROOT / "scenarios/cases/host_reads/recording", folder)
    path = folder / "samples.rank0.json"
    samples = json.loads(path.read_text())
    for one in samples["functions"]:
        if checked and one[2] == "loss_of":
            one[:3] = ["library", "torch/distributions/distribution.py", "Distribution._validate_sample"]
    path.write_text(json.dumps(samples))
    case = present(analysis_of(gpuprof.diagnose(folder)))
    fixes = [str(one.fix) for one in syncs.find(case)]
    assert fixes and any("set_default_validate_args(False)" in one for one in fixes) == checked
