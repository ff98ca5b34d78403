"""The page's cards of fixes, and what it says of all of them together and of those that are ruled out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markdown_it import MarkdownIt

from gpuprof.diagnosis.plug_ins import declarations
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Evidence, Finding
from gpuprof.report.code_lines import blocks, parts
from gpuprof.report.names import escape, shown
from gpuprof.report.numbers import duration
from gpuprof.report.words import fixes
from gpuprof.report.words.settle import settle
from gpuprof.value_range import Range


@dataclass(frozen=True, slots=True)
class TimelineLink:
    """A link into the timeline: the longest place of a part of the program, or a single place."""

    name: str
    """Where the link leads: a module and phase, or the same as `text`."""
    text: str
    """The name in the timeline of the event that begins there."""
    and_on: bool
    """Whether the name is only that of the event with which it begins."""
    start_ns: int
    ns: int
    where: str
    at: str


@dataclass(frozen=True, slots=True)
class FixBlock:
    """A part of a fix: prose, or code that can be pasted."""

    code: bool
    parts: tuple[str, ...]
    """Parts between which lines of code may break; prose is a single part."""


@dataclass(frozen=True, slots=True)
class Card:
    """A finding."""

    number: int
    id: str
    title: str
    severity: str
    gain: str
    measured: str
    """What `gpuprof try` measured; empty where it was not tried."""
    now: str
    low: float
    """In percent of the axis from zero to the longest step shown; likewise the next three."""
    expected: float
    high: float
    present: float
    how: tuple[FixBlock, ...]
    """The fix: prose, and blocks of code."""
    conditions: tuple[str, ...]
    """What it changes about the training, and what it costs."""
    lines: tuple[str, ...]
    """Lines of the user's code that it is about, such as `train.py:42 step`."""
    facts: tuple[str, ...]
    """Its evidence, and the conditions."""
    places: tuple[TimelineLink, ...]
    why: str
    """HTML of our own text."""
    chance: str = ""
    """How likely something that is worth trying gains; empty for a fix."""
    settle: str = ""
    """Likewise: what settles it."""
    by_hand: bool = False
    """Whether no command settles it."""


def cards(diagnosis: Diagnosis) -> list[Card]:
    """The findings in the order of the diagnosis: the first is what to do first, here and on the terminal."""
    now = fixes.now_ns(diagnosis)
    if not now:
        return []
    longest = _longest(diagnosis, float(now))
    return [
        _card(number, finding, diagnosis, float(now), longest) for number, finding in enumerate(diagnosis.findings, 1)
    ]


def tries(diagnosis: Diagnosis) -> list[Card]:
    """What is worth trying, in the order of the diagnosis, numbered after the findings."""
    now = fixes.now_ns(diagnosis)
    if not now:
        return []
    longest, first = _longest(diagnosis, float(now)), len(diagnosis.findings) + 1
    return [
        replace(
            _card(number, one, diagnosis, float(now), longest),
            chance=fixes.chance(one),
            settle=settle(one),
            by_hand=not one.settle,
        )
        for number, one in enumerate(diagnosis.worth_trying, first)
    ]


def _longest(diagnosis: Diagnosis, now: float) -> float:
    """The longest step that a card shows, ns."""
    advised = (*diagnosis.findings, *diagnosis.worth_trying)
    return max([now, *(fixes.step_after(one, now).high / one.work for one in advised)])


def _card(number: int, finding: Finding, diagnosis: Diagnosis, now: float, longest: float) -> Card:
    statements = tuple(escape(e.text) for e in finding.evidence if e.start_ns is None)
    energy, conditions = (
        tuple(f"{line[0].upper()}{line[1:]}." for line in lines)
        for lines in (fixes.energy_after(finding, diagnosis), fixes.conditions(finding, diagnosis))
    )
    low, expected, high = (100 * v / finding.work / longest for v in _values(fixes.step_after(finding, now)))
    return Card(
        number=number,
        id=finding.id,
        title=escape(finding.title),
        severity=finding.severity,
        gain=fixes.gain(finding, now),
        measured=fixes.measured(finding),
        now=duration(now),
        low=low,
        expected=expected,
        high=high,
        present=100 * now / longest,
        how=tuple(_block(is_code, lines) for is_code, lines in blocks(finding.shown_lines)),
        conditions=conditions,
        lines=tuple(shown(line, fixes.LINE_WIDTH) for line in fixes.known_lines(finding)),
        facts=(*statements, *energy, *conditions),
        places=tuple(_place(e, diagnosis) for e in finding.evidence if e.start_ns is not None),
        why=_why(finding.id),
    )


def _block(is_code: bool, lines: Sequence[str]) -> FixBlock:
    text = "\n".join(map(escape, lines))
    return FixBlock(is_code, tuple(_with_comments(parts(text))) if is_code else (text,))


def _with_comments(pieces: Sequence[str]) -> Iterator[str]:
    """The parts of code; a comment is a single part, so that it wraps as a whole."""
    comment = ""
    for piece in pieces:
        if piece == "\n" or not (comment or piece.startswith("#")):
            yield from filter(None, (comment, piece))
            comment = ""
        else:
            comment += piece
    yield from filter(None, (comment,))


def _values(found: Range) -> tuple[float, float, float]:
    return found.low, found.expected, found.high


def _place(evidence: Evidence, diagnosis: Diagnosis) -> TimelineLink:
    start, ns = evidence.start_ns or 0, evidence.ns or 0
    what, and_on = fixes.event_name(evidence), evidence.begins_with is not None
    where, at = shown(evidence.where or "", fixes.EVENT_WIDTH), f"{duration(ns)} at {duration(start)}"
    if evidence.part is None or evidence.part_ns is None:
        return TimelineLink(what, what, and_on, start, ns, where, at)
    at = f"{duration(evidence.part_ns)} {diagnosis.unit.a}; longest {at}"
    return TimelineLink(shown(evidence.part, fixes.EVENT_WIDTH), what, False, start, ns, where, at)


def _why(finding: str) -> str:
    """What the finding means and when it is wrong, from its page in the docs."""
    page = next((one.page for one in declarations() if one.id == finding), None)
    if page is None:
        return ""
    # As strict as possible: although the text is our own, no HTML in it is passed on.
    render = MarkdownIt("commonmark", {"html": False}).render
    return render(page.means.strip()) + "<h4>When it is wrong</h4>" + render(page.wrong.strip())


def combined(diagnosis: Diagnosis) -> str:
    """`1 + 3 together: 81 → 13–20 ms, 4–6×`; empty where there is nothing to combine."""
    both = diagnosis.combined
    now = fixes.now_ns(diagnosis)
    if not both or not now:
        return ""
    return f"{fixes.numbers(diagnosis, both)} together: {fixes.gain(both, now)}"


def uncertain_mean(diagnosis: Diagnosis) -> str:
    """What is known more precisely than the steps after the fixes, where the mean step itself is uncertain; else
    empty."""
    unsure = fixes.uncertain_mean(diagnosis) if diagnosis.findings else ""
    return f"{unsure[:1].upper()}{unsure[1:]}." if unsure else ""


def considered(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Usual remedies that were ruled out, and why."""
    return [(escape(one.title), escape(one.reason)) for one in diagnosis.considered]
