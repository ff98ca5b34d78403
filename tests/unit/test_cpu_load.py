"""A measurement shares its CPUs with other programs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from helpers.started import wait_for

from gpuprof.record.trials.cpu_load import CpuTimes, cpu_times, load_between
from gpuprof.trial.trial import TimedProcess

SPIN = "import time\nend = time.monotonic() + 30\nwhile time.monotonic() < end: pass"


def test_what_others_used_is_the_machines_time_less_our_own():
    found = load_between(CpuTimes(100.0, 50.0, 10.0), CpuTimes(106.0, 54.0, 12.0), 2.0)
    assert found is not None and found == (2.0, 2.0, 1.0)
    assert load_between(None, CpuTimes(1, 1, 1), 2.0) is None


def test_a_childs_time_is_ours():
    before = cpu_times()
    assert before

    def own_s() -> float:
        now = cpu_times()
        return now.own if now else 0.0

    with subprocess.Popen([sys.executable, "-c", SPIN]) as child:
        seen = wait_for(lambda: own_s() >= before.own + 0.05, 30)  # a busy machine takes longer to run it
        alive = cpu_times()
        child.kill()
    ended = cpu_times()
    assert seen and alive and ended
    assert alive.own <= ended.own + 0.02
    assert alive.busy - before.busy >= 0.05


@pytest.mark.parametrize(
    ("others", "idle", "disturbed"), [(1.0, 0.1, True), (1.0, 30.0, False), (0.1, 0.0, False), (None, None, False)]
)
def test_only_full_cpus_disturb(others: float | None, idle: float | None, disturbed: bool):
    found = TimedProcess("", 1, 1, 20, None, 1, 1, None, others, idle)
    assert found.is_disturbed is disturbed
