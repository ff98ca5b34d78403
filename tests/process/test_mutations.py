"""10,000 damaged files of all kinds: each is read or refused in one line, within seconds and 1 GiB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.command import variables
from helpers.paths import ROOT

SHARES = {"traces": 2500, "exports": 1500, "digests": 2000, "snapshots": 1500, "dumps": 2200, "runs": 300}
"""Number of cases of each kind."""
FEW = 10
MOST_MIB = 1024


def damaged(kind: str, count: int, folder: Path) -> None:
    """Reads a number of damaged files in a separate process."""
    done = subprocess.run(
        [sys.executable, "-m", "helpers.mutations", kind, str(count), str(folder)], cwd=ROOT, check=False, text=True,
        capture_output=True, env=variables(PYTHONPATH=f"{ROOT}:{ROOT / 'tests'}", GPUPROF_CACHE=str(folder / "cache")),
    )  # fmt: skip
    case = (folder / "case").read_text() if (folder / "case").exists() else "none"
    assert done.returncode == 0, f"ended by {done.returncode} in case {case}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    print(json.dumps(found))
    assert found["crashed"] == []
    assert found["read"] + found["refused"] == count
    assert found["peak_mib"] <= MOST_MIB


@pytest.mark.parametrize("kind", ["digests", "dumps", "snapshots"])
def test_some_of_a_kind(tmp_path: Path, kind: str):
    damaged(kind, FEW, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", SHARES)
def test_ten_thousand(tmp_path: Path, kind: str):
    assert sum(SHARES.values()) == 10_000
    damaged(kind, SHARES[kind], tmp_path)
