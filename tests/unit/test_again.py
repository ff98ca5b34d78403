"""Tests that compare durations run again where they fail, and fail if they fail each time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from helpers.again import TIMES
from helpers.paths import ROOT

HOOK = "import pytest\nfrom helpers.again import run_again as pytest_runtest_protocol\n"
TESTS = """
import pytest

@pytest.mark.measures_time
@pytest.mark.parametrize("passes_at", [1, TIMES, TIMES + 1])
def test_measured(passes_at, tmp_path):
    (tmp_path / "fresh").mkdir()
    with open(f"{passes_at}.txt", "a+") as file:
        file.write("x")
        assert file.tell() == passes_at

def test_other():
    with open("other.txt", "a") as file:
        file.write("x")
    assert 0
"""


def test_it_runs_until_it_passes_but_not_for_ever(tmp_path: Path):
    (tmp_path / "conftest.py").write_text(HOOK)
    (tmp_path / "test_some.py").write_text(TESTS.replace("TIMES", str(TIMES)))
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = measures_time\n")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT / "tests")}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert "2 failed, 2 passed" in done.stdout, done.stdout
    ran = {path.stem: len(path.read_text()) for path in tmp_path.glob("*.txt")}
    assert ran == {"1": 1, str(TIMES): TIMES, str(TIMES + 1): TIMES, "other": 1}
