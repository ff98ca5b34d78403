"""Memory at its peak, as the page shows it: a treemap of owners and their lines, tables, and what would make it
smaller."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.memory.advice import Advice
from gpuprof.memory.memory_report import MemoryReport, ReportedDevice
from gpuprof.report.names import escape
from gpuprof.report.numbers import share
from gpuprof.report.page.treemap import Box, squarified
from gpuprof.report.words import memory_words as words
from gpuprof.units import Convention, Percent, Rows, Share

ROWS: Convention[Rows] = 12
"""Rows of the table, each a line of Python."""
WHOLE = Box(0.0, 0.0, 100.0, 48.0)
"""The treemap in percent of its width, as high as half of it."""
LEAST_TILE_SHARE: Convention[Share] = 0.004
"""Share of the whole below which a tile is not drawn."""
ON_PHONE: Convention[tuple[Percent, Percent]] = (1.8, 5.5)
ON_SCREEN: Convention[tuple[Percent, Percent]] = (0.75, 2.0)
"""Width of a letter and height of a line, on a phone and in a window of 900 pixels or more, in percent of the treemap's
width: a tile that has room for its name shows it."""


@dataclass(frozen=True, slots=True)
class OwnerTile:
    """One line of an owner, or the whole owner."""

    owner: str
    style: str
    on_phone: str
    """Its name on a phone; empty where there is no room for it. The next one: on a larger screen."""
    on_screen: str
    size: str
    title: str


@dataclass(frozen=True, slots=True)
class DrawnPeak:
    """Everything that the template needs."""

    summary: str
    tiles: tuple[OwnerTile, ...]
    owners: tuple[tuple[str, str, str, str], ...]
    """(key, name, size, share)."""
    lines: tuple[tuple[str, str, str, str, str], ...]
    """(size, place, owner's key, its name, phase)."""
    measured: str
    """The peak that the run itself measured; empty where it is not known."""
    now: tuple[str, ...]
    remedies: tuple[tuple[str, ...], ...]
    fits: tuple[str, ...]
    notes: tuple[str, ...]


def at_peak(report: MemoryReport) -> DrawnPeak:
    """What is shown of a report: its first device, or only the run."""
    device = report.devices[0] if report.devices else None
    advice = report.advice
    owners = _owners(device, advice)
    total = sum(size for _, size in owners)
    return DrawnPeak(
        summary=words.summary(device) if device else "",
        tiles=tuple(_tiles(device, owners, total)),
        owners=tuple((key, words.NAMES[key], words.size(size), share(size, total)) for key, size in owners),
        lines=()
        if device is None
        else tuple(
            (words.size(one.bytes), words.place(one), one.owner, words.NAMES[one.owner], one.phase)
            for one in device.peak.lines[:ROWS]
        ),
        measured=words.measured(advice) if advice else "",
        now=words.as_it_is(advice) if advice else (),
        remedies=tuple(words.remedy(one, advice) for one in words.worth(advice)) if advice else (),
        fits=tuple(words.fitting(advice)) if advice else (),
        notes=tuple(words.notes(advice)) if advice else (),
    )


def _owners(device: ReportedDevice | None, advice: Advice | None) -> list[tuple[str, int]]:
    if device is not None:
        return [(one.owner, one.bytes) for one in device.peak.owners if one.bytes > 0]
    return [(one.owner, one.bytes) for one in advice.owners if one.bytes > 0] if advice else []


def _tiles(device: ReportedDevice | None, owners: list[tuple[str, int]], total: int) -> list[OwnerTile]:
    """Owners as rectangles, each divided into its lines where these are known."""
    shown = [(key, size) for key, size in owners if size >= LEAST_TILE_SHARE * total]
    found = []
    for (owner, size), box in zip(shown, squarified([size for _, size in shown], WHOLE), strict=True):
        parts = _of_owner(device, owner, size)
        for (name, part), inner in zip(parts, squarified([part for _, part in parts], box), strict=True):
            found.append(_tile(owner, name, part, inner))
    return found


def _of_owner(device: ReportedDevice | None, owner: str, size: int) -> list[tuple[str, int]]:
    """The owner's largest lines and the rest of it."""
    if device is None:
        return [("", size)]
    lines = [(words.place(one), one.bytes) for one in device.peak.lines if one.owner == owner]
    kept = [(name, part) for name, part in lines if part >= size / 20][:6]
    rest = size - sum(part for _, part in kept)
    parts = sorted([*kept, ("", rest)] if rest > 0 else kept, key=lambda one: -one[1])
    return parts if kept else [("", size)]


def _tile(owner: str, place: str, size: int, box: Box) -> OwnerTile:
    left, top = box.x, 100 * box.y / WHOLE.height
    style = f"left:{left:.3f}%;top:{top:.3f}%;width:{box.width:.3f}%;height:{100 * box.height / WHOLE.height:.3f}%"
    name, bytes_ = words.NAMES[owner].split(" (")[0], words.size(size)
    title = f"{name}{f', {place}' if place else ''}: {bytes_}"
    names = (f"{name} {place}", name) if place else (name,)
    phone, screen = (_fitting(names, bytes_, box, *room) for room in (ON_PHONE, ON_SCREEN))
    return OwnerTile(owner, style, escape(phone), escape(screen), bytes_, title)


def _fitting(names: tuple[str, ...], size: str, box: Box, letter: float, line: float) -> str:
    """The first name that a box has room for, with its size after it or below; empty where there is none."""

    def fits(name: str) -> bool:
        rows = 1 if box.width >= letter * len(f"{name} {size}") + letter else 2
        return box.width >= letter * max(len(name), len(size)) + letter and box.height >= line * rows

    return next(filter(fits, names), "")
