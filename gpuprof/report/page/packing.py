"""Header and columns of numbers as the bytes in a page; `viewer/src/data.ts` reads them.

Length of the header (u32, little-endian), the header as JSON, then the columns: n values of w bytes as w planes of n
bytes, lowest byte first. Planes compress better than whole values, because the high bytes hardly change.
"""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import numpy as np
from isal import igzip
from numpy.typing import NDArray

from gpuprof.units import Bytes, Convention, Level, Published, Values

LARGEST_NUMBER_BYTES: Published[Bytes] = 6
"""Bytes of the largest value: 48 bits are exact in JavaScript's numbers; as ns they are three days."""
LARGEST_VALUE: Published[Values] = (1 << 8 * LARGEST_NUMBER_BYTES) - 1
COMPRESSION_LEVEL: Convention[Level] = 3
"""isal's best compression, which takes half a second for a million events."""

Columns = dict[str, NDArray[Any]]


def pack(header: dict[str, Any], columns: Columns) -> bytes:
    """Header and columns of whole numbers, none negative, none of 48 bits or more. Raises ValueError for others."""
    places, planes, offset = {}, [], 0
    for name, values in columns.items():
        width = _width(name, values)
        places[name] = {"offset": offset, "count": len(values), "width": width}
        planes.append(_planes(values, width))
        offset += len(values) * width
    text = json.dumps({**header, "columns": places}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    # Lone surrogates are not valid UTF-8. Names are escaped long before; this is for other texts.
    head = text.encode("utf-8", "backslashreplace")
    return b"".join([struct.pack("<I", len(head)), head, *planes])


def embed(data: bytes) -> str:
    """Bytes as text that may stand in a script element: gzip in base64."""
    return base64.b64encode(igzip.compress(data, COMPRESSION_LEVEL, mtime=0)).decode("ascii")


def _width(name: str, values: NDArray[Any]) -> int:
    if not len(values):
        return 1
    low, high = int(values.min()), int(values.max())
    if low < 0 or high > LARGEST_VALUE:
        raise ValueError(f"{name} holds {low} to {high}, which a page cannot hold")
    return max((high.bit_length() + 7) // 8, 1)


def _planes(values: NDArray[Any], width: int) -> bytes:
    whole = np.ascontiguousarray(values, dtype="<u8").view(np.uint8).reshape(-1, 8)
    return np.ascontiguousarray(whole[:, :width].T).tobytes()
