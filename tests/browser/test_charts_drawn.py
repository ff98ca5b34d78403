"""Charts as plotly draws them in a browser."""

from __future__ import annotations

import json
from pathlib import Path

from helpers.diagnosed import diagnosed
from helpers.hostile import with_markup
from helpers.present import present

from gpuprof.report import charts

pytest_plugins = ["helpers.browser"]


def test_plotly_shows_the_name_as_it_is(visit, tmp_path_factory, tmp_path):
    """The label of a point holds the characters of the name, and no element made of them."""
    import plotly

    script = (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_text(encoding="utf-8")
    figure = charts.to_json(present(charts.bandwidth(diagnosed(with_markup(tmp_path_factory)))))
    path = tmp_path / "page.html"
    path.write_text(
        f"<!doctype html><meta charset=utf-8><div id=c style='width:900px'></div><script>{script}</script><script>"
        f"const f = {figure}; Plotly.newPlot('c', f.data, f.layout, {json.dumps(charts.CONFIG)})"
        ".then(() => { const i = f.data.findIndex(t => t.customdata);"
        " Plotly.Fx.hover('c', [{curveNumber: i, pointNumber: 0}]); document.title = 'ready' })</script>",
        encoding="utf-8",
    )
    with visit(path) as seen:
        seen.page.wait_for_function("document.title == 'ready' && document.querySelector('.hoverlayer text')")
        words = seen.page.eval_on_selector(".hoverlayer", "e => e.textContent")
        links = seen.page.eval_on_selector_all("#c a", "e => e.length")
        assert seen.complaints == []
    assert not links
    assert "<b>bold</b>" in words
    assert "&lt;i&gt;" in words, "an entity in a name is shown as it is written"
