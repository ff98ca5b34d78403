"""The report as one HTML file: words that need no script, and views that work where scripts may run.

`render` is a pure function of the Diagnosis. Nothing is loaded: styles, scripts, data and the charts' library are
inside. The page's own content policy allows only its two scripts, by their digests, so that no name in a recording can
become a script.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import jinja2

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.verdict.headline import headline, key, key_and_why
from gpuprof.report import charts, labels, palette
from gpuprof.report.names import escape
from gpuprof.report.page import budget_rows, content, fix_cards, step_bars
from gpuprof.report.page.iteration import iteration_part
from gpuprof.report.page.memory_peak import at_peak
from gpuprof.report.page.packing import embed
from gpuprof.report.page.rank_pages import ReportLink
from gpuprof.report.page.reach_bar import reach_bars
from gpuprof.report.page.views.timeline_window import MOST_EVENTS
from gpuprof.report.page.views.views import packed_views
from gpuprof.report.words import fixes, glossary, words

_HERE = files("gpuprof.report.page")

_UNIT_SPACE = re.compile(r"(?<=\d) (?=(?:[mµn]?s|[kMGT]i?B)\b|%)")

CHARTS = (
    ("steps", ("timed_steps",)),
    ("plan", ("ranks", "rank_steps", "critical_path", "what_if", "sensitivities")),
    ("memory", ("memory_owners",)),
    ("gpu", ("roofline", "bandwidth")),
    ("waiting", ("gap_histogram", "phases")),
    ("run", ("steps", "memory", "telemetry")),
)
"""Section of the page → its charts, in order; a chart without data is left out."""


def render(diagnosis: Diagnosis, most_events: int = MOST_EVENTS, links: Sequence[ReportLink] = ()) -> str:
    """The page. `most_events`: how many the timeline may show; `links`: reports of other ranks next to this one."""
    drawn = {section: [chart for name in names if (chart := _chart(name, diagnosis))] for section, names in CHARTS}
    views, note = _views(diagnosis, most_events)
    cards = fix_cards.cards(diagnosis)
    tiles, bars = content.tiles(diagnosis), [*step_bars.step_bars(diagnosis), *reach_bars(diagnosis)]
    viewer = _asset("viewer.js")
    plotly = gzip.decompress((_HERE / "assets" / "plotly-basic.min.js.gz").read_bytes())
    return template("report.html").render(
        unit=diagnosis.unit,
        each=diagnosis.unit.a,
        verdict=headline(diagnosis),
        key=key_and_why(diagnosis),
        family=diagnosis.verdict.family or "none",
        name=escape(diagnosis.source.path.rsplit("/", 1)[-1])[:80],
        headline=content.headline(diagnosis),
        summary=escape(words.summary(diagnosis)),
        tiles=tiles,
        bars=bars,
        terms=glossary.used(_words_shown(diagnosis, tiles, bars)),
        iteration=iteration_part(diagnosis),
        budget=budget_rows.budget_rows(diagnosis),
        once=budget_rows.once(diagnosis),
        alike=budget_rows.alike(diagnosis),
        issues=[(i.severity, escape(i.message)) for i in diagnosis.quality.issues],
        notes=[escape(note) for note in (diagnosis.run.notes if diagnosis.run else ())],
        cards=cards,
        first=cards[0] if cards else None,
        combined=fix_cards.combined(diagnosis),
        uncertain=fix_cards.uncertain_mean(diagnosis),
        considered=fix_cards.considered(diagnosis),
        tries=fix_cards.tries(diagnosis),
        why_first=fixes.why_first(diagnosis) or fixes.why_not_the_cause(diagnosis),
        remaining=fixes.remaining(diagnosis),
        profiler=words.profiler(diagnosis),
        lacks=content.lacks(diagnosis),
        waits=content.waits(diagnosis),
        kernels=content.kernels(diagnosis),
        ranges=content.ranges(diagnosis),
        activity=content.activity(diagnosis),
        functions=content.functions(diagnosis),
        environment=content.environment(diagnosis),
        memory=None if diagnosis.memory is None else at_peak(diagnosis.memory),
        charts=drawn,
        any_chart=any(drawn.values()),
        views=views,
        views_note=note,
        rank=diagnosis.environment.rank,
        links=links,
        policy=_policy(viewer.encode(), plotly),
        viewer=viewer,
        styles=palette_css() + _asset("viewer.css") + style("report.css") + style("memory.css"),
        plotly=_plotly(),
    )


def _words_shown(diagnosis: Diagnosis, tiles: Sequence[content.Tile], bars: Sequence[step_bars.StepBar]) -> list[str]:
    """The words of the page's first screen that the glossary explains."""
    parts = [part.label for bar in bars for part in bar.parts if part.named]
    said = [key(diagnosis), "mean step", "usual step", "recorded"]
    said += ["replay error"] if diagnosis.replay.shown else []
    said += ["likely"] if diagnosis.worth_trying else []
    said += ["per sample"] if any(one.work != 1 for one in (*diagnosis.findings, *diagnosis.worth_trying)) else []
    resources = labels.RESOURCES.values() if diagnosis.sensitivities is not None else ()
    return [*said, *parts, *(tile.label for tile in tiles), *resources]


