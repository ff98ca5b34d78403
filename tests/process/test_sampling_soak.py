"""The soak test of the sampler, for a few seconds; `python -m benchmarks.sampling_soak` runs the long one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.quick import few

from benchmarks import sampling_soak

PYTHONS = sorted(Path("~/.pyenv/versions").expanduser().glob("3.1[0-3]*/bin/python")) or [Path(sys.executable)]


EACH = [pytest.param(path, id=path.parent.parent.name) for path in PYTHONS]


@pytest.mark.parametrize("python", few(EACH, [str(EACH[-1].id)]))
def test_a_hostile_program_is_sampled(python: Path):
    words = ["--minutes=0.05", "--busy=0.5", "--period-ms=2", "--program"]
    done = subprocess.run(
        [str(python), sampling_soak.__file__, *words], capture_output=True, text=True, timeout=200, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["stretches"] == 1 and found["ended_early"] == 0
    assert found["busy"] > 0 and found["autograd"] > 0
    assert min(found["done"].values()) > 0, "each thing was done"


def test_what_fails_is_noticed():
    good = {"ended_early": 0, "unread": 1, "busy": 100}
    assert not sampling_soak.has_failed(good)
    assert sampling_soak.has_failed(None), "the program crashed"
    assert sampling_soak.has_failed(good | {"ended_early": 1})
    assert sampling_soak.has_failed(good | {"unread": 3})
