"""The strip of timed steps: what each waited for, in agreement with the table of the mean step."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from helpers.diagnosed import diagnosed
from helpers.make_diagnosis import MS, analysed, host_bound
from helpers.paths import ROOT
from helpers.present import present

from gpuprof.diagnosis.mean_step.budget import FreeStretch, budget
from gpuprof.diagnosis.mean_step.timed_steps import timed_steps
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report import charts
from gpuprof.report.page import budget_rows

SAVING = ROOT / "scenarios" / "periodic_saving" / "recording"
BARE = ROOT / "tests" / "data" / "pairs" / "moe_small.json.gz"


def of_stretch(measured_ms: dict[str, list[float]], steps: int, usual_ms: float = 20, **more) -> Diagnosis:
    """A diagnosis of steps that take the usual time and what was measured in each."""
    measured = {cause: MS * np.array(column, np.float64) for cause, column in measured_ms.items()}
    ns = usual_ms * MS + np.sum(list(measured.values()), axis=0) + np.zeros(steps)
    stretch = FreeStretch(
        round(float(ns.sum())), ns, np.full(steps, usual_ms * MS), round(usual_ms * MS), measured,
        number=np.arange(7, 7 + steps), **more,
    )  # fmt: skip
    return host_bound(budget=budget(stretch), _analysis=analysed(timed=timed_steps(stretch)))


def every(distance: int, ms: float, steps: int) -> list[float]:
    return [ms if k % distance == distance - 1 else 0.0 for k in range(steps)]


def drawn(diagnosis: Diagnosis) -> Any:  # plotly's types have no place for what `layout` holds
    return present(charts.timed_steps(diagnosis))


def bars(figure) -> list[dict]:
    return [trace for trace in json.loads(charts.to_json(figure))["data"] if trace["type"] == "bar"]


def heights(figure) -> dict[int, float]:
    """Step → the sum of its bars."""
    found: dict[int, float] = defaultdict(float)
    for bar in bars(figure):
        for x, y in zip(bar["x"], bar["y"], strict=True):
            found[x] += y
    return found


def test_bars_of_a_run_sum_to_its_steps():
    lines = [json.loads(line) for line in (SAVING / "steps.jsonl").read_text().splitlines()]
    free = {line["step"]: line["device_ns"] / 1e6 for line in lines if line["stage"] == "baseline_free"}
    assert len(free) > 50 and all(free.values()), "timed on the GPU"
    figure = drawn(diagnosed(SAVING))
    assert heights(figure) == pytest.approx(free, rel=1e-4)
    usual, saving = bars(figure)[:2]
    assert (usual["name"], saving["name"]) == ("usual step", "saving")
    assert usual["x"] == sorted(free)
    saved = [line["step"] for line in lines if line["stage"] == "baseline_free" and line.get("save_ns")]
    assert saving["x"] == saved
    assert "saving 66 %" in figure.layout.meta["note"]


def test_mean_and_usual_step_are_lines_with_their_times():
    found = of_stretch({"save": every(4, 120, 40)}, 40)
    data = json.loads(charts.to_json(drawn(found)))
    lines = {trace["name"]: trace["y"] for trace in data["data"] if trace.get("mode") == "lines"}
    assert lines == {"mean 50 ms": [50, 50], "usual 20 ms": [20, 20]}
    assert [label["text"] for label in data["layout"]["annotations"]] == ["mean 50 ms", "usual 20 ms"]


def test_labels_of_equal_lines_do_not_overlap():
    labels = drawn(of_stretch({"save": every(4, 1, 40)}, 40)).layout.annotations
    assert [label.yanchor for label in labels] == ["bottom", "top"]


def test_a_step_is_described_with_its_parts():
    found = of_stretch({"save": every(4, 120, 40), "input": every(8, 30, 40)}, 40)
    hover = next(t for t in drawn(found).to_plotly_json()["data"] if t["name"] == "steps")
    texts = dict(zip(hover["x"], hover["customdata"], strict=True))
    assert texts[7] == "<b>step 7: 20 ms</b><br>usual step 20 ms"
    assert texts[14] == "<b>step 14: 170 ms</b><br>usual step 20 ms<br>saving 120 ms<br>waiting for batches 30 ms"


def test_what_comes_once_is_named_so():
    found = of_stretch({"compile": [900.0] + [0.0] * 19}, 20)
    assert [bar["name"] for bar in bars(drawn(found))] == ["usual step", "compilation (once)"]
    assert "once compilation" in drawn(found).layout.meta["note"]
    assert budget_rows.once(found) == ["Once, not in the mean: compilation, 900 ms in 1 step"]
    assert [row.label for row in budget_rows.budget_rows(found)] == ["usual step", "variation", "mean step"]


def test_what_still_recurs_is_not_said_to_come_once():
    """It is part of the mean and becomes rarer."""
    shapes = {"new_shapes": every(3, 40, 20)}
    found = of_stretch(shapes, 20, recurring=frozenset({"new_shapes"}), ahead_ns={"new_shapes": 10**9})
    assert budget_rows.once(found) == ["Becomes rarer: planning for new shapes"]
    assert all("(once)" not in bar["name"] for bar in bars(drawn(found)))
    assert "once" not in drawn(found).layout.meta["note"]


def test_one_very_long_step_is_cut_and_labelled():
    found = drawn(of_stretch({"evaluation": every(40, 9000, 40), "save": every(5, 60, 40)}, 40))
    data = json.loads(charts.to_json(found))
    assert 80 < data["layout"]["yaxis"]["range"][1] < 400
    marks = next(trace for trace in data["data"] if trace["name"] == "longer than shown")
    assert (marks["x"], [text.strip() for text in marks["text"]]) == ([46], ["9.1 s"])
    assert "▲ 1 longer than shown" in found.layout.meta["note"]


def test_long_steps_that_are_the_pattern_are_shown_whole():
    data = json.loads(charts.to_json(drawn(of_stretch({"input": every(8, 600, 64)}, 64))))
    assert data["layout"]["yaxis"]["range"][1] > 620
    assert all(trace["name"] != "longer than shown" for trace in data["data"])


def test_a_cause_of_no_weight_has_no_entry_in_the_legend():
    found = of_stretch({"save": every(4, 120, 40), "garbage_collection": every(20, 0.05, 40)}, 40)
    figure = drawn(found)
    assert {bar["name"]: bar["showlegend"] for bar in bars(figure)}["garbage collection"] is False
    assert [part["key"] for part in figure.layout.meta["legend"]] == ["usual", "save"]
    assert "garbage collection" not in [row.label for row in budget_rows.budget_rows(found)]


def test_steps_that_paused_have_the_colour_of_pauses():
    ns = MS * np.array([21.0] * 20 + [121.0] + [21.0] * 19)
    stretch = FreeStretch(round(float(ns.sum())), ns, np.full(40, 20.0 * MS), 20 * MS)
    found = host_bound(budget=budget(stretch), _analysis=analysed(timed=timed_steps(stretch)))
    pauses, variation = bars(drawn(found))[1:]
    assert (pauses["name"], pauses["x"], pauses["y"]) == ("pauses", [21], [101])
    assert variation["name"] == "variation" and len(variation["x"]) == 39
    assert "Of their time, beyond the usual step: pauses 11 %" in drawn(found).layout.meta["note"]


def test_two_hundred_steps_are_a_small_figure():
    causes = {name: every(k, 10 * k, 200) for k, name in enumerate(("save", "evaluation", "logging", "input"), 2)}
    assert len(charts.to_json(drawn(of_stretch(causes, 200)))) < 60_000


def test_the_table_is_the_budget():
    found = of_stretch({"save": every(4, 120, 40)}, 40, every={"evaluation": 500})
    rows = [(row.key, row.label, row.time, row.share, row.note) for row in budget_rows.budget_rows(found)]
    assert rows[0] == ("usual", "usual step", "20 ms", "40 %", "")
    assert ("save", "saving", "+30 ms", "60 %", "in 10 of 40 steps") in rows
    assert ("evaluation", "evaluation", "not measured", "", "every 500 steps") in rows
    assert rows[-2] == ("variation", "variation", "0 ms", "0 %", "")
    assert rows[-1][:3] == ("", "mean step", "50 ms")


def test_a_recording_without_a_run_has_no_strip():
    found = diagnosed(BARE)
    assert found.budget is not None and found.budget.source == "recorded"
    assert charts.timed_steps(found) is None
    assert budget_rows.budget_rows(found) == []
    assert charts.timed_steps(replace(found, _analysis=of_stretch({}, 10)._analysis)) is None
