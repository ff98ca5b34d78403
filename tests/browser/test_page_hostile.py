"""A recording is an untrusted file: whatever its names are, on the page they are only text."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.browser import HEIGHT, WIDTH, Report, Visit, until, words, write, written_once
from helpers.hostile import IMAGE, PAYLOADS, SCRIPT
from helpers.make_trace import AUTOGRAD, MAIN, TraceBuilder

import gpuprof
from gpuprof.diagnosis.result.diagnosis import Diagnosis, Issue
from gpuprof.diagnosis.result.finding_model import Considered, Evidence, Finding
from gpuprof.report.names import escape
from gpuprof.value_range import Range

pytest_plugins = ["helpers.browser"]

MS = 1_000_000
TURNS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ud800-\udfff\ufeff]")
"""Characters that reverse a line's direction or are invisible: none may reach the page."""


def recording(name: Callable[[str], str]) -> TraceBuilder:
    """Steps that wait for data and for the GPU; with every payload as an op, a kernel, a module, a range, a frame."""
    builder = TraceBuilder(
        0, deviceProperties=[{"id": 0, "name": name(f"GPU {IMAGE}"), "totalGlobalMem": 2**36}],
        cuda_runtime_version=13000, pytorch_version=name(f"2.11{SCRIPT}"), traceName=name(IMAGE),
    )  # fmt: skip
    threads = ((MAIN, f"main {SCRIPT}\u202e"), (AUTOGRAD, f"pt_autograd_0 {IMAGE}\u202e"))
    for tid, thread in threads:
        builder.event(ph="M", name="thread_name", pid=1, tid=tid, ts=0, args={"name": name(thread)})
    for s in range(4):
        at = s * 10 * MS
        builder.step(s, at, at + 10 * MS - 1_000)
        builder.op("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at + 20, at + 2 * MS)
        for i, payload in enumerate(PAYLOADS):
            low = at + 2 * MS + i * 200_000
            builder.frame(f"nn.Module: Layer{name(payload)}_{i}", low, low + 190_000)
            builder.frame(f"train.py({i}): {name(payload)}", low + 10, low + 189_000)
            builder.annotation(f"range {i} {name(payload)}", low + 20, low + 188_000)
            said = {"Input Dims": [[8, 8]], "Input type": [name(payload)], "Sequence number": i}
            builder.op(f"op {i} {name(payload)}", low + 1_000, low + 100_000, **said)
            kernel = f"void kernel{i}<{name(payload)}>(int)" if i % 2 else f"kernel {i} {name(payload)}"
            builder.launch(kernel, (low + 5_000, low + 9_000), (low + 10_000, low + 30_000))
            builder.op(f"back {i} {name(payload)}", low + 100_000, low + 150_000, AUTOGRAD)
        end = at + 8 * MS
        builder.op("aten::item", end, end + 500_000)
        builder.call("cudaStreamSynchronize", end + 10, end + 400_000, correlation=50_000 + s)
        builder.gpu("Memcpy DtoH", end + 399_900, end + 400_000, cat="gpu_memcpy", correlation=50_000 + s)
    return builder


def made(folder: Path, name: Callable[[str], str]) -> Diagnosis:
    """A report whose findings, warnings and verdict are hostile as well."""
    trace = recording(name).write(folder / name(f"x{IMAGE}'\"{{{{7*7}}}}\u202e&.json").replace("/", "|"))
    diagnosis: Any = gpuprof.diagnose(trace)
    findings = tuple(
        Finding(
            id=("syncs", "larger_batch")[i],
            title=name(f"title {i} {SCRIPT}{IMAGE}\u202e"),
            severity="high",
            evidence=(
                Evidence(name(f"fact {i} {SCRIPT}{IMAGE}")),
                Evidence(name(f"{IMAGE}{SCRIPT}\u202e"), start_ns=2 * MS, ns=MS, where=name(f"thread {IMAGE}")),
            ),
            fix=name(f"fix {i} {SCRIPT}{IMAGE}{{{{7*7}}}}\u202e"),
            step_ns=Range(4.0 * MS, 5.0 * MS, 6.0 * MS),
            speedup=Range(1.2, 1.5, 1.9),
            changes=name(f"change {i} {SCRIPT}{IMAGE}"),
        )
        for i in range(2)
    )
    considered = (Considered("compile", name(f"title {SCRIPT}\u202e"), name(f"reason {IMAGE}{{{{7*7}}}}")),)
    issues = (Issue("made", "warning", name(f"warning {SCRIPT}{IMAGE}\u202e")),)
    verdict = replace(diagnosis.verdict, sentences=(name(f"summary {SCRIPT}{IMAGE}\u202e"),))
    quality = replace(diagnosis.quality, issues=issues)
    return replace(diagnosis, findings=findings, quality=quality, verdict=verdict, combined=None, considered=considered)


def plain(name: str) -> str:
    """A harmless name for each hostile one, equally long on the screen."""
    return re.sub(r"[^\w ]", "x", escape(name[:3_000])) if name else ""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory) -> Report:
    return written_once(tmp_path_factory, "hostile", lambda folder: made(folder, str))


