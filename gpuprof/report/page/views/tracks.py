"""A track: spans with names and colours, put into rows; and all tracks together as columns of events."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gpuprof.report.page.views.nesting_rows import depths
from gpuprof.tracefile.trace import I64

_NOTHING = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Track:
    """Spans of one track as columns of one length, in any order."""

    group: int
    name: str
    kind: str
    """steps | phases | findings | waits | stream | ops | frames | counter, as the viewer knows them."""
    start_ns: I64
    """On the recording's own clock."""
    end_ns: I64
    text: I64
    """Index of the name; likewise `detail`, -1 for none."""
    paint: I64
    detail: I64
    table: str = ""
    """The table that `row` is an index of: calls, gpu, or empty where nothing refers to this track."""
    row: I64 = field(default_factory=lambda: _NOTHING)
    link_table: str = ""
    """The table that `link` is an index of."""
    link: I64 = field(default_factory=lambda: _NOTHING)
    """Row of what launched each span (for a wait: what it waited for), -1 where that is not known."""
    open: bool = True


def assemble(tracks: list[Track], low_ns: int) -> tuple[list[dict[str, Any]], dict[str, I64]]:
    """(each track's entry in the header, the columns of all events).

    Events are ordered by track, depth and start. `start` is the distance from the start before it in the same row,
    the first from `low_ns`; tables that tracks refer to may be spread over several tracks.
    """
    heads, order, first = [], [], 0
    places: dict[str, dict[str, list[I64]]] = {}
    for track in tracks:
        depth = depths(track.start_ns, track.end_ns)
        at = np.lexsort((track.start_ns, depth))
        lanes = np.bincount(depth).tolist() if len(depth) else []
        heads.append({"group": track.group, "name": track.name, "kind": track.kind, "open": track.open, "lanes": lanes})
        order.append(at)
        if track.table:
            known = places.setdefault(track.table, {"row": [], "event": []})
            known["row"].append(track.row[at])
            known["event"].append(first + np.arange(len(at)))
        first += len(at)
    events = {table: _event_of(**parts) for table, parts in places.items()}
    links = [_links(track, at, events) for track, at in zip(tracks, order, strict=True)]
    starts = [_distances(t, at, head["lanes"], low_ns) for t, at, head in zip(tracks, order, heads, strict=True)]

    def column(name: str) -> I64:
        return _joined([getattr(track, name)[at] for track, at in zip(tracks, order, strict=True)])

    ns = (column("end_ns") - column("start_ns")).clip(0)
    return heads, {
        "start": _joined(starts),
        "ns": ns,
        "name": column("text"),
        "paint": column("paint"),
        "detail": column("detail") + 1,
        "link": _joined(links),
    }


def _joined(parts: list[I64]) -> I64:
    return np.concatenate(parts) if parts else _NOTHING


def _event_of(row: list[I64], event: list[I64]) -> I64:
    """By row of a table: the event that shows it plus one, 0 where none does; with an extra entry for row -1."""
    rows, events = np.concatenate(row), np.concatenate(event)
    found = np.zeros(int(rows.max(initial=-1)) + 2, np.int64)
    known = rows >= 0
    found[rows[known]] = events[known] + 1
    return found


def _links(track: Track, at: I64, events: dict[str, I64]) -> I64:
    found = events.get(track.link_table)
    if found is None or not len(track.link):
        return np.zeros(len(at), np.int64)
    rows = track.link[at]
    return found[np.where((rows >= 0) & (rows < len(found) - 1), rows, -1)]


def _distances(track: Track, at: I64, lanes: list[int], low_ns: int) -> I64:
    starts = track.start_ns[at]
    distance = np.diff(starts, prepend=low_ns)
    first = np.cumsum([0, *lanes[:-1]]) if lanes else []
    for i in first:
        distance[i] = starts[i] - low_ns
    return distance
