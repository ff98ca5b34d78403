"""Ways to read a report: in the light and the dark theme, on paper, with the keyboard alone, with a screen reader."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from helpers.browser import Report, Visit, until, words, write

from gpuprof.diagnosis.result.diagnosis import Issue
from gpuprof.report.words import fixes

pytest_plugins = ["helpers.browser"]

PAPER = 695
"""Pixels between the margins of A4."""

CONTRAST = """() => {
    const parse = text => {
        const [r, g, b, a = 1] = text.match(/-?[\\d.]+(e-?\\d+)?/g).map(Number);
        return text.startsWith("color(") ? [255 * r, 255 * g, 255 * b, a] : [r, g, b, a];
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((c, i) => a * c + (1 - a) * below[i]);
    const ground = element => {
        if (element === null) return [255, 255, 255];
        const colour = parse(getComputedStyle(element).backgroundColor);
        return colour[3] === 1 ? colour : over(colour, ground(element.parentElement));
    };
    const light = colour => {
        const [r, g, b] = colour.map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const axes = ".xtick text, .ytick text, .legendtext, .g-xtitle text, .g-ytitle text, .annotation-text";
    const found = [];
    for (const element of document.querySelectorAll("body *")) {
        const own = [...element.childNodes].some(n => n.nodeType === 3 && n.data.trim() !== "");
        if (!own || !element.checkVisibility() || element.closest("script, style, :disabled")) continue;
        const drawn = element.closest("svg") !== null;
        if (drawn && !element.matches(axes)) continue;
        const style = getComputedStyle(element);
        const behind = ground(drawn ? element.closest("div") : element);
        const [a, b] = [light(over(parse(drawn ? style.fill : style.color), behind)), light(behind)];
        const size = parseFloat(style.fontSize);
        const large = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
        const name = `${element.tagName}.${element.getAttribute("class")} ${element.textContent.trim().slice(0, 30)}`;
        found.push([(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), large ? 3 : 4.5, name]);
    }
    return found;
}"""


# -- by day and by night


def test_text_can_be_read_in_both_themes(unfolded):
    """WCAG AA: 4.5 to 1, large text 3 to 1. With a warning and an error, and all that can be opened open."""
    assert_text_can_be_read(unfolded)


def test_text_can_be_read_in_both_themes_without_scripts(with_issues, visit):
    with visit(with_issues, scripts=False) as seen:
        assert_text_can_be_read(seen)


def assert_text_can_be_read(seen: Visit) -> None:
    """Checks both themes, the dark one first; the light one stays."""
    for scheme in ("dark", "light"):
        seen.page.emulate_media(color_scheme=scheme)
        ground = until(lambda: brightness(seen), lambda sum_, dark=scheme == "dark": (sum_ < 200) == dark)
        found = seen.page.evaluate(CONTRAST)
        assert len(found) > 100
        bad = {(round(ratio, 2), name) for ratio, least, name in found if ratio < least}
        assert sorted(bad) == [], (scheme, ground)


def brightness(seen: Visit) -> int:
    """Brightness of the page's background, 0 to 765."""
    colour = seen.page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", colour)[:3]))


def unfold(seen: Visit) -> None:
    """Opens all that can be opened, and selects an event."""
    seen.page.locator(".places a").first.click()
    for summary in seen.page.locator("summary:visible").all():
        summary.click()
    seen.page.locator(".kernels-open").first.click()


@pytest.mark.slow
def test_the_theme_is_the_systems_until_it_is_chosen(run, visit):
    with visit(run, color_scheme="dark") as seen:
        page = seen.drawn().page
        assert theme(seen) == "dark"
        page.emulate_media(color_scheme="light")
        until(lambda: theme(seen), lambda now: now == "light")
        before = ground(seen)
        page.locator("#theme").click()
        assert theme(seen) == "dark"
        after = ground(seen)
        assert all(a != b for a, b in zip(before, after, strict=True)), "the page, the timeline, the flames, the charts"
        page.reload()
        assert theme(seen.ready()) == "dark", "the choice is kept"
        page.emulate_media(color_scheme="dark")
        page.emulate_media(color_scheme="light")
        assert theme(seen) == "dark", "whatever the system says"
        page.locator("#theme").click()
        assert theme(seen) == "light"
        assert seen.complaints == []


def theme(seen: Visit) -> str | None:
    return seen.page.locator("html").get_attribute("data-theme")


def ground(seen: Visit) -> list[str]:
    """Background and foreground colours of the page, the views and a chart."""
    seen.timeline("draw()")
    return seen.page.evaluate(
        """() => {
            const corner = selector => {
                const canvas = document.querySelector(selector);
                const copy = document.createElement("canvas");
                const pen = copy.getContext("2d", { willReadFrequently: true });
                pen.drawImage(canvas, 1 - canvas.width, 1 - canvas.height);
                return pen.getImageData(0, 0, 1, 1).data.join();
            };
            return [
                getComputedStyle(document.body).backgroundColor,
                corner(".tl-tracks"),
                corner("#panel-flame-gpu canvas"),
                getComputedStyle(document.querySelector(".chart .xtick text")).fill,
            ];
        }"""
    )


# -- on paper


@pytest.mark.slow
def test_it_prints(unfolded):
    unfolded.page.emulate_media(media="null")  # as a browser prints it: not what is drawn for the screen
    paper = unfolded.page.pdf(prefer_css_page_size=True)
    unfolded.page.emulate_media(media="screen")
    assert paper.startswith(b"%PDF-") and len(paper) > 50_000
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", paper)) <= 15
    assert theme(unfolded) == "light"
    assert unfolded.page.locator(".tl-bar").is_visible(), "the screen is as it was"
    assert unfolded.complaints == []


def test_paper_is_white_and_has_no_controls(run, visit):
    """The page is in the state in which the browser prints it."""
    with visit(run, color_scheme="dark", width=PAPER) as seen:
        page = seen.drawn().page
        page.locator("#fix-1 summary").click()
        page.emulate_media(media="print")
        page.evaluate("() => window.dispatchEvent(new Event('beforeprint'))")
        assert theme(seen) == "light"
        body, tracks, flame, chart = ground(seen)
        assert body == "rgb(255, 255, 255)"
        for canvas in (tracks, flame):
            assert min(map(int, canvas.split(",")[:3])) > 200, "nothing dark is filled"
        assert max(map(int, re.findall(r"\d+", chart)[:3])) < 140, "and letters are dark"
        controls = "#theme, nav[aria-label=Sections], .tl-bar, .tl-handle, .kernels-bar, input, select, [role=tooltip]"
        seen_ones = "all => all.filter(e => e.checkVisibility()).map(e => e.outerHTML.slice(0, 80))"
        assert page.locator(controls).evaluate_all(seen_ones) == []
        assert_findings_are_there(seen, run)
        assert page.locator("#fix-1 details").inner_text().count("\n") > 1, "what was opened is printed"
        for canvas in page.locator(".tl-tracks, #panel-flame-gpu canvas").all():
            box = canvas.bounding_box()
            assert box["x"] >= 0 and box["x"] + box["width"] <= PAPER and box["height"] > 100
        table = page.locator("#kernels-view table").bounding_box()
        assert table["x"] + table["width"] <= PAPER, "its last column is printed, too"
        names = page.locator("#kernels-view tbody .kernels-name").all()[:20]
        assert max(one.bounding_box()["height"] for one in names) < 20, "a kernel's name is one line"
        page.evaluate("() => window.dispatchEvent(new Event('afterprint'))")
        page.emulate_media(media="screen")
        assert theme(seen) == "dark"
        assert page.locator(".tl-bar").is_visible()
        assert seen.complaints == []


def assert_findings_are_there(seen: Visit, report: Report) -> None:
    now = report.diagnosis.step_ns
    for number, finding in enumerate(report.diagnosis.findings, 1):
        text = words(seen.page.locator(f"#fix-{number}").inner_text())
        assert finding.title in text and all(words(one.text) in text for one in finding.fix_lines)
        assert words(fixes.gain(finding, float(now))) in text
        assert all(e.text in text for e in finding.evidence if e.start_ns is None)


# -- with the keyboard alone


def test_the_keyboard_reaches_everything_and_shows_where_it_is(opened):
    page = opened.page
    page.locator(".kernels-bar input").fill("aten::mul backward")  # fewer rows, each of which is a stop
    page.evaluate("() => document.activeElement.blur()")
    page.mouse.click(3, 3)
    stops, hidden, unseen = [], [], []
    for _ in range(400):
        page.keyboard.press("Tab")
        stop = page.evaluate(
            """() => {
                const e = document.activeElement;
                if (e === document.body) return null;
                const style = getComputedStyle(e), box = e.getBoundingClientRect();
                const lined = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 1;
                const inside = box.bottom > 0 && box.top < innerHeight && box.width > 0 && box.height > 0;
                const path = e.tagName + "#" + e.id + "." + e.className + " " + (e.dataset.column ?? "");
                return [path, lined || style.boxShadow !== "none", inside, e.matches(".places a")];
            }"""
        )
        if stop is None:
            break
        path, shown, inside, place = stop
        stops.append("place" if place else path)
        if not shown:
            hidden.append(path)
        if not inside:
            unseen.append(path)
    assert stops.count("place") == page.locator(".places a").count()
    columns = page.locator("#kernels-view [data-column]").count()
    assert columns > 8 and sum(re.search(r" \w+$", stop) is not None for stop in stops) == columns
    also = ("#theme", "#tab-flame-gpu", "tl-search", "tl-tracks", "kernels-open", "tl-name", "SELECT", "SUMMARY")
    for wanted in also:
        assert any(wanted in stop for stop in stops), wanted
    assert not any("#tab-flame-host" in stop for stop in stops), "one of the tabs; arrows lead to the others"
    assert sorted(set(hidden)) == [], "the focus is seen"
    assert sorted(set(unseen)) == [], "and is on the screen"


def test_keys_do_what_clicks_do(run, opened):
    place = next(e for e in run.diagnosis.findings[0].evidence if e.start_ns is not None)
    page = opened.page
    page.locator(".places a").first.press("Enter")
    start, end = opened.view
    assert start <= place.start_ns and place.start_ns + place.ns <= end
    page.locator("[data-column=count]").press("Enter")
    assert page.locator("[data-column=count]").locator("..").get_attribute("aria-sort") == "descending"
    page.keyboard.press("Space")
    assert page.locator("[data-column=count]").locator("..").get_attribute("aria-sort") == "ascending"
    handle = page.get_by_role("separator", name="Height of the timeline")
    before = page.locator(".tl-tracks").bounding_box()["height"]
    handle.press("ArrowUp")
    until(lambda: page.locator(".tl-tracks").bounding_box()["height"], lambda height: height == before - 40)


# -- with a reader of screens


@pytest.fixture(scope="module")
def with_issues(run, tmp_path_factory) -> Report:
    """The run with a warning and an error."""
    issues = (Issue("one", "warning", "Take care."), Issue("two", "error", "This is wrong."))
    diagnosis = replace(run.diagnosis, quality=replace(run.diagnosis.quality, issues=issues))
    return write(diagnosis, tmp_path_factory.mktemp("issues") / "page.html")


@pytest.fixture(scope="module")
def unfolded(with_issues, visit):
    """That page with everything unfolded."""
    with visit(with_issues) as seen:
        unfold(seen.drawn())
        yield seen


@pytest.fixture(scope="module")
def opened_run(run, visit):
    with visit(run) as seen:
        yield seen.drawn()


@pytest.fixture
def opened(opened_run) -> Visit:
    """The page of the run with nothing selected and nothing filtered."""
    page = opened_run.page
    page.locator(".kernels-bar input").fill("")
    for _ in range(page.locator(".tl-facts").count()):
        page.locator(".tl-tracks").press("Escape")
    assert opened_run.timeline("selected()") is None
    return opened_run


def test_headings_go_down_one_by_one(unfolded):
    found = unfolded.page.evaluate(
        """() => [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].filter(e => e.checkVisibility())
            .map(e => [Number(e.tagName[1]), e.textContent.trim()])"""
    )
    levels = [level for level, _ in found]
    assert levels[0] == 1 and levels.count(1) == 1
    skipped = [below for above, below in pairwise(found) if below[0] > above[0] + 1]
    assert skipped == []
    assert all(text for _, text in found)


def test_everything_that_can_be_used_has_a_name(unfolded):
    """As Chromium reports it to a screen reader."""
    used = {
        "button", "link", "textbox", "searchbox", "combobox", "tab", "tabpanel", "checkbox", "dialog", "toolbar",
        "application", "image", "region", "navigation", "DisclosureTriangle",
    }  # fmt: skip
    nodes = unfolded.page.context.new_cdp_session(unfolded.page).send("Accessibility.getFullAXTree")["nodes"]
    known = [node for node in nodes if not node.get("ignored")]
    roles = [node.get("role", {}).get("value") for node in known]
    names = [str(node.get("name", {}).get("value", "")).strip() for node in known]
    assert roles.count("main") == roles.count("banner") == 1
    assert {"tab", "button", "link", "searchbox", "combobox", "application", "image"} <= set(roles)
    assert [role for role, name in zip(roles, names, strict=True) if role in used and not name] == []
    landmarks = [pair for pair in zip(roles, names, strict=True) if pair[0] in ("navigation", "region")]
    assert len(landmarks) == len(set(landmarks)), "distinct names"


def test_what_is_selected_is_said(opened):
    page = opened.page
    said = page.locator(".tl-said[aria-live=polite]")
    assert said.inner_text() == ""
    page.locator(".places a").first.click()
    assert page.evaluate("() => gpuprofTimeline.selected().name") in said.inner_text()
    bars = page.locator(".stepbar .bar").all()
    assert bars
    for bar in bars:
        assert bar.get_attribute("role") == "img" and "%" in bar.get_attribute("aria-label")