@pytest.fixture(scope="module")
def harmless(tmp_path_factory) -> Report:
    return written_once(tmp_path_factory, "harmless", lambda folder: made(folder, plain))


REACHING = """() => [...document.querySelectorAll("main *")].filter(e =>
    !e.parentElement.closest(".kernels-box, .tl-box, .flame-scroll, svg, noscript") &&
    e.getBoundingClientRect().right > innerWidth + 1
).map(e => `${e.tagName}.${e.getAttribute("class")}`)"""
"""Elements that extend beyond the window, except those that scroll."""


def elements(seen: Visit) -> list[str]:
    """Tags of the page in order, but for what is inside of charts and for places where a line may break."""
    return seen.page.evaluate(
        """() => [...document.querySelectorAll("*:not(wbr)")]
            .filter(e => !e.closest("svg svg, .chart-stage *")).map(e => e.tagName + (e.id && "#" + e.id))"""
    )


def all_text(seen: Visit) -> str:
    """Every text and every attribute of the page, but for its own scripts and styles."""
    return seen.page.evaluate(
        """() => [...document.querySelectorAll("*")].filter(e => !e.closest("script, style"))
            .flatMap(e => [...[...e.childNodes].filter(n => n.nodeType === 3).map(n => n.data),
                           ...[...e.attributes].map(a => a.name + "=" + a.value)]).join("\\n")"""
    )


def assert_unharmed(seen: Visit) -> None:
    assert seen.complaints == []
    assert seen.page.evaluate("() => typeof window.hacked") == "undefined"
    assert all(url.startswith(("file:", "data:", "blob:")) for url in seen.requests) and len(seen.requests) == 1
    assert seen.page.locator("img, iframe, object, embed, form, base").count() == 0
    names = "() => [...new Set([...document.querySelectorAll('*')].flatMap(e => e.getAttributeNames()))]"
    assert [name for name in seen.page.evaluate(names) if name.startswith("on")] == []
    assert not TURNS.search(all_text(seen))
    assert seen.page.evaluate("() => document.documentElement.scrollWidth") <= WIDTH


def test_names_are_text_in_every_view(hostile, harmless, visit):
    """The page has the same elements as its harmless twin, before and after everything was opened."""
    found = []
    for report in (harmless, hostile):
        with visit(report) as seen:
            seen.drawn()
            before = elements(seen)
            look_everywhere(seen, report)
            assert_unharmed(seen)
            found.append((before, elements(seen)))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


def look_everywhere(seen: Visit, report: Report) -> None:
    """Opens everything that can be opened, hovers over and clicks everything visible, and searches for existing
    names."""
    page = seen.page
    for summary in page.locator("summary").all():
        if summary.is_visible():
            summary.click()
    for link in page.locator(".places a").all()[:2]:
        link.click()
    tracks = report.header["tracks"]
    kinds: dict[str, int] = {}
    for i, event in enumerate(report.events):
        if "100" not in event.name:
            kinds[tracks[event.track]["kind"]] = i
    for i in kinds.values():
        event = report.events[i]
        page.evaluate(f"() => gpuprofTimeline.setView({event.start_ns - 1}, {event.start_ns + event.ns + 1})")
        row = page.locator(f".tl-name[data-row='{tracks[event.track]['group']}-{event.track}']")
        row.scroll_into_view_if_needed()
        box, name = page.locator(".tl-tracks").bounding_box(), row.bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, name["y"] + min(12 + 18 * event.depth, name["height"] / 2))
    for kind in ("host", "idle", "gpu"):
        page.locator(f"#tab-flame-{kind}").click()
        canvas = page.locator(f"#panel-flame-{kind} canvas")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        for depth in (1, 2, 3):
            page.mouse.move(box["x"] + 30, box["y"] + 20 * depth + 10)
            page.mouse.click(box["x"] + 30, box["y"] + 20 * depth + 10)
    page.locator("#kernels-view [data-column=name]").click()
    for button in page.locator(".kernels-open").all()[:4]:
        button.click()
    for by in ("op", "module"):
        page.locator("#kernels-view select").select_option(by)
        page.locator(".kernels-open").first.click()
    page.locator("#kernels-view input").fill("kernel")
    page.locator(".tl-search").fill("kernel")
    page.locator(".tl-search").press("Enter")
    page.mouse.move(2, 2)


