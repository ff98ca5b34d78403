"""The timeline of a report, used as a person uses it: evidence leads into it, the mouse moves in it."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from helpers.browser import Report, Visit, shown_time, until, words
from helpers.timeline_hand import LANE, Hand, index_of, run_window

from gpuprof.diagnosis.detect.cpu.evidence import AND_ON, OUTSIDE
from gpuprof.report.names import shown_kernel
from gpuprof.report.numbers import duration
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE

pytest_plugins = ["helpers.browser", "helpers.timeline_hand"]


# -- evidence


def test_evidence_leads_to_its_place(hand, run):
    """Its range is in view and marked: as the selected event, or as what is measured."""
    report: Report = run
    seen: Visit = hand.seen
    advised = (*report.diagnosis.findings, *report.diagnosis.worth_trying)
    places = [e for f in advised for e in f.evidence if e.start_ns is not None]
    wrong = []
    links = seen.page.locator(".places a").all()
    assert len(links) == len(places) > 4
    for evidence, link in dict(zip(places, links, strict=True)).items():
        hand.clear()
        link.click()
        low, high = evidence.start_ns, evidence.start_ns + evidence.ns
        start, end = seen.view
        assert start <= low and high <= end, evidence
        assert evidence.ns >= 0.2 * (end - start), "and is not lost in it"
        event, said = report.events[hand.selected], link.locator("code").inner_text()
        assert said == evidence.part
        named = evidence.text.removesuffix(AND_ON).removeprefix(AUTOGRAD_ENGINE)
        known = event.name in (named, shown_kernel(named, len(event.name))) or named in event.name
        assert known or said == OUTSIDE, "which has no event of its own"
        assert event.start_ns < high and event.start_ns + event.ns > low
        group = report.header["groups"][report.header["tracks"][event.track]["group"]]["name"]
        assert evidence.where in group
        marked = event.start_ns == pytest.approx(low, abs=0.2 * evidence.ns) and event.ns == pytest.approx(
            evidence.ns, rel=0.25
        )
        measured = seen.page.locator(".tl-facts[aria-label='Measured range']")
        if not marked and not (measured.count() and shown_time(evidence.ns) in measured.inner_text()):
            wrong.append(f"{said}: {duration(evidence.ns)}, but {duration(event.ns)} are marked")
        tracks = hand.canvas
        assert tracks["y"] >= 0 and tracks["y"] + 100 <= 900, "the timeline is on the screen"
    assert not wrong, "the range that the evidence names is not marked"


def test_it_glides_where_motion_is_welcome(hand, run, motion):
    (finding,) = (one for one in run.diagnosis.findings if one.id == "adapter_casts")
    place = next(e for e in finding.evidence if e.start_ns is not None)
    hand.seen.page.locator("[data-finding=adapter_casts] .places a").first.click()
    low, high = place.start_ns, place.start_ns + place.ns

    def there(view: tuple[float, float]) -> bool:
        start, end = view
        close = low - 2 * place.ns < start <= low and high <= end < high + 2 * place.ns
        return close and (start + end) / 2 == pytest.approx((low + high) / 2, abs=0.2 * place.ns)

    until(lambda: hand.seen.view, there)


@pytest.fixture
def motion(opened):
    """The reader's system allows motion."""
    opened.page.emulate_media(reduced_motion="no-preference")
    yield
    opened.page.emulate_media(reduced_motion="reduce")


def test_the_track_of_findings_says_what_they_are(hand, run):
    index = index_of(run, "findings", linked=False)
    event = run.events[index]
    hand.click(index)
    assert hand.selected is not None
    said, chosen = hand.details(), run.events[hand.selected]
    assert words(chosen.name) in said and shown_time(chosen.ns) in said and chosen.detail in said
    assert any(f.title in event.name for f in run.diagnosis.findings)


# -- the mouse


def test_a_click_shows_all_of_a_kernel_and_leads_to_its_launch(hand, run):
    index = index_of(run, "stream")
    kernel, call = run.events[index], run.events[run.events[index].link]
    hand.click(index)
    assert hand.selected == index
    said = hand.details()
    assert kernel.name in said and shown_time(kernel.ns) in said and kernel.detail in said
    assert f"{shown_time(kernel.start_ns - call.start_ns)} before it started" in said
    hand.follow(call)
    assert hand.selected == kernel.link
    start, end = hand.seen.view
    assert start < call.start_ns + call.ns and call.start_ns < end, "it is in view"
    said = hand.details()
    assert call.name in said and shown_time(call.ns) in said and kernel.name in said, "and what it launched"
    hand.follow(kernel)
    assert hand.selected == index


