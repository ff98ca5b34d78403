"""Roles as the viewer's timeline: a group for each process, with a lane of its phases and one of its waits."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpuprof.diagnosis.roles.model import WAITING, Role, Roles, Span
from gpuprof.report.page.packing import pack
from gpuprof.report.page.views.texts import Texts
from gpuprof.report.page.views.tracks import Track, assemble
from gpuprof.report.page.views.views import FORMAT_VERSION
from gpuprof.report.terminal import roles_words as words
from gpuprof.report.words.iteration_words import PAINTS
from gpuprof.tracefile.trace import I64
from gpuprof.units import Code, Convention

_PHASES = [*PAINTS]
"""Numbers of paints: the phases, then waiting for each of them, then waiting for no one."""
_NO_ONE: Convention[Code] = 2 * len(_PHASES)


def packed_roles(found: Roles) -> bytes:
    """What the viewer unpacks. A wait links to the span that it waits for."""
    texts = Texts([])
    work = [(role.role, one) for role in found.roles for one in role.lane if one.phase != WAITING]
    rows = {(name, one.start_ns): i for i, (name, one) in enumerate(work)}
    tracks = [track for i, role in enumerate(found.roles) for track in _tracks(role, i, rows, texts)]
    heads, columns = assemble(tracks, 0)
    header = {
        "version": FORMAT_VERSION, "span": [0, found.window_ns], "window": [0, found.window_ns],
        "steps": [], "step_count": 0,
        "strings": texts.texts, "full": {}, "paints": _paints(), "legends": _legends(),
        "groups": [{"name": words.name(role), "kind": "gpu"} for role in found.roles],
        "tracks": heads, "counters": [], "trees": [], "kernels": None,
    }  # fmt: skip
    return pack(header, columns)


def _tracks(role: Role, group: int, rows: dict[tuple[str, int], int], texts: Texts) -> list[Track]:
    """rows: number of each span of work, by its role and start."""
    work = [one for one in role.lane if one.phase != WAITING]
    waits = [one for one in role.lane if one.phase == WAITING]
    phases = Track(
        group, "phases", "stream", *_times(work), _numbers(texts.add(one.phase) for one in work),
        _numbers(_PHASES.index(one.phase) for one in work), np.full(len(work), -1), "spans",
        _numbers(rows[role.role, one.start_ns] for one in work),
    )  # fmt: skip
    awaited = [one.awaited for one in waits]
    blocked = Track(
        group, "waits", "waits", *_times(waits), _numbers(texts.add(_said(one)) for one in waits),
        _numbers(_NO_ONE if one is None else len(_PHASES) + _PHASES.index(one.phase) for one in awaited),
        np.full(len(waits), -1), link_table="spans",
        link=_numbers(-1 if one is None else rows.get((one.role, one.start_ns), -1) for one in awaited),
    )  # fmt: skip
    return [phases, blocked]


def _said(wait: Span) -> str:
    if wait.awaited is None:
        return "waits, no other role works"
    return f"waits for the {wait.awaited.role}'s {wait.awaited.phase}"


def _times(spans: list[Span]) -> tuple[I64, I64]:
    return _numbers(one.start_ns for one in spans), _numbers(one.end_ns for one in spans)


def _numbers(values: Any) -> I64:
    return np.fromiter(values, np.int64)


def _paints() -> list[dict[str, Any]]:
    def paint(key: str, label: str, colour: str, waits: bool) -> dict[str, Any]:
        return {"key": key, "label": label, "light": colour, "dark": colour, "wait": waits}

    phases = [paint(name, name, one.page, False) for name, one in PAINTS.items()]
    waits = [paint(f"wait-{name}", name, one.page, True) for name, one in PAINTS.items()]
    return [*phases, *waits, paint("wait", "no other role", words.PAINT_OF_WAITING.page, True)]


def _legends() -> list[dict[str, Any]]:
    count = len(_PHASES)
    return [
        {"title": "phases", "paints": list(range(count))},
        {"title": "waits for", "paints": list(range(count, 2 * count + 1))},
    ]
