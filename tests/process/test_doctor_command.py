"""`gpuprof doctor` on the machine at hand, whatever that has."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helpers.command import gpuprof_command, one_line
from helpers.installed import need
from helpers.paths import ROOT

import gpuprof.doctor.examine as examine


def test_the_machine_at_hand_is_examined():
    need("torch")
    done = gpuprof_command("doctor", "--json", "--data", ROOT)
    document = json.loads(done.stdout)
    assert document["schema"] == "gpuprof.doctor/1"
    assert len(document["checks"]) == len(examine.CHECKS)
    assert document["can_record"] is (done.returncode == 0)
    found = {check["id"]: check for check in document["checks"]}
    assert found["platform"]["status"] == "ok" and found["torch"]["status"] == "ok"
    assert sys.executable in found["torch"]["message"]
    import torch

    if not torch.cuda.is_available():
        assert done.returncode == 1 and found["gpu"]["status"] == "blocker"


def test_text_names_the_remedy_of_what_is_wrong(tmp_path: Path):
    need("torch")  # else stderr names another Python that has it
    (tmp_path / "runs").touch()
    done = gpuprof_command("doctor", "--out", tmp_path / "runs", env={"COLUMNS": "100"})
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    at = next(i for i, line in enumerate(lines) if "no run can be written" in line)
    assert lines[at].startswith("blocker")
    assert "it is a file" in " ".join(lines[at : at + 2])
    assert "--out DIR" in " ".join(lines[at : at + 4])
    assert lines[-1].startswith("recording cannot work here: ")
    assert done.stderr == ""


def test_a_python_without_torch_is_a_blocker(tmp_path: Path):
    """gpuprof in an environment of its own, and no torch anywhere on PATH."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    from gpuprof.doctor.probe import probe

    found = probe(str(tmp_path / "bare" / "bin" / "python"))
    assert found.version is None and "No module named 'torch'" in found.error


def test_bad_input_is_one_line():
    done = gpuprof_command("doctor", "--data", "/no/such/folder")
    assert done.returncode == 2
    assert "/no/such/folder" in one_line(done.stderr)
