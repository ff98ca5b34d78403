"""The report as a user opens it: a single file, in a browser that may or may not run scripts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from helpers.browser import HEIGHT, WIDTH, Report, Visit, until, words, write
from helpers.diagnosed import diagnosed
from helpers.make_diagnosis import ALL
from helpers.make_run import RunBuilder
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT
from helpers.quick import few
from helpers.rank_program import RankProgram
from helpers.rank_program import write as write_ranks

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Issue
from gpuprof.diagnosis.verdict.headline import headline, key
from gpuprof.report.names import escape
from gpuprof.report.palette import CAUSE_PAINTS
from gpuprof.report.words import fixes

pytest_plugins = ["helpers.browser"]

MS = 1_000_000
REACH = "() => document.documentElement.scrollWidth"
RANKS = ROOT / "scenarios" / "fsdp_exposed" / "recording"
BOX = "e => { const b = e.getBoundingClientRect(); return [b.left, b.top, b.right, b.bottom]; }"


@pytest.fixture(scope="module")
def opened_demo(demo, visit):
    """The page of the demo with everything drawn."""
    with visit(demo) as seen:
        yield seen.drawn()


@pytest.fixture(scope="module")
def opened_run(run, visit):
    """The page of the run with everything drawn."""
    with visit(run) as seen:
        yield seen.drawn()


@pytest.fixture(params=["demo", "run"])
def opened(request):
    """(a report, its page)."""
    return request.getfixturevalue(request.param), request.getfixturevalue(f"opened_{request.param}")


# -- alone


def test_it_opens_without_a_complaint_and_asks_for_nothing(opened):
    report, seen = opened
    assert seen.complaints == []
    assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [report.path.as_uri()]
    said = seen.page.locator("h1 .bound").inner_text()
    assert words(seen.page.title()).startswith(words(said))
    drawn = seen.page.locator(".chart").evaluate_all("all => all.map(e => e.querySelector('svg.main-svg') !== null)")
    assert drawn and all(drawn)
    assert seen.page.locator(".chart .issue, main > .issue").count() == 0


@pytest.mark.slow
def test_the_command_writes_the_same_page(one_kernel, tmp_path):
    path = tmp_path / "page.html"
    command = [sys.executable, "-m", "gpuprof", "report", one_kernel.diagnosis.source.path, "-o", path]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes() == one_kernel.path.read_bytes()


# -- the first screen


def test_the_first_screen_has_the_verdict_the_step_and_the_first_fix(opened):
    report, seen = opened
    first = report.diagnosis.findings[0]
    said = {
        "h1": report.diagnosis.verdict.bound.upper(),
        ".lead": report.diagnosis.verdict.summary,
        ".first .fix-title": first.title,
        ".first .gain": fixes.gain(first, now_ns(report)),
        ".first pre": first.fix,
        ".stepbar .bar": "",
        ".stepbar .legend": "waits:",
    }
    seen.page.evaluate("() => scrollTo(0, 0)")
    for selector, text in said.items():
        found = seen.page.locator(selector).first
        left, top, right, bottom = found.evaluate(BOX)
        assert words(text) in words(found.inner_text())
        assert 0 <= left < right <= WIDTH and 0 < top < bottom <= HEIGHT, selector
    parts = seen.page.locator(".stepbar").first.locator(".bar span").evaluate_all(f"all => all.map({BOX})")
    whole = seen.page.locator(".stepbar .bar").first.evaluate(BOX)
    assert parts[0][0] == pytest.approx(whole[0], abs=1) and parts[-1][2] == pytest.approx(whole[2], abs=1)


def test_every_link_of_the_heading_leads_to_a_section(opened):
    _, seen = opened
    assert sections(seen) == links(seen) | {"verdict"}
    for section in sorted(links(seen)):
        seen.page.locator(f"nav[aria-label=Sections] a[href='#{section}']").click()
        top = seen.page.locator(f"#{section} h2").first.evaluate(BOX)[1]
        bottom = seen.page.locator("header.top").evaluate(BOX)[3]
        assert bottom <= top <= HEIGHT, "and its title is not under the heading"


def now_ns(report: Report) -> float:
    return float(report.diagnosis.step_ns)


@pytest.mark.slow
def test_nothing_reaches_out_of_a_window_of_any_width(opened_demo):
    seen, wider = opened_demo, {}
    for width in (2560, 800, 640, 360, WIDTH):
        seen.page.set_viewport_size({"width": width, "height": HEIGHT})
        found = until(lambda: seen.page.evaluate(REACH), lambda reach, w=width: reach <= w, seconds=10, or_else=True)
        if found > width:
            wider[width] = found
    assert wider == {}


def test_a_fix_is_copied_as_it_is_written(demo, opened_demo):
    seen = opened_demo
    block = seen.page.locator("#fixes .card pre").first
    seen.page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    block.get_by_role("button", name="Copy the code").click()
    until(lambda: block.locator(".copy").inner_text(), lambda text: text == "Copied")
    assert seen.page.evaluate("() => navigator.clipboard.readText()") == demo.diagnosis.findings[0].fix


@pytest.mark.slow
def test_a_phone_shows_the_time_of_kernels_and_whole_identifiers(demo, visit):
    with visit(demo, width=390) as seen:
        page = seen.drawn().page
        head = page.locator("#kernels-view thead button[data-column=time]").bounding_box()
        assert head is not None and head["x"] + head["width"] <= 390
        for pre in page.locator("#fixes pre").all():
            assert pre.evaluate("pre => getComputedStyle(pre).overflowWrap") == "normal"
        plots = page.locator("#gpu .chart .nsewdrag.drag")
        assert plots.count() and all(plot.bounding_box()["width"] >= 200 for plot in plots.all())
        assert page.evaluate(CUT) == []
        assert page.evaluate(OVERLAPPING) == []


@pytest.mark.parametrize("width", few([320, 768, 1201, 1501], ["320"]))
def test_no_table_scrolls_sideways(run, visit, width):
    with visit(run, width=width) as seen:
        page = seen.drawn().page
        assert page.evaluate(REACH) <= width
        assert page.locator(".tabled", has_text="Your ranges").count() == 1
        wide = "e => e.filter(e => e.scrollWidth > e.clientWidth).map(e => e.textContent.trim().slice(0, 40))"
        assert page.locator(".tabled, .kernels-box").evaluate_all(wide) == []
        rates = page.locator("#kernels-view th button[data-column=flops]")
        assert rates.count() == 1 and rates.is_visible() is (width > 1000), "names have the room"


CUT = """() => [...document.querySelectorAll(".tl-name:not(.tl-group) .tl-text, .tl-strips div, .tabled")]
    .filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.trim().slice(0, 60))"""
"""Names of tracks, and tables, that end in the middle."""

OVERLAPPING = """() => {
    const found = [], boxes = all => all.map(e => [e.textContent || e.tagName, e.getBoundingClientRect()]);
    const meet = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
    const chart = document.querySelector("[data-chart=roofline]");
    const labels = boxes([...chart.querySelectorAll(".annotation-text-g")]);
    const points = boxes([...chart.querySelectorAll(".scatterlayer .point")]);
    labels.forEach(([text, box], i) => {
        for (const [other, b] of [...labels.slice(i + 1), ...points]) if (meet(box, b)) found.push([text, other]);
    });
    return labels.length > 1 && points.length > 1 ? found : ["nothing to look at"];
}"""
"""Labels of the roofline that lie on each other, or on a kernel."""


# -- without scripts


def test_without_scripts_the_words_stand_by_themselves(run, visit, tmp_path):
    """Everything essential is text: verdict, step, findings, warnings, environment."""
    quality = replace(run.diagnosis.quality, issues=(Issue("made", "warning", "A warning that was made up."),))
    report = write(replace(run.diagnosis, quality=quality), tmp_path / "page.html")
    diagnosis = report.diagnosis
    with visit(report, scripts=False) as seen:
        text = words(seen.page.locator("body").inner_text())
        assert seen.complaints == []
        assert seen.page.locator("html").get_attribute("data-ready") is None, "no script has run"
    assert words(diagnosis.verdict.summary) in text
    assert headline(diagnosis) in text and key(diagnosis) in text
    assert "Warning A warning that was made up." in text
    for finding in diagnosis.findings:
        assert finding.title in text and all(words(one.text) in text for one in finding.fix_lines)
        assert words(fixes.gain(finding, now_ns(report))) in text
        assert all(e.text in text for e in finding.evidence if e.start_ns is None)
    for cause in diagnosis.devices_estimated[0].idle_by_cause[:2]:
        assert f"waits: {CAUSE_PAINTS[cause.cause].label}" in text, "the legend of the step's bar"
    assert "What the GPU waits for, a step" in text and "The kernels that take longest, a step" in text
    assert "aten::mm" in text
    assert diagnosis.environment.gpus[0].name in text and diagnosis.run.model["class"].lower()[:5] in text.lower()
    assert "torch" in text and escape(diagnosis.source.path.rsplit("/", 1)[-1]) in text
    assert "drawn by a script" in text, "what cannot be seen says so"


# -- recordings that have less


@pytest.mark.parametrize("name", ["host_bound", "no_steps", "unusable", "hostile"])
def test_diagnoses_without_their_recording(name, visit, tmp_path):
    """Diagnoses made by hand lack a trace: the page has no views, but everything else."""
    diagnosis = replace(ALL[name](), window=None, roofline=None)
    with visit(write(diagnosis, tmp_path / "page.html")) as seen:
        assert seen.drawn().complaints == []
        assert links(seen) <= sections(seen)
        assert not sections(seen) & {"timeline", "flame", "kernels"}
        assert seen.page.locator("canvas, #data").count() == 0
        assert_charts_hold_something(seen)
        assert words(escape(diagnosis.verdict.summary)) in words(seen.page.locator("#verdict").inner_text())


def sections(seen: Visit) -> set[str]:
    return set(seen.page.locator("section").evaluate_all("all => all.map(e => e.id)"))


def links(seen: Visit) -> set[str]:
    return set(seen.page.locator("nav[aria-label=Sections] a").evaluate_all("all => all.map(e => e.hash.slice(1))"))


def host_only() -> TraceBuilder:
    builder = TraceBuilder(gpus=0)
    for i in range(3):
        at = i * MS
        builder.step(i, at, at + MS).op("aten::mm", at + 1_000, at + 900_000).op("aten::add", at + 2_000, at + 3_000)
    return builder


def test_a_recording_without_gpu_work_says_so(visit, tmp_path):
    """CPU activity is drawn, and no empty GPU chart."""
    report = write(gpuprof.diagnose(host_only().write(tmp_path / "host.json")), tmp_path / "page.html")
    with visit(report) as seen:
        assert seen.drawn().complaints == []
        page = seen.page
        assert "no GPU events" in page.locator("#verdict").inner_text()
        assert page.locator(".stepbar").count() == 0, "there is no step of a GPU"
        assert page.locator("#fixes").count() == 0
        assert page.locator("#kernels").count() == 0, "there are no kernels"
        assert page.locator(".tl-strips > div").all_inner_texts() == ["CPU"]
        pixels = page.evaluate(
            "[...document.querySelector('.tl-minimap').getContext('2d').getImageData(0, 14, 400, 1).data].join()"
        )
        colours = {tuple(pixels.split(",")[i : i + 3]) for i in range(0, 1600, 4)}
        assert len(colours) > 1, "the strip shows where the CPU works"
        assert page.locator("#kernels-view table").count() == 0
        assert page.locator("[role=tab]").all_inner_texts() == ["CPU time"]
        names = page.locator(".tl-name.tl-group").all_inner_texts()
        assert len(names) == 2 and not any("GPU" in name for name in names)
        assert_charts_hold_something(seen)


def test_a_run_without_a_trace_has_no_views(visit, tmp_path):
    report = write(
        gpuprof.diagnose(RunBuilder().stage("baseline_free", [80] * 10).write(tmp_path / "run", recording=None)),
        tmp_path / "page.html",
    )
    assert report.diagnosis.window is None
    with visit(report) as seen:
        assert seen.drawn().complaints == []
        assert sections(seen) == links(seen) | {"verdict"}
        assert not sections(seen) & {"timeline", "flame", "kernels", "gpu", "waiting"}
        assert seen.page.locator("h1").inner_text() == "NO TRACE"
        assert "80 ms" in seen.page.locator("body").inner_text()
        assert_charts_hold_something(seen)


@pytest.fixture(scope="module")
def one_kernel(tmp_path_factory) -> Report:
    """Of a recording without steps that holds one kernel in all."""
    folder = tmp_path_factory.mktemp("one")
    builder = TraceBuilder().op("aten::mm", 0, 900).launch("gemm", (100, 200), (300, 1_300))
    return write(gpuprof.diagnose(builder.write(folder / "one.json")), folder / "my report & more.html")


def test_an_empty_gpu_step_and_no_steps(one_kernel, visit):
    """Little to draw, and nothing breaks."""
    with visit(one_kernel) as seen:
        assert seen.drawn().complaints == []
        assert seen.page.locator("#kernels-view tbody tr").count() == 1
        assert "no iterations were found" in seen.page.locator("#verdict").inner_text()
        assert_charts_hold_something(seen)


def test_several_ranks_are_shown(visit, tmp_path):
    paths = write_ranks(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS), RankProgram()])
    report = write(gpuprof.diagnose(paths), tmp_path / "page.html")
    assert report.diagnosis.ranks is not None and len(report.diagnosis.ranks) == 3
    with visit(report) as seen:
        assert seen.drawn().complaints == []
        assert "straggler" in seen.page.locator("h1").inner_text()
        chart = seen.page.locator("[data-chart=ranks]")
        assert chart.is_visible()
        drawn = " ".join(chart.locator("text").all_text_contents())
        assert all(f"rank {rank}" in drawn or str(rank) in drawn for rank in range(3))
        assert_charts_hold_something(seen)


@pytest.mark.slow
def test_two_recorded_ranks(visit, tmp_path):
    diagnosis = replace(diagnosed(RANKS), window=None)  # views of a single rank are those of any recording
    report = write(diagnosis, tmp_path / "page.html")
    with visit(report) as seen:
        assert seen.drawn().complaints == []
        assert words(report.diagnosis.verdict.summary) in words(seen.page.locator(".lead").inner_text())
        assert seen.page.locator("[data-chart=ranks] svg").count()


def assert_charts_hold_something(seen: Visit) -> None:
    """Every chart has data, not only axes."""
    for chart in seen.page.locator(".chart").all():
        marks = chart.locator(".trace, .points path, .bars path, .scatterlayer path, .barlayer path, .pielayer path")
        assert marks.count(), chart.get_attribute("data-chart")


def test_data_that_is_damaged_is_said(demo, visit, tmp_path):
    """Text and charts are still shown."""
    text = demo.path.read_text(encoding="utf-8")
    begin = text.index(">", text.index('id="data"')) + 1
    path = tmp_path / "cut.html"
    path.write_text(
        text[:begin] + text[begin : begin + 1000] + text[text.index("</script>", begin) :], encoding="utf-8"
    )
    with visit(path) as seen:
        seen.drawn()
        assert "The views cannot be drawn" in seen.page.locator("main > .issue").inner_text()
        assert seen.page.locator(".lead").is_visible() and seen.page.locator(".chart svg").count()
        assert seen.complaints == []
