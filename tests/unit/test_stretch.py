"""The clock of free-running steps, which recordings, trials and scenarios share."""

from __future__ import annotations

import ast
import time

from helpers.installed import need
from helpers.paths import ROOT

SHARE_IT = ("gpuprof/record/steps/free_timing.py", "gpuprof/record/trials/trial_meter.py", "scenarios/support/run.py")


def test_steps_follow_each_other_and_what_passes_between_them_is_in_none():
    need("torch")
    from gpuprof.record.steps.stretch import Stretch

    stretch = Stretch([])
    begun = stretch.begun_ns
    stretch.end_step(begun + 5)
    stretch.end_step(begun + 12)
    stretch.step_begun_ns = begun + 20  # eight nanoseconds of gpuprof's own work
    stretch.end_step(begun + 23)
    assert stretch.step_ns == [5, 7, 3]


def test_the_whole_lasts_from_its_beginning_to_its_finish():
    need("torch")
    from gpuprof.record.steps.stretch import Stretch

    before = time.perf_counter_ns()
    stretch = Stretch([], on_gpu=True)
    stretch.end_step(time.perf_counter_ns())
    whole_ns, on_gpu = stretch.finish()
    assert stretch.step_ns[0] <= whole_ns <= time.perf_counter_ns() - before
    assert on_gpu is None, "there is no GPU to mark steps on"


def test_who_times_free_steps_does_so_by_this_clock():
    for name in SHARE_IT:
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        assert any(isinstance(one, ast.Name) and one.id == "Stretch" for one in calls), name
