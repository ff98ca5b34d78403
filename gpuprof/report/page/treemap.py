"""Rectangles whose areas are given sizes, as close to squares as rows of them allow.

After Bruls, Huizing and van Wijk, "Squarified Treemaps" (2000).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import NamedTuple

SMALLEST = sys.float_info.min


class Box(NamedTuple):
    """A rectangle, in the units of the one that it divides."""

    x: float
    y: float
    width: float
    height: float


def squarified(sizes: Sequence[float], box: Box) -> list[Box]:
    """A rectangle for each size, largest first; the sizes are scaled to fill the box. Empty where nothing has a
    size."""
    if sum(sizes) <= 0 or box.width <= 0 or box.height <= 0:
        return []
    found: list[Box] = []
    while len(found) < len(sizes):
        left = sizes[len(found) :]
        # The rest of the box is for the remaining sizes, whatever was rounded so far.
        scale = box.width * box.height / max(sum(left), SMALLEST)
        areas = [size * scale for size in left]
        side = min(box.width, box.height)
        end = 1
        while end < len(areas) and _worst(areas[: end + 1], side) <= _worst(areas[:end], side):
            end += 1
        row, box = _laid(areas[:end], box)
        found += row
    return found


def _worst(areas: Sequence[float], side: float) -> float:
    """The worst aspect ratio of a row along a side."""
    whole = sum(areas)
    if not whole or not side or not min(areas):
        return float("inf")
    return max(side**2 * max(areas) / whole**2, whole**2 / (side**2 * min(areas)))


def _laid(areas: Sequence[float], box: Box) -> tuple[list[Box], Box]:
    """A row of areas along the shorter side, and what is left of the box."""
    whole = sum(areas)
    found, at = [], 0.0
    if box.width >= box.height:
        width = whole / box.height if box.height else 0.0
        for area in areas:
            height = area / width if width else 0.0
            found.append(Box(box.x, box.y + at, width, height))
            at += height
        return found, Box(box.x + width, box.y, max(box.width - width, 0.0), box.height)
    height = whole / box.width if box.width else 0.0
    for area in areas:
        width = area / height if height else 0.0
        found.append(Box(box.x + at, box.y, width, height))
        at += width
    return found, Box(box.x, box.y + height, box.width, max(box.height - height, 0.0))
