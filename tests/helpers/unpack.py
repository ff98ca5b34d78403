"""The data in a page, decoded in a simple way: an oracle for `viewer/src/data.ts` and for the code that packs it."""

from __future__ import annotations

import base64
import gzip
import json
import re
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Event:
    """One event of the timeline; times are ns from the start of the window."""

    track: int
    depth: int
    start_ns: int
    ns: int
    name: str
    paint: str
    detail: str
    link: int
    """Index of the event that it points at, -1 for none."""


def unpack(data: bytes) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """(header, columns)."""
    size = struct.unpack_from("<I", data)[0]
    header = json.loads(data[4 : 4 + size])
    body = np.frombuffer(data, np.uint8, offset=4 + size)
    columns = {}
    for name, place in header["columns"].items():
        count, width = place["count"], place["width"]
        values = np.zeros(count, np.int64)
        for plane in range(width):
            at = place["offset"] + plane * count
            values += body[at : at + count].astype(np.int64) << (8 * plane)
        columns[name] = values.tolist()
    return header, columns


def of_page(html: str) -> tuple[dict[str, Any], dict[str, list[int]]]:
    """The same from a page."""
    found = re.search(r'<script type="text/plain" id="data">([^<]*)</script>', html)
    assert found, "the page has no data"
    return unpack(gzip.decompress(base64.b64decode(found[1])))


def events(header: dict[str, Any], columns: dict[str, list[int]]) -> list[Event]:
    """Every event of the timeline, in the order of the columns."""
    found: list[Event] = []
    for number, track in enumerate(header["tracks"]):
        for depth, count in enumerate(track["lanes"]):
            t = header["span"][0]
            for _ in range(count):
                i = len(found)
                t += columns["start"][i]
                detail = columns["detail"][i]
                found.append(
                    Event(
                        number,
                        depth,
                        t,
                        columns["ns"][i],
                        header["strings"][columns["name"][i]],
                        header["paints"][columns["paint"][i]]["key"],
                        header["strings"][detail - 1] if detail else "",
                        columns["link"][i] - 1,
                    )
                )
    assert len(found) == len(columns["start"])
    return found