def test_an_event_leads_to_the_op_around_it(hand, run):
    """It is the op that an oracle finds by time: the innermost event of the thread around the launch."""
    index = index_of(run, "stream")
    call = run.events[run.events[index].link]
    around = [
        i
        for i, e in enumerate(run.events)
        if e.track == call.track and e.depth == call.depth - 1
        and e.start_ns <= call.start_ns and call.start_ns + call.ns <= e.start_ns + e.ns
    ]  # fmt: skip
    (op,) = around
    hand.click(index)
    hand.follow(run.events[op])
    assert hand.selected == op
    assert run.events[index].name in hand.details(), "what it launched"


def test_a_wait_says_what_it_is_for_and_leads_there(hand, run):
    index = index_of(run, "waits", least_ns=20_000)
    wait = run.events[index]
    hand.click(index)
    assert hand.selected == index
    said = hand.details()
    assert wait.name in said and wait.detail in said and shown_time(wait.ns) in said
    hand.follow(run.events[wait.link])
    assert hand.selected == wait.link


def test_what_is_under_the_pointer_is_shown(hand, run):
    index = index_of(run, "stream")
    x, y = hand.place(index)
    hand.seen.page.mouse.move(x, y)
    tip = hand.seen.page.locator(".tl-tip")
    said = tip.inner_text()
    assert run.events[index].name in said and shown_time(run.events[index].ns) in said
    box = tip.bounding_box()
    assert box["x"] >= 0 and box["x"] + box["width"] <= 1280
    hand.seen.page.mouse.move(2, 2)
    assert tip.is_hidden()


def test_keys_that_move_the_view_take_the_words_at_the_pointer_away(hand, run):
    tip = hand.seen.page.locator(".tl-tip")
    for key in "wd0":
        hand.seen.page.mouse.move(2, 2)
        hand.press("0")
        hand.seen.page.mouse.move(*hand.place(index_of(run, "stream")))
        assert tip.is_visible()
        hand.press("w")
        if key != "w":
            hand.press(key)
        until(tip.is_hidden, bool)


def test_a_double_click_zooms_to_an_event(hand, run):
    index = index_of(run, "stream")
    event = run.events[index]
    _, y = hand.place(index)
    hand.set_view(event.start_ns - 20 * event.ns, event.start_ns + 21 * event.ns)
    hand.seen.page.mouse.dblclick(hand.x(event.start_ns + event.ns / 2), y)
    start, end = hand.seen.view
    assert (start + end) / 2 == pytest.approx(event.start_ns + event.ns / 2, abs=event.ns)
    assert end - start == pytest.approx(3 * event.ns, rel=0.1)
    assert hand.selected == index


def test_dragging_moves_and_the_wheel_zooms_where_it_is(hand):
    low, high = run_window(hand)
    hand.set_view(low, low + (high - low) / 4)
    box, page = hand.canvas, hand.seen.page
    x, y = box["x"] + box["width"] / 4, box["y"] + 40
    before = hand.seen.view
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 100, y, steps=3)
    page.mouse.up()
    after = hand.seen.view
    moved = 100 / box["width"] * (before[1] - before[0])
    assert after[0] - before[0] == pytest.approx(moved, rel=0.05)
    assert after[1] - after[0] == pytest.approx(before[1] - before[0])
    assert hand.selected is None, "a drag is no click"
    at = after[0] + 0.25 * (after[1] - after[0])
    page.mouse.move(x, y)
    page.mouse.wheel(0, -40)
    zoomed = until(lambda: hand.seen.view, lambda view: view != after)
    assert zoomed[1] - zoomed[0] < after[1] - after[0]
    assert zoomed[0] + 0.25 * (zoomed[1] - zoomed[0]) == pytest.approx(at, abs=0.01 * (after[1] - after[0]))


def test_the_wheel_scrolls_the_page_until_the_timeline_is_clicked(hand):
    page = hand.seen.page
    page.evaluate("() => document.activeElement.blur()")
    # Of tracks that are scrolled down the wheel shows the upper ones first.
    page.evaluate("() => { document.querySelector('.tl-scroll').scrollTop = 0 }")
    page.evaluate("() => document.querySelector('.tl-scroll').scrollIntoView({block: 'center', behavior: 'instant'})")
    box, view = hand.canvas, hand.seen.view
    at = page.evaluate("() => scrollY")
    page.mouse.move(box["x"] + 200, box["y"] + 10)
    page.mouse.wheel(0, -200)
    until(lambda: page.evaluate("() => scrollY"), lambda now: now != at)
    assert hand.seen.view == view


