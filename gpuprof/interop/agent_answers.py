"""Answers for agents: JSON of limited size, with rows in pages."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpuprof.units import Bytes, Convention, Rows

MOST_ROWS: Convention[Rows] = 50
MOST_BYTES: Convention[Bytes] = 100_000
_NAMES_OF_CUT: Convention[Bytes] = 2_000
"""Bytes reserved for the names of the lists that were cut."""


def page(rows: Sequence[Any], offset: int, limit: int, **more: Any) -> dict[str, Any]:
    """`rows[offset:offset + limit]`, at most MOST_ROWS, with the offset of the next page (None: this is the last), and
    the keys of `more`. Fewer rows if the result would exceed MOST_BYTES, but at least one. Raises ValueError for an
    invalid offset or limit.
    """
    if offset < 0 or limit < 1:
        raise ValueError("offset is 0 or more, limit 1 or more")
    size = min(limit, MOST_ROWS)
    while True:
        shown = list(rows[offset : offset + size])
        end = offset + len(shown)
        next_offset = end if shown and end < len(rows) else None
        found = {"total": len(rows), "rows": shown, "next_offset": next_offset, **more}
        if len(shown) <= 1 or len(_text(_shortened(found, MOST_ROWS, "", []))) <= MOST_BYTES - _NAMES_OF_CUT:
            return found
        size = len(shown) // 2


def text(document: dict[str, Any]) -> str:
    """The document as JSON of at most MOST_BYTES: lists are cut to MOST_ROWS rows, then to fewer until it fits.

    `cut` names the shortened lists. Raises ValueError if even short lists do not fit.
    """
    rows = MOST_ROWS
    while rows:
        cut: list[str] = []
        shown = _shortened(document, rows, "", cut)
        found = _text({**shown, "cut": cut} if cut else shown)
        if len(found) <= MOST_BYTES:
            return found
        rows //= 2
    raise ValueError(f"the answer is longer than {MOST_BYTES:,} bytes: ask for fewer rows (limit)")


def _shortened(value: Any, rows: int, path: str, cut: list[str]) -> Any:
    if isinstance(value, dict):
        return {key: _shortened(item, rows, f"{path}.{key}" if path else key, cut) for key, item in value.items()}
    if isinstance(value, list):
        if len(value) > rows:
            cut.append(path)
        return [_shortened(item, rows, f"{path}[]", cut) for item in value[:rows]]
    return value


def _text(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
