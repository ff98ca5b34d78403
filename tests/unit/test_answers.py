"""Answers for agents: pages of rows, and a size limit that is kept."""

from __future__ import annotations

import json

import pytest

from gpuprof.interop.agent_answers import MOST_BYTES, MOST_ROWS, page, text


def test_pages_follow_each_other_until_the_end():
    rows, seen, offset = [{"i": i} for i in range(120)], [], 0
    while offset is not None:
        found = page(rows, offset, 1000)
        assert found["total"] == 120 and len(found["rows"]) <= MOST_ROWS
        seen += found["rows"]
        offset = found["next_offset"]
    assert seen == rows


def test_a_page_of_large_rows_holds_fewer():
    rows = [{"name": "k" * 30_000} for _ in range(20)]
    found = page(rows, 0, 20)
    assert 1 <= len(found["rows"]) < 20 and found["next_offset"] == len(found["rows"])
    assert len(json.dumps(found)) <= MOST_BYTES


def test_pages_leave_room_for_what_is_next_to_them():
    """With 60 kB next to them, every row is on exactly one page, and no page is cut afterwards."""
    rows, seen, offset = [{"i": i, "name": "k" * 900} for i in range(120)], [], 0
    while offset is not None:
        found = json.loads(text(page(rows, offset, 50, by_category=["c" * 60_000])))
        assert "cut" not in found and len(found["by_category"][0]) == 60_000
        seen += found["rows"]
        offset = found["next_offset"]
    assert seen == rows


@pytest.mark.parametrize(("offset", "limit"), [(-1, 5), (0, 0)])
def test_pages_that_make_no_sense(offset: int, limit: int):
    with pytest.raises(ValueError, match="offset"):
        page([1], offset, limit)


def test_a_page_behind_the_end_is_empty():
    assert page([1, 2], 5, 10) == {"total": 2, "rows": [], "next_offset": None}


def test_long_lists_are_cut_and_named():
    document = {"a": list(range(200)), "b": {"c": [{"d": ["x" * 1000] * 60}] * 3}}
    found = json.loads(text(document))
    assert len(found["a"]) <= MOST_ROWS and set(found["cut"]) == {"a", "b.c[].d"}
    assert len(text(document)) <= MOST_BYTES
    assert json.loads(text({"a": [1]})) == {"a": [1]}


def test_what_cannot_be_cut_is_refused():
    with pytest.raises(ValueError, match="fewer rows"):
        text({"name": "x" * (MOST_BYTES + 1)})
