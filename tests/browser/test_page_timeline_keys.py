"""The keys of a report's timeline, and its search."""

from __future__ import annotations

from collections import Counter

import pytest
from helpers.browser import Report, until
from helpers.timeline_hand import index_of, run_window

pytest_plugins = ["helpers.browser", "helpers.timeline_hand"]


def test_keys_zoom_and_move(hand):
    low, high = run_window(hand)
    hand.set_view(low + (high - low) / 4, low + (high - low) / 2)
    start, end = hand.seen.view
    ns, middle = end - start, (start + end) / 2

    def now() -> tuple[float, float]:
        a, b = hand.seen.view
        return (a + b) / 2, b - a

    hand.press("w")
    assert now() == pytest.approx((middle, ns / 1.6))
    hand.press("s")
    assert now() == pytest.approx((middle, ns))
    hand.press("d")
    assert now() == pytest.approx((middle + 0.2 * ns, ns))
    hand.press("a", "a")
    assert now() == pytest.approx((middle - 0.2 * ns, ns))
    hand.press("0")
    start, end = hand.seen.view
    span = hand.report.header["span"]
    assert start <= span[0] and span[1] <= end and end - start < 1.02 * (span[1] - span[0])
    hand.press(*"s" * 3)
    assert hand.seen.view == pytest.approx((start, end)), "there is nothing outside"
    hand.press(*"w" * 60)
    assert 0 < hand.seen.view[1] - hand.seen.view[0] <= 100, "down to what clocks tell"


def test_keys_zoom_at_the_pointer(hand):
    low, high = run_window(hand)
    hand.set_view(low, high)
    box = hand.canvas
    hand.seen.page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 30)
    at = low + 0.75 * (high - low)
    hand.press("w", "w")
    start, end = hand.seen.view
    assert start + 0.75 * (end - start) == pytest.approx(at, abs=0.005 * (high - low))


def test_a_search_finds_every_event_of_a_name_and_jumps(hand, run):
    page = hand.seen.page
    names = Counter(e.name for e in run.events if stream(run, e))
    part = next(name for name, times in names.most_common() if "<" not in name and times > 20)[:12].upper()
    matches = sorted(
        (e.start_ns, i)
        for i, e in enumerate(run.events)
        if part.lower() in e.name.lower() or part.lower() in full(run, e.name)
    )
    hand.press("/")
    assert page.evaluate("() => document.activeElement.type") == "search"
    page.keyboard.type(part)
    until(lambda: page.locator(".tl-count").inner_text(), lambda text: f"{len(matches):,} match" in text)
    high = run_window(hand)[1]
    hand.set_view(high - 1_000, high)
    hand.press("Enter")
    assert hand.selected == matches[0][1]
    event = run.events[hand.selected]
    start, end = hand.seen.view
    assert start < event.start_ns + event.ns and event.start_ns < end, "it is in view"
    assert page.locator(".tl-count").inner_text() == f"1 of {len(matches):,}"
    hand.press("Enter")
    assert hand.selected == matches[1][1]
    hand.press("Shift+Enter", "Shift+Enter")
    assert hand.selected == matches[-1][1], "around the end"
    page.locator(".tl-search").fill("no such thing")
    until(lambda: page.locator(".tl-count").inner_text(), lambda text: text == "no match")
    hand.press("Escape")
    assert page.locator(".tl-search").input_value() == "" and page.locator(".tl-count").inner_text() == ""
    assert page.evaluate("() => document.activeElement.className").startswith("tl-tracks"), "the keys work again"


def stream(report: Report, event) -> bool:
    return report.header["tracks"][event.track]["kind"] == "stream"


def full(report: Report, name: str) -> str:
    """The whole form of a name, lower case; an index distinguishes equal names; here all of the text counts."""
    cached = report.__dict__.setdefault("_full", {})
    if not cached:
        strings = report.header["strings"]
        for index, text in report.header["full"].items():
            cached[strings[int(index)]] = cached.get(strings[int(index)], "") + "\n" + text.lower()
    return cached.get(name, "")


def test_arrows_go_from_event_to_event(hand, run):
    index = index_of(run, "stream")
    hand.click(index)
    hand.press("ArrowRight")
    assert hand.selected == index + 1
    hand.press("ArrowLeft", "ArrowLeft")
    assert hand.selected == index - 1
    op = run.events[index].link
    hand.click(op)
    hand.press("ArrowUp")
    above, call = run.events[hand.selected], run.events[op]
    assert above.track == call.track and above.depth < call.depth
    assert above.start_ns <= call.start_ns < above.start_ns + above.ns
    hand.press("f")
    start, end = hand.seen.view
    assert end - start == pytest.approx(3 * above.ns, rel=0.1)


@pytest.mark.slow
def test_escape_takes_back_one_thing_at_a_time(hand, run):
    page = hand.seen.page
    hand.press("/")
    page.keyboard.type("gemm")
    hand.press("Enter")
    page.locator(".tl-tracks").focus()
    hand.click(index_of(run, "stream"))
    box = hand.canvas
    page.keyboard.down("Shift")
    page.mouse.move(box["x"] + 100, box["y"] + 30)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 30, steps=2)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert page.locator(".tl-facts").count() == 2
    hand.press("Escape")
    assert page.locator(".tl-facts").get_attribute("aria-label") == "Selected event"
    hand.press("Escape")
    assert hand.selected is None and page.locator(".tl-details").is_hidden()
    assert page.locator(".tl-search").input_value() == "gemm"
    hand.press("Escape")
    assert page.locator(".tl-search").input_value() == ""
    hand.press("Escape")
    assert page.evaluate("() => document.activeElement === document.body"), "the keys are the page's again"


def test_the_list_of_keys_opens_and_closes(hand):
    hand.press("?")
    dialog = hand.seen.page.get_by_role("dialog", name="Keys of the timeline")
    assert "zoom in, out" in dialog.inner_text()
    hand.press("Escape")
    assert dialog.count() == 0


@pytest.mark.slow
def test_letters_work_where_the_pointer_is_and_nowhere_else(hand):
    whole = hand.seen.view
    hand.seen.page.evaluate("document.activeElement.blur()")
    hand.seen.page.mouse.move(2, 2)
    hand.press("w")
    assert hand.seen.view == whole, "the pointer is not on the timeline"
    box = hand.canvas
    hand.seen.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    hand.press("w")
    start, end = until(lambda: hand.seen.view, lambda view: view != whole)
    assert end - start < whole[1] - whole[0]