def test_a_range_is_measured(hand, run):
    """Per GPU: busy and idle time of the range agree with the oracle's waits."""
    low, high = run_window(hand)
    hand.set_view(low, high)
    box, page = hand.canvas, hand.seen.page
    xs = [box["x"] + part * box["width"] for part in (0.3, 0.6)]
    page.locator(".tl-tracks").focus()
    hand.press("m")
    assert page.get_by_role("button", name="Measure a range: then drag (M)").get_attribute("aria-pressed") == "true"
    page.mouse.move(xs[0], box["y"] + 30)
    page.mouse.down()
    page.mouse.move(xs[1], box["y"] + 60, steps=4)
    page.mouse.up()
    start, end = (low + (x - box["x"]) / box["width"] * (high - low) for x in xs)
    said = hand.details("Measured range")
    assert said.startswith(shown_time(end - start))
    idle = sum(
        max(0, min(end, e.start_ns + e.ns) - max(start, e.start_ns))
        for e in run.events
        if run.header["tracks"][e.track]["kind"] == "waits"
    )
    assert f"busy, {shown_time(end - start - idle)}" in said
    assert hand.seen.view == pytest.approx((low, high)), "measuring does not move"
    hand.press("Escape")
    assert page.locator(".tl-facts").count() == 0
    assert page.get_by_role("button", name="Measure a range: then drag (M)").get_attribute("aria-pressed") == "false"
    page.keyboard.down("Shift")
    page.mouse.move(xs[0], box["y"] + 30)
    page.mouse.down()
    page.mouse.move(xs[1], box["y"] + 60, steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert hand.details("Measured range") == said, "shift + drag is the same"


# -- what is drawn


def test_tracks_fold(hand, run):
    page = hand.seen.page
    track = next(i for i, t in enumerate(run.header["tracks"]) if t["kind"] == "ops")
    name = page.locator(f".tl-name[data-row='{run.header['tracks'][track]['group']}-{track}']")
    high = name.bounding_box()["height"]
    assert name.get_attribute("aria-expanded") == "true"
    name.click()
    assert name.get_attribute("aria-expanded") == "false" and name.bounding_box()["height"] < high
    assert page.evaluate("() => document.activeElement.dataset.row") == name.get_attribute("data-row")
    name.press("Enter")
    assert name.get_attribute("aria-expanded") == "true" and name.bounding_box()["height"] == high


def test_a_change_of_the_view_is_a_change_of_the_picture(hand, run):
    """The canvas is drawn, not blank: many colours, others where it is zoomed; drawn again it is the same."""
    low, high = run_window(hand)
    whole = picture(hand)
    hand.set_view(low, low + (high - low) / 50)
    part = picture(hand)
    assert len(set(whole)) > 10 and len(set(part)) > 5
    assert sum(a != b for a, b in zip(whole, part, strict=True)) > 0.1 * len(whole)
    hand.press("0")
    assert picture(hand) == whole


def picture(hand: Hand) -> list[str]:
    """Colours of the tracks: of a pixel in every thirteen."""
    return colours(hand, 0, 10_000, 13)


def colours(hand: Hand, top: int, rows: int, apart: int) -> list[str]:
    """Of some rows of pixels; from a copy, as the page is not made to be read."""
    hand.seen.timeline("draw()")
    found = hand.seen.page.evaluate(  # a list of numbers would take a second
        """([top, rows, apart]) => {
            const drawn = document.querySelector(".tl-tracks");
            const copy = document.createElement("canvas");
            [copy.width, copy.height] = [drawn.width, Math.min(rows, drawn.height)];
            const pen = copy.getContext("2d", { willReadFrequently: true });
            pen.drawImage(drawn, 0, -top);
            const found = new Uint32Array(pen.getImageData(0, 0, copy.width, copy.height).data.buffer);
            return found.filter((_, i) => i % apart === 0).join();
        }""",
        [top, rows, apart],
    )
    return found.split(",")


def test_what_is_drawn_is_where_the_recording_has_it(hand, run):
    """Pixels of the stream's row: background where an oracle says that nothing runs, colour where a kernel does."""
    index = index_of(run, "stream", least_ns=5_000)
    event = run.events[index]
    _, y = hand.place(index)
    row = [e for e in run.events if e.track == event.track and e.depth == event.depth]
    low, high = hand.seen.view
    box = hand.canvas
    line = colours(hand, round(y - box["y"] - LANE / 2 + 3), 1, 1)
    starts = [e.start_ns for e in row]
    pixel, wrong = (high - low) / len(line), 0
    moments = [low + (i + 0.5) * pixel for i in range(len(line))]
    free = [colour for t, colour in zip(moments, line, strict=True) if not covered(row, starts, t)]
    ground = max(set(free), key=free.count)
    for t, colour in zip(moments, line, strict=True):
        inside = [covered(row, starts, at) for at in (t - 2 * pixel, t, t + 2 * pixel)]
        if all(inside):
            wrong += colour == ground
        elif not any(inside):
            wrong += colour != ground
    assert wrong < 0.02 * len(line)


def covered(row, starts: list[int], t: float) -> bool:
    i = bisect_left(starts, t) - 1
    return i >= 0 and t < row[i].start_ns + row[i].ns


def test_what_is_selected_is_told_in_view(hand, run):
    hand.click(index_of(run, "stream"))
    box = hand.seen.page.locator(".tl-details").bounding_box()
    assert box["y"] >= 0 and box["y"] + box["height"] <= 900 + 1, box
