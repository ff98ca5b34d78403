"""Roles of a job as one HTML file: what each process does, what it waits for, and all of them on one timeline.

`render` is a pure function of the roles.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.roles.model import WAITING, Role, Roles
from gpuprof.diagnosis.roles.timeline import NO_ONE
from gpuprof.report.names import escape, shown
from gpuprof.report.numbers import count, duration, share
from gpuprof.report.page.html import palette_css, style, template, viewer_script
from gpuprof.report.page.packing import LARGEST_VALUE, embed
from gpuprof.report.page.views.roles_view import packed_roles
from gpuprof.report.stepbar import LEAST_LISTED
from gpuprof.report.terminal import roles_words as words


@dataclass(frozen=True, slots=True)
class RolePart:
    """A part of a role's bar: a phase, or waits for one phase of another role."""

    label: str
    colour: str
    percent: float
    text: str
    waits: bool
    named: bool
    """Whether the legend has it."""


@dataclass(frozen=True, slots=True)
class RoleBar:
    """What a process does during the window."""

    role: str
    program: str
    source: str
    bubble: str
    """Share of the window in which it waits while others work."""
    parts: tuple[RolePart, ...]


@dataclass(frozen=True, slots=True)
class WaitRow:
    """A row of the table of waits between roles."""

    role: str
    waits_for: str
    phase: str
    share: str
    time: str
    count: str
    mean: str


def render(found: Roles) -> str:
    """The page."""
    return template("roles.html").render(
        **viewer_script(),
        styles=palette_css() + style("assets/viewer.css") + style("report.css"),
        sources=" · ".join(shown(one.source, 80) for one in found.roles),
        title=words.title(found),
        summary=words.summary(found),
        lead=found.limit,
        issues=[(issue.severity, escape(issue.message)) for issue in found.issues],
        tiles=_tiles(found),
        bars=[_bar(found, role) for role in found.roles],
        waits=[_wait(found, i) for i in range(len(found.waits)) if found.waits[i].ns >= LEAST_LISTED * found.window_ns],
        queue=words.queue(found),
        views=embed(packed_roles(found)) if found.window_ns <= LARGEST_VALUE else "",
    )


def _tiles(found: Roles) -> list[tuple[str, str, str]]:
    """(label, value, note)."""
    tiles = [] if found.iteration_ns is None else [("an iteration", duration(found.iteration_ns), "")]
    return tiles + [
        (f"{one.role}'s bubble", share(one.bubble_ns, found.window_ns), f"waits {share(one.wait_ns, found.window_ns)}")
        for one in found.roles
    ]


def _bar(found: Roles, role: Role) -> RoleBar:
    whole = found.window_ns

    def part(label: str, colour: str, ns: int, waits: bool) -> RolePart:
        text = f"{duration(ns)}, {share(ns, whole)}"
        return RolePart(label, colour, 100 * ns / whole, text, waits, ns >= LEAST_LISTED * whole)

    work = [part(one.phase, words.paint(one.phase).page, one.ns, False) for one in role.phases]
    waits = [
        part(
            f"waits for the {one.waits_for}'s {one.phase}" if one.waits_for != NO_ONE else "waits, no other role works",
            words.paint(one.phase or WAITING).page, one.ns, True,
        )
        for one in found.waits if one.role == role.role
    ]  # fmt: skip
    bubble = share(role.bubble_ns, whole)
    return RoleBar(role.role, escape(role.program or ""), shown(role.source, 120), bubble, (*work, *waits))


def _wait(found: Roles, row: int) -> WaitRow:
    one = found.waits[row]
    return WaitRow(
        one.role, one.waits_for, one.phase, share(one.ns, found.window_ns), duration(one.ns), count(one.count),
        duration(one.ns / one.count),
    )  # fmt: skip
