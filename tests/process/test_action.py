"""The GitHub Action's own script, run by bash with real recordings; and the files that name each other."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.command import variables
from helpers.paths import ROOT

yaml = pytest.importorskip("yaml")
PAIRS = ROOT / "tests" / "data" / "pairs"
EAGER, COMPILED = PAIRS / "tiny.json.gz", PAIRS / "tiny.compile.json.gz"


def action() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "action.yml").read_text())


def run_step(folder: Path, recording: Path, **env: str) -> tuple[int, dict[str, str]]:
    """The step that diagnoses and compares: the code that the gate ends with, and the outputs."""
    (step,) = (step for step in action()["runs"]["steps"] if step.get("id") == "run")
    script = folder / "gpuprof"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m gpuprof "$@"\n')
    script.chmod(0o755)
    files = {name: str(folder / name) for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
    environment = {
        "RECORDING": str(recording), "BASELINE": "", "FAIL_ON": "", "RUNNER_TEMP": str(folder / "temp"),
        "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT), **files, **env,
    }  # fmt: skip
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        cwd=folder, env=variables(**environment), capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    outputs = dict(line.split("=", 1) for line in (folder / "GITHUB_OUTPUT").read_text().splitlines())
    return int(outputs.pop("code")), outputs


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_a_recording_without_a_baseline(tmp_path: Path):
    code, outputs = run_step(tmp_path, EAGER, FAIL_ON="idle:10%")
    assert code == 1, "the gate failed, and the step went on"
    assert json.loads(Path(outputs["json"]).read_text())["schema"] == "gpuprof.diagnosis/1"
    assert Path(outputs["report"]).stat().st_size > 100_000
    assert (tmp_path / "GITHUB_STEP_SUMMARY").read_text().startswith("### HOST-BOUND")


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_a_stored_baseline_is_compared_with(tmp_path: Path):
    (tmp_path / ".gpuprof-baseline").mkdir()
    shutil.copy(COMPILED, tmp_path / ".gpuprof-baseline" / COMPILED.name)
    code, _ = run_step(tmp_path, EAGER, FAIL_ON="kernels:5% syncs:1000%")
    assert code == 1
    assert "B TAKES" in (tmp_path / "GITHUB_STEP_SUMMARY").read_text().splitlines()[0]
    assert (
        json.loads((tmp_path / "temp" / "gpuprof" / "comparison.json").read_text())["schema"] == "gpuprof.comparison/1"
    )


def test_inputs_are_used_only_through_the_environment():
    """What a pull request can set must never be part of a script's text."""
    used = set()
    for step in action()["runs"]["steps"]:
        assert "${{" not in step.get("run", ""), step["name"]
        used |= set(re.findall(r"inputs\.([\w-]+)", json.dumps(step)))
    assert used == set(action()["inputs"])


def test_what_the_workflows_call_is_there():
    targets = set(re.findall(r"^([\w.][\w./-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    workflow = (ROOT / ".github" / "workflows" / "ci.yml").read_text()
    assert set(re.findall(r"make ([\w./-]+)", workflow)) <= targets
    for folder in re.findall(r"tests/\w+", workflow):
        assert (ROOT / folder).is_dir()
