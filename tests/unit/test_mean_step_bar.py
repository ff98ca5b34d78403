"""The step as a bar, where a run timed its steps: usual step, causes, pauses and variation sum to the mean step."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.diagnosed import diagnosed
from helpers.make_diagnosis import MS, timed
from helpers.paths import ROOT
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.mean_step.budget import FreeStretch, budget
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.verdict import step_parts
from gpuprof.diagnosis.written import brief
from gpuprof.diagnosis.written.diagnosis_json import to_json
from gpuprof.record.entry.scalars import scalars
from gpuprof.report.page import budget_rows, content, step_bars
from gpuprof.report.terminal.terminal import plain

SEVERAL = [ROOT / "scenarios" / name / "recording" for name in ("trl_reward", "small_batch", "periodic_saving")]


def of_steps(ms: list[float], saving_ms: dict[int, float] | None = None) -> Diagnosis:
    """A diagnosis whose timed steps take these times; the usual one takes 20 ms, whatever the mean."""
    ns, n = MS * np.array(ms, np.float64), len(ms)
    measured = {"save": np.array([MS * (saving_ms or {}).get(k, 0.0) for k in range(n)])} if saving_ms else {}
    found = budget(FreeStretch(round(float(ns.sum())), ns, np.full(n, 20.0 * MS), 20 * MS, measured))
    return timed(budget=found)


def parts(diagnosis: Diagnosis) -> dict[str, int]:
    (bar,) = step_parts.bars(diagnosis)
    assert sum(part.ns for part in bar.parts) == bar.total_ns
    return {part.key: part.ns for part in bar.parts}


def test_steps_that_paused_and_variation_are_parts():
    """38 steps of 21 ms and two of 121: a mean of 26 ms."""
    found = of_steps([21.0] * 20 + [121.0] + [21.0] * 18 + [121.0])
    shown = parts(found)
    assert (sum(shown.values()), shown["pauses"], shown["variation"]) == (26 * MS, 5.05 * MS, 0.95 * MS)
    (bar,) = step_bars.step_bars(found)
    assert bar.title == "The mean step of the GPU, without the profiler"
    assert bar.note == (
        "Pauses: 2 of 40 timed steps took more than twice as long as usual. Variation: what the other steps take "
        "beyond the usual step on average. No measured cause explains either."
    )
    assert [(p.label, p.idle) for p in bar.parts[-2:]] == [("pauses", False), ("variation", False)]
    assert sum(part.percent for part in bar.parts) == pytest.approx(100)


def test_all_say_the_same_numbers():
    """Bar, table of the mean step, terminal, brief JSON and the numbers for trackers."""
    found = of_steps([20.0] * 30 + [212.0] * 2, saving_ms={3: 0.0})
    (bar,) = step_parts.bars(found)
    mean = bar.total_ns
    assert parts(found)["pauses"] == 12 * MS and mean == 32 * MS
    assert "pauses 38 %" in plain(found, 120, verbose=False)
    rows = {row.key: (row.time, row.share) for row in budget_rows.budget_rows(found)}
    assert rows["pauses"] == ("+12 ms", "38 %") and rows[""][0] == "32 ms"
    assert brief.to_json(found)["idle"]["share"] == pytest.approx(bar.idle_ns() / mean, abs=1e-4)
    assert "pauses" not in brief.to_json(found)["idle"]["causes"], "what the GPU did meanwhile is not known"
    assert scalars(to_json(found))["gpuprof/gpu_busy"] == pytest.approx(bar.busy_ns() / mean)
    (busy,) = (tile.value for tile in content.tiles(found) if tile.label == "GPU busy")
    assert busy == f"{100 * bar.busy_ns() / mean:.0f} %"


def test_variation_is_neither_work_nor_waiting():
    found = of_steps([20.0] * 20 + [30.0] * 20)
    (bar,) = step_parts.bars(found)
    assert parts(found)["variation"] == 5 * MS
    assert bar.busy_ns() + bar.idle_ns() == bar.total_ns - 5 * MS
    assert "≈ variation 20 %" in plain(found, 120, verbose=False)


def test_where_steps_are_shorter_on_average_all_parts_of_the_usual_one_are():
    found, usual = of_steps([20.0] * 24 + [10.0] * 16), timed()
    shown, before = parts(found), parts(usual)
    assert sum(shown.values()) == 16 * MS and "variation" not in shown
    for key, ns in before.items():
        assert shown[key] / sum(shown.values()) == pytest.approx(ns / sum(before.values()), abs=1e-6)


def test_without_anything_beyond_the_usual_step_the_bar_is_as_before():
    found = of_steps([20.0] * 40)
    (bar,), (usual,) = step_bars.step_bars(found), step_bars.step_bars(timed())
    assert bar.title == "One step of the GPU, without the profiler" and bar.note == ""
    assert [(p.key, p.named) for p in bar.parts] == [(p.key, p.named) for p in usual.parts]
    assert [p.percent for p in bar.parts] == pytest.approx([p.percent for p in usual.parts], abs=1e-4)


@given(st.lists(st.floats(1, 200), min_size=4, max_size=40), st.dictionaries(st.integers(0, 39), st.integers(1, 150)))
def test_the_bar_sums_to_the_mean_step_whatever_the_steps_were(ms, saving):
    found = of_steps(ms, saving)
    assert found.budget is not None
    assert sum(parts(found).values()) == found.budget.mean_ns
    assert all(ns > 0 for ns in parts(found).values())


def test_a_cause_of_the_usual_step_that_some_steps_have_more_of_is_one_part():
    """4.9 % of the mean step is waiting for memory in the usual step, 2.4 % what some steps wait beyond that."""
    found = diagnosed(ROOT / "scenarios" / "programs" / "teacher_offloaded" / "recording")
    for bar in step_parts.bars(found):
        keys = [(part.key, part.on_streams) for part in bar.parts]
        assert len(set(keys)) == len(keys)
        waiting = sum(part.ns for part in bar.parts if part.key == "allocator")
        assert waiting / bar.total_ns == pytest.approx(0.073, abs=0.002)
        assert sum(part.ns for part in bar.parts) == bar.total_ns


@pytest.mark.parametrize("path", SEVERAL, ids=lambda path: path.parent.name)
def test_recorded_runs(path):
    found = diagnosed(path)
    assert found.budget is not None
    for bar in step_parts.bars(found):
        assert sum(part.ns for part in bar.parts) == bar.total_ns == found.budget.mean_ns
