"""The strip of timed steps on the page."""

from __future__ import annotations

import pytest
from helpers.browser import DEMO, Report, write, written_once
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from helpers.quick import few

pytest_plugins = ["helpers.browser"]

SAVING = ROOT / "scenarios" / "periodic_saving" / "recording"


@pytest.fixture(scope="module")
def saving(tmp_path_factory) -> Report:
    """The report of a run that saves every fourth step."""
    return written_once(tmp_path_factory, "saving", lambda _: diagnosed(SAVING))


@pytest.mark.parametrize("width", few([1440, 390], ["390"]))
def test_each_step_has_its_bar_and_each_cause_its_name(saving, visit, width):
    timed = saving.diagnosis.timed
    with visit(saving, width=width) as seen:
        assert seen.drawn().complaints == []
        strip = seen.page.locator("#steps figure", has=seen.page.locator("[data-chart=timed_steps]"))
        traces = strip.locator(".barlayer .trace")
        shown = [traces.nth(i).locator(".point path") for i in range(traces.count())]
        assert shown[0].count() == len(timed.ns), "one bar a step"
        assert shown[1].count() == (timed.parts["save"] > 0).sum()
        boxes = [shown[0].nth(i).bounding_box() for i in range(len(timed.ns))]
        assert all(box["width"] >= 1.5 and box["height"] > 5 for box in boxes), "legible"
        assert strip.locator(".legend li").all_inner_texts() == ["usual step", "saving", "variation"]
        fill = shown[1].first.evaluate("e => getComputedStyle(e).fill")
        swatch = strip.locator(".legend li i").nth(1).evaluate("e => getComputedStyle(e).backgroundColor")
        in_bar = seen.page.locator(".stepbar span[title*=saving]").evaluate("e => getComputedStyle(e).backgroundColor")
        assert fill == swatch == in_bar, "one colour everywhere"
        labels = strip.locator(".annotation-text").all_text_contents()
        assert labels == ["mean 363 ms", "usual 123 ms"]
        right = strip.bounding_box()
        for i in range(2):
            label = strip.locator(".annotation-text").nth(i).bounding_box()
            assert label["x"] + label["width"] <= right["x"] + right["width"], "inside its panel"
        assert seen.page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_step_says_what_it_waited_for(saving, visit):
    timed = saving.diagnosis.timed
    row = int(timed.parts["save"].argmax())
    with visit(saving) as seen:
        seen.drawn()
        seen.page.locator("#steps").scroll_into_view_if_needed()
        bar = seen.page.locator("[data-chart=timed_steps] .barlayer .trace").first.locator(".point path").nth(row)
        box = bar.bounding_box()
        seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
        said = seen.page.locator("[data-chart=timed_steps] .hoverlayer .hovertext").last
        said.wait_for()
        text = said.text_content()
        assert f"step {timed.number[row]}" in text and "saving" in text and "usual step" in text


def test_the_budget_is_there_in_words_without_scripts(saving, visit):
    with visit(saving, scripts=False) as seen:
        rows = seen.page.locator("#steps .budget tbody tr").all_inner_texts()
    assert [" ".join(row.split()) for row in rows][:2] == [
        "usual step 123 ms 34 %", "saving in 14 of 57 steps +241 ms 66 %",
    ]  # fmt: skip


@pytest.mark.slow
def test_a_recording_without_a_run_has_no_strip(visit, tmp_path):
    with visit(write(diagnosed(DEMO), tmp_path / "page.html")) as seen:
        assert seen.drawn().complaints == []
        assert seen.page.locator("#steps").count() == 0
        assert seen.page.locator("nav a[href='#steps']").count() == 0