def test_names_are_shown_as_they_are_written(opened):
    seen = opened
    cards = words(seen.page.locator("#fixes").inner_text())
    assert f"title 0 {SCRIPT}{IMAGE}\\u202e" in cards
    assert f"fix 0 {SCRIPT}{IMAGE}{{{{7*7}}}}\\u202e" in cards
    assert f"fact 0 {SCRIPT}{IMAGE}" in cards
    assert f"{IMAGE}{SCRIPT}"[:24] in cards, "where it is"
    top = words(seen.page.locator("#verdict").inner_text())
    assert f"summary {SCRIPT}{IMAGE}\\u202e" in top and f"warning {SCRIPT}{IMAGE}\\u202e" in top
    assert f"GPU {IMAGE}"[:30] in top
    heading = seen.page.locator(".top .file").inner_text()
    assert heading.startswith(f"x{IMAGE}'\"{{{{7*7}}}}\\u202e")
    assert heading in seen.page.title()
    threads = " ".join(seen.page.locator(".tl-group").all_inner_texts())
    assert "main </script>" in threads and "\\u202e" in threads


@pytest.mark.parametrize("payload", ["</script><script>", "<img src=x", "{{7*7}}", "${7*7}", "__proto__", "\\x00bell"])
def test_names_are_found_as_they_are_written(hostile, opened, payload):
    wanted = sum(payload in e.name or payload in full(hostile, e.name) for e in hostile.events)
    assert wanted
    search = opened.page.locator(".tl-search")
    search.fill(payload)
    search.press("Enter")
    assert re.fullmatch(rf"\d+ of {wanted:,}", opened.page.locator(".tl-count").inner_text())
    table = opened.page.locator("#kernels-view")
    table.locator("input").fill(payload)
    names = table.locator(".kernels-name").all_inner_texts()
    assert names and len(names) < len(PAYLOADS)
    assert_unharmed(opened)


@pytest.fixture(scope="module")
def opened(hostile, visit):
    with visit(hostile) as seen:
        yield seen.drawn()


def full(report: Report, name: str) -> str:
    strings = report.header["strings"]
    return "\n".join(text for i, text in report.header["full"].items() if strings[int(i)] == name)


def test_without_scripts_as_well(hostile, harmless, visit):
    found = []
    for report in (harmless, hostile):
        with visit(report, scripts=False) as seen:
            assert_unharmed(seen)
            found.append(elements(seen))
            text = words(seen.page.locator("body").inner_text())
    assert found[0] == found[1]
    assert SCRIPT in text and IMAGE in text and "{{7*7}}" in text and "49" not in text.split("Environment")[0][:400]


def test_long_names_stay_in_their_boxes(opened):
    """But for tables and drawings, which scroll."""
    for width in (700, WIDTH):
        opened.page.set_viewport_size({"width": width, "height": HEIGHT})
        until(lambda: opened.page.evaluate(REACHING), lambda found: found == [])


def test_letters_that_are_written_from_the_right_turn_nothing_around(hostile, visit, tmp_path):
    """The time next to a Hebrew name stands right of it, and reads as it does next to any other."""
    name = unicodedata.lookup("HEBREW LETTER SHIN") * 6
    findings = tuple(
        replace(f, title=name, evidence=tuple(replace(e, text=name) for e in f.evidence if e.start_ns is not None))
        for f in hostile.diagnosis.findings
    )
    report = write(replace(hostile.diagnosis, findings=findings), tmp_path / "page.html")
    with visit(report, scripts=False) as seen:
        ends = seen.page.locator(".places li").first.evaluate(
            """li => {
                const range = document.createRange();
                const text = li.querySelector(".dim").firstChild;
                range.setStart(text, 0);
                range.setEnd(text, 1);
                return [li.querySelector("code").getBoundingClientRect().right, range.getBoundingClientRect().left];
            }"""
        )
        assert ends[0] <= ends[1], "the first digit of the time comes after the name"
