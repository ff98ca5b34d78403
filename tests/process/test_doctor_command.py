"""`gpuprof doctor` on the machine that runs the tests, whatever that has."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
from helpers.command import gpuprof_command, in_process, one_line
from helpers.installed import need
from helpers.paths import ROOT

from gpuprof.doctor import examine, facts, probe

probed = cache(probe.probe)
"""What a Python's torch can do, asked only once because torch is imported for it."""


@pytest.mark.slow
def test_the_machine_at_hand_is_examined(monkeypatch: pytest.MonkeyPatch):
    need("torch")
    monkeypatch.setattr(facts, "probe", probed)
    done = in_process("doctor", "--json", "--data", ROOT)
    document = json.loads(done.stdout)
    assert document["schema"] == "gpuprof.doctor/1"
    assert len(document["checks"]) == len(examine.CHECKS)
    assert document["can_record"] is (done.returncode == 0)
    found = {check["id"]: check for check in document["checks"]}
    assert found["platform"]["status"] == "ok" and found["torch"]["status"] == "ok"
    assert sys.executable in found["torch"]["message"]
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        assert done.returncode == 0 and found["gpu"]["status"] == "warning"


def test_text_names_the_remedy_of_what_is_wrong(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    need("torch")  # else stderr names another Python that has it
    monkeypatch.setattr(facts, "probe", probed)
    (tmp_path / "runs").touch()
    done = in_process("doctor", "--out", tmp_path / "runs", COLUMNS="100")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "no run can be written" in line)
    assert lines[at].startswith("blocker")
    assert "it is a file" in " ".join("".join(lines[at : at + 3]).split())
    assert "--out DIR" in " ".join(lines[at : at + 4])
    assert lines[-1].startswith("recording cannot work here: ")
    assert done.stderr == ""


def test_a_python_without_torch_is_a_blocker(tmp_path: Path):
    """gpuprof is in its own environment, and no Python on PATH has torch."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    found = probe.probe(str(tmp_path / "bare" / "bin" / "python"))
    assert found.version is None and "No module named 'torch'" in found.error


def test_bad_input_is_one_line():
    done = gpuprof_command("doctor", "--data", "/no/such/folder")
    assert done.returncode == 2
    assert "/no/such/folder" in one_line(done.stderr)
