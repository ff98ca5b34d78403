"""Figures as they are written: small, with units, in both themes, and with names that are never markup."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from helpers.charts import content, drawn
from helpers.diagnosed import diagnosed
from helpers.hostile import with_markup
from helpers.make_diagnosis import HOSTILE, MS, host_bound
from helpers.paths import ROOT
from helpers.present import present

from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.report import charts
from gpuprof.report.charts.style import number, plain
from gpuprof.value_range import Range

pytest_plugins = ["helpers.charts"]


def test_figures_need_the_smallest_bundle_only(real):
    for name, figure in drawn(real).items():
        found = content(figure)
        assert {trace["type"] for trace in found["data"]} <= {"scatter", "bar"}, name
        assert found["data"], name
        assert len(json.dumps(found)) < 100_000, name
        template = found["layout"].get("template", {})
        assert "layout" not in template, "the style is ours"


def test_axes_have_titles_with_units(real):
    for name, figure in drawn(real).items():
        layout = content(figure)["layout"]
        titles = [axis.get("title", {}).get("text") for key, axis in layout.items() if key[1:5] == "axis"]
        assert any(titles), name
        assert layout["meta"]["title"]
        assert len(layout["meta"]["note"]) <= 130, "one line of a page 900 pixels wide"


def test_both_themes_are_in_the_figure(real):
    for name, figure in drawn(real).items():
        light, dark = (charts.for_theme(figure, theme).to_plotly_json() for theme in ("light", "dark"))
        assert light == figure.to_plotly_json(), name
        assert light["layout"]["font"]["color"] != dark["layout"]["font"]["color"]
        meta = figure.layout.meta
        assert set(meta["light"]) == set(meta["dark"])
        for trace in figure.to_plotly_json()["data"]:
            assert trace["meta"]["light"].keys() == trace["meta"]["dark"].keys()


def test_json_may_stand_in_a_script():
    import plotly.graph_objects as go

    values = [1 / 3, math.nan, math.inf, np.float32(2.5), np.int64(3), None, 1e20, 123456789.0]
    figure = go.Figure({"data": [{"type": "scatter", "y": values, "name": "</script><b>&\u2028"}], "layout": {}})
    text = charts.to_json(figure)
    assert not set("<>&\u2028") & set(text)
    trace = json.loads(text)["data"][0]
    assert trace["y"] == [0.333333, None, None, 2.5, 3, None, 1e20, 123457000]
    assert trace["name"] == "</script><b>&\u2028"
    arrays = go.Figure({"data": [{"type": "scatter", "y": np.array([1.0, np.nan])}]})
    assert json.loads(charts.to_json(arrays))["data"][0]["y"] == [1, None]


def test_numbers_keep_six_digits():
    assert number(0.1 + 0.2) == 0.3
    assert number(1234567.8) == 1234570
    assert number(-0.0) == 0


def test_without_a_title_the_chart_is_smaller(bare_trace):
    figure = present(charts.phases(bare_trace))
    untitled = json.loads(charts.to_json(figure))["layout"]
    assert "title" not in untitled
    assert untitled["height"] < figure.layout.height
    assert figure.layout.title.text, "the figure itself keeps it"


def test_only_charts_load_plotly():
    code = "import sys, gpuprof.cli, gpuprof.report.palette; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


# -- names


@pytest.mark.slow
def test_names_are_no_markup(tmp_path_factory):
    hostile = diagnosed(with_markup(tmp_path_factory))
    found = [charts.bandwidth(hostile), charts.gap_histogram(hostile), charts.roofline(hostile)]
    texts = [text for figure in found if figure is not None for text in _strings(content(figure))]
    assert any("&amp;lt;i&amp;gt;&lt;b&gt;bold" in text for text in texts), "the names are there"
    for text in texts:
        assert "<b>bold" not in text
        assert "href" not in text or "&lt;a" in text
        assert "$" not in text, "MathJax would take it for a formula"
        assert "\u202e" not in text
        assert "\x1b" not in text


def _strings(value) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _strings(item)]
    if isinstance(value, list):
        return [text for item in value for text in _strings(item)]
    return [value] if isinstance(value, str) else []


def test_titles_of_findings_are_text():
    finding = Finding("a", HOSTILE, "high", (), "", Range(MS, MS, MS), Range(1, 2, 3))
    steps = replace(present(host_bound().steps), unprofiled_ns=100 * MS)
    figure = content(charts.what_if(host_bound(findings=(finding,), steps=steps)))
    assert "<script>" not in json.dumps(figure)
    assert "&lt;/script&gt;&amp;" in figure["layout"]["yaxis"]["ticktext"][0]


def test_plain_words():
    assert plain("a < b & $c$") == "a &lt; b &amp; &#36;c&#36;"
