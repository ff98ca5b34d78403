"""`gpuprof try` of a program that fails by itself."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpuprof.cli import main


def test_a_program_that_fails_in_its_first_steps_is_named_as_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "train.py").write_text("raise SystemExit(3)")
    run = tmp_path / "gpuprof-runs" / "one"
    run.mkdir(parents=True)
    ended = {"command": [sys.executable, "train.py"], "cwd": str(tmp_path), "status": "failed", "exit": {"code": 3}}
    (run / "manifest.json").write_text(json.dumps(ended))
    (run / "rank0.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    assert main(["try", "train.py"]) == 2
    assert "the program itself ended with exit code 3 before enough steps were recorded" in capsys.readouterr().err