def _chart(name: str, diagnosis: Diagnosis) -> dict[str, Any] | None:
    figure = getattr(charts, name)(diagnosis)
    if figure is None:
        return None
    meta = figure.layout.meta
    legend = meta.get("legend", ())
    if legend:  # HTML wraps at any width; plotly's legend would make the plot smaller
        margin = figure.layout.margin.t - charts.LEGEND_PX
        figure.update_layout(showlegend=False, height=figure.layout.height - charts.LEGEND_PX, margin={"t": margin})
    text = charts.to_json(figure)
    # The height must be known before the chart is drawn, or the page jumps.
    height = json.loads(text)["layout"]["height"]
    said = {"title": meta["title"], "note": meta["note"], "legend": legend}
    return {"name": name, **said, "json": text, "height": height}


def _views(diagnosis: Diagnosis, most_events: int) -> tuple[str, str]:
    if diagnosis.window is None:
        return "", ""
    packed, note = packed_views(diagnosis, most_events)
    return embed(packed), note


def theme_button() -> dict[str, str]:
    """(`policy`, `script`) of a page whose only script changes between light and dark."""
    script = _asset("theme_button.js")
    return {"policy": _policy(script.encode()), "script": script}


def viewer_script() -> dict[str, str]:
    """(`policy`, `viewer`) of a page whose only script is the viewer."""
    viewer = _asset("viewer.js")
    return {"policy": _policy(viewer.encode()), "viewer": viewer}


def _policy(*scripts: bytes) -> str:
    digests = " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(s).digest()).decode()}'" for s in scripts)
    return f"default-src 'none'; script-src {digests}; style-src 'unsafe-inline'; img-src data: blob:; font-src data:"


@cache
def template(name: str) -> jinja2.Template:
    """One of the page's templates, which escapes its variables."""
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: (_HERE / "templates" / name).read_text(encoding="utf-8")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(tied=tied, term=glossary.find)
    return environment.get_template(name)


def tied(text: str) -> str:
    """Prose in which no line breaks between a number and its unit: `22 µs`, `50 %`."""
    return _UNIT_SPACE.sub("\N{NO-BREAK SPACE}", text)


def style(name: str) -> str:
    """One of the page's style sheets."""
    return (_HERE / name).read_text(encoding="utf-8")


@cache
def _asset(name: str) -> str:
    return (_HERE / "assets" / name).read_text(encoding="utf-8")


@cache
def _plotly() -> str:
    return base64.b64encode((_HERE / "assets" / "plotly-basic.min.js.gz").read_bytes()).decode("ascii")


def ink_css(theme: str) -> str:
    """Custom properties such as `--on-owner-weights`: black or white, for words on an owner's colour."""
    return "".join(f"--on-owner-{p.key}:{palette.text_on(getattr(p, theme))};" for p in palette.OWNER_PAINTS.values())


def palette_css() -> str:
    """Custom properties such as `--cause-launch`, for both themes."""
    causes = {**palette.CAUSE_PAINTS, **palette.BUDGET_PAINTS}
    sets = {
        "work": palette.WORK_PAINTS,
        "cause": causes,
        "bound": palette.BOUND_PAINTS,
        "phase": palette.PHASE_PAINTS,
        "owner": palette.OWNER_PAINTS,
    }
    return palette.themed(
        lambda theme: (
            "".join(f"--{kind}-{p.key}:{getattr(p, theme)};" for kind, paints in sets.items() for p in paints.values())
            + ink_css(theme)
        )
    )
