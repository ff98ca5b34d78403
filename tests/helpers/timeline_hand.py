"""Uses the timeline of a report as a person's hand does; fixtures for the tests that do."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from helpers.browser import Report, Visit, shown_time, until
from helpers.unpack import Event

LANE, PAD = 18, 3
"""Pixels of a depth of a track, and above its first."""
UNSEEN_SCROLL = "() => gpuprofTimeline.view().scroll - document.querySelector('.tl-scroll').scrollTop"
"""Pixels that the tracks were scrolled by since the timeline last heard of it."""


@dataclass
class Hand:
    """Uses the timeline of a report as a user's hand does."""

    seen: Visit
    report: Report

    @property
    def canvas(self) -> dict[str, float]:
        return self.seen.page.locator(".tl-tracks").bounding_box()

    def set_view(self, start: float, end: float) -> None:
        self.seen.timeline(f"setView({start}, {end})")

    def x(self, ns: float) -> float:
        """Where a moment is, from the left of the window."""
        (start, end), box = self.seen.view, self.canvas
        return box["x"] + (ns - start) / (end - start) * box["width"]

    def place(self, index: int) -> tuple[float, float]:
        """The middle of an event, which is first brought into view: a third of the width, its row unfolded."""
        event = self.report.events[index]
        self.set_view(event.start_ns - event.ns, event.start_ns + 2 * event.ns)
        group = self.report.header["tracks"][event.track]["group"]
        name = self.seen.page.locator(f".tl-name[data-row='{group}-{event.track}']")
        # The details are at the lower edge of the window, over the rows there.
        name.evaluate("element => element.scrollIntoView({ block: 'center' })")
        until(lambda: self.seen.page.evaluate(UNSEEN_SCROLL), lambda pixels: pixels == 0)
        y = name.bounding_box()["y"] + PAD + event.depth * LANE + LANE / 2
        return self.x(event.start_ns + event.ns / 2), y

    def click(self, index: int) -> None:
        self.seen.page.mouse.click(*self.place(index))

    def press(self, *keys: str) -> None:
        for key in keys:
            self.seen.page.keyboard.press(key)

    @property
    def selected(self) -> int | None:
        found = self.seen.timeline("selected()")
        return found and found["index"]

    def details(self, label: str = "Selected event") -> str:
        return self.seen.page.locator(f".tl-facts[aria-label='{label}']").inner_text()

    def follow(self, event: Event) -> None:
        """The button in the details that leads to another event; the innermost of those with the same label."""
        button = self.seen.page.locator(".tl-facts").get_by_role("button", name=event.name, exact=True)
        button.and_(self.seen.page.get_by_title(f"{shown_time(event.ns)}: show it", exact=True)).last.click()

    def clear(self) -> None:
        """Resets the view: nothing selected, measured or searched, everything visible."""
        self.seen.page.locator(".tl-search").press("Escape")
        for _ in range(self.seen.page.locator(".tl-facts").count()):
            self.press("Escape")
        assert self.selected is None
        self.press("0")


@pytest.fixture(scope="module")
def opened(run, visit):
    with visit(run) as seen:
        yield seen.ready()


@pytest.fixture
def hand(opened, run):
    opened.page.mouse.move(2, 2)
    found = Hand(opened, run)
    found.clear()
    yield found
    assert opened.complaints == []


def index_of(report: Report, kind: str, least_ns: int = 2_000, linked: bool = True) -> int:
    """A track's event of some length in the middle of the recording."""
    tracks = report.header["tracks"]
    found = [
        i
        for i, e in enumerate(report.events)
        if tracks[e.track]["kind"] == kind and e.ns >= least_ns and (e.link >= 0 or not linked)
    ]
    return found[len(found) // 2]


def run_window(hand: Hand) -> tuple[float, float]:
    return hand.report.header["window"]
