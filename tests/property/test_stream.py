"""The streaming reader finds the same as plain JSON and the small reader, whatever the layout, blocks or damage."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.budgets import PROFILE, budget
from helpers.kineto_documents import (
    FEW,
    LAYOUTS,
    Float,
    Raw,
    as_json,
    cut_at_separators,
    ends_of_events,
    events_in,
    parsed_from,
    rows_of,
)
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.tracefile.kineto import layout
from gpuprof.tracefile.kineto.msgspec_reader import NO_END


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Fail where scanner and parser disagree, instead of reading the file the slow way."""
    monkeypatch.setenv("GPUPROF_DEBUG", "1")


@pytest.fixture(scope="session")
def file(tmp_path_factory) -> Path:
    """A file to write to, again and again."""
    return tmp_path_factory.mktemp("stream") / "trace.json"


# --- the same as plain JSON -----------------------------------------------------------------------------------------


TEXTS = st.one_of(
    st.sampled_from(
        [
            "aten::mm",
            '}, {"ph": "X", "cat": "cpu_op"',
            '"}]}, {"name": "x"}',
            "C:\\temp\\new",
            "ends in a backslash \\",
            "[memory]",
            "a\nb\tc",
            "π · 中 · 😀",
            "",
            "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>",
        ]
    ),
    st.text(max_size=20),
)
ODD_TEXTS = st.one_of(TEXTS, st.sampled_from([None, True, 12, 1.5, [1, "a"]]))
WHOLE_NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.integers(0, 10**9),
    st.sampled_from([-(2**63), 2**63 - 1, 2**63, 2**31, -(2**31), 0]),
)
TIMES = st.one_of(
    st.integers(-(10**15) + 1, 10**15 - 1).map(str),
    st.tuples(st.integers(0, 10**15 - 1), st.text("0123456789", min_size=1, max_size=12)).map(
        lambda p: f"{p[0]}.{p[1]}"
    ),
    st.sampled_from(["-0.5", "0.0005", "-3.9996", "1e3", "2.5E+2", "12345678901234567.5"]),
).map(Raw)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), TEXTS, st.sampled_from([0.5, -1e-7, 1e300])),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=8,
)
NESTED = st.one_of(JSON, st.just([{"ph": "X", "cat": "cpu_op", "ts": 1}, {"name": "y", "ph": "X", "ts": 2}]))
VECTORS = st.one_of(
    st.lists(st.integers(-(2**33), 2**33), max_size=4), st.lists(st.integers(0, 9), min_size=3, max_size=3)
)
PERCENT = st.one_of(
    st.integers(0, 100), st.decimals(0, 100, places=3).map(lambda d: Raw(f"{d:f}")), st.just(Raw("1.5e1"))
)


def unless_other_type(values) -> st.SearchStrategy:
    return st.one_of(values, values, values, JSON)


# Only one of the keys that fill the same field, since no profiler writes two of them into an event.
_NUMBER_KEYS = {field: key for key, field in reversed(layout.NUMBER_KEYS.items())}
ARGS = st.fixed_dictionaries(
    {},
    optional={
        **{key: unless_other_type(WHOLE_NUMBERS) for key in _NUMBER_KEYS.values()},
        **dict.fromkeys(layout.TEXT_KEYS, JSON),
        **{key: unless_other_type(VECTORS) for key in layout.VECTOR_KEYS},
        **{key: unless_other_type(PERCENT) for key in layout.FLOAT_KEYS},
        layout.EXTRA_KEY: st.sampled_from(["allreduce", None]),
        "Ev Idx": NESTED,
        "Record function id": NESTED,
        'odd "key"': NESTED,
    },
)
EVENTS = st.fixed_dictionaries(
    {"ts": TIMES},
    optional={
        "ph": st.sampled_from(["X", "X", "X", "X", "s", "f", "t", "i", "M", "B", "", "XX"]),
        "cat": st.one_of(st.sampled_from([*layout.CATEGORIES, "overhead", "nonsense"]), ODD_TEXTS),
        "name": ODD_TEXTS,
        "pid": st.one_of(st.integers(-5, 5), TEXTS),
        "tid": st.one_of(st.integers(-5, 2**40), TEXTS),
        "dur": TIMES,
        "id": unless_other_type(WHOLE_NUMBERS),
        "args": st.one_of(ARGS, ARGS, ARGS, JSON),
        "s": st.just("t"),
        "bp": st.just("e"),
        "extra": NESTED,
    },
)


@pytest.mark.parametrize("name", LAYOUTS)
@budget(25)
@given(
    events=st.lists(EVENTS, max_size=12),
    seed=st.integers(0, 2**32),
    block_bytes=st.sampled_from([64, 300, 4096, 1 << 20]),
)
def test_generated_events_are_read_as_plain_json_says(name, events, seed, block_bytes, file):
    data = LAYOUTS[name].document(events, seed)
    file.write_bytes(data)
    document = json.loads(data.decode("utf-8-sig"), parse_float=lambda text: Float(text))
    document_events = document["traceEvents"] if isinstance(document, dict) else document
    got = parsed_from(file, block_bytes)
    wanted = [row for event in document_events if (row := expected(event)) is not None]
    assert Counter(map(repr, rows_of(got))) == Counter(map(repr, wanted))
    assert got.metadata_events == sum(event.get("ph") == "M" for event in document_events)
    assert got.dropped == len(document_events) - len(wanted) - got.metadata_events
    assert not got.truncated and not got.repaired
    assert got.keys.get("baseTimeNanoseconds") == (None if name == "list" else 17)


def expected(event: dict) -> dict | None:
    """The row of an event as `layout` has it, texts as texts; None for metadata and for what has no time."""
    ph, cat, name = (as_text(event.get(key, "")) for key in ("ph", "cat", "name"))
    if ph == "M":
        return None
    table, kind = "other", 0
    index, known = layout.CATEGORIES.get(cat, (None, 0))
    if ph == "X" and index not in (None, layout.FLOWS):
        table, kind = layout.TABLES[index], known
    elif ph in ("s", "f", "t"):
        table, kind = "flows", known if index == layout.FLOWS else 2
    elif ph == "i" and name == "[memory]":
        table = "memory"
    start, duration = nanoseconds(event["ts"]), nanoseconds(event.get("dur", 0))
    end = None if start is None or duration is None else start + duration
    if start is None or (table not in ("flows", "memory") and (end is None or abs(end) >= 2**63)):
        return None
    args = event.get("args")
    given = {"name": name, "category": cat, "kind": kind, "begins": int(ph == "s"), "id": whole(event.get("id"), 64)}
    given |= {"start_ns": start, "time_ns": start, "end_ns": end}
    given |= {key: as_text(event[key]) if key in event else "" for key in ("pid", "tid")}
    given |= arguments(args) if isinstance(args, dict) else {}
    row: dict[str, Any] = {"table": table}
    for field, (dtype, *_) in (layout.ROWS[table].fields or {}).items():
        value = given.get(field)
        row[field] = whole(value, 32) if dtype == np.int32 and isinstance(value, int) else value
    return row


def arguments(args: dict) -> dict:
    values: dict = {layout.NUMBER_KEYS[key]: whole(args.get(key), 64) for key in _NUMBER_KEYS.values()}
    for key, field in layout.TEXT_KEYS.items():
        if key in args:
            text = isinstance(args[key], str) and not isinstance(args[key], Float)
            values[field] = as_json(args[key]) if text else [args[key]]
    for key, field in layout.VECTOR_KEYS.items():
        vector = args.get(key)
        if isinstance(vector, list) and len(vector) == 3 and all(whole(v, 32) is not None for v in vector):
            values |= zip((f"{field}_x", f"{field}_y", f"{field}_z"), vector, strict=True)
    for key, field in layout.FLOAT_KEYS.items():
        value = args.get(key)
        if isinstance(value, (int, Float)) and not isinstance(value, bool) and abs(float(value)) < 3e38:
            values[field] = float(np.float32(float(value)))
    if args.get(layout.EXTRA_KEY) is not None:
        values["extra"] = [args]
    return values


def whole(value, bits: int) -> int | None:
    number = type(value) is int and -(2 ** (bits - 1)) < value < 2 ** (bits - 1)
    return value if number else None


def as_text(value) -> str:
    if isinstance(value, str) and not isinstance(value, Float):
        return value
    return "" if value is None else str(float(value)) if isinstance(value, Float) else str(value)


def nanoseconds(value) -> int | None:
    exact = Decimal(value) * 1000
    result = int(exact.to_integral_value(ROUND_HALF_UP))
    return result if abs(result) < 2**63 else None


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kineto", "compact", "list"])
def test_a_file_may_end_anywhere(name, file):
    whole = LAYOUTS[name].document(FEW, 0)
    ends = ends_of_events(whole.decode())
    assert len(ends) == len(FEW)
    apart = 1 if PROFILE == "thorough" else 3 if name == "compact" else 7
    for size in range(whole.index(b"[") + 1, len(whole), apart):
        file.write_bytes(whole[:size])
        parsed = parsed_from(file, 128)
        assert events_in(parsed) == sum(end <= size for end in ends), size
        assert parsed.truncated == (None if b"]" in whole[max(ends) : size] else NO_END), size
        assert not parsed.dropped, size


BYTES = st.sampled_from([*b'"\\{}[],: \n\0\x01\xff\xc3', *b"0a-.eN"])


@pytest.mark.parametrize("name", ["kineto", "compact", "windows"])
@budget(40)
@given(data=st.data(), block_bytes=st.sampled_from([96, 400, 1 << 20]))
def test_damage_costs_hardly_more_than_cutting_at_separators(name, data, block_bytes, file):
    """A single damage costs no more; each further one may cost one more event where they are close together."""
    whole = bytearray(LAYOUTS[name].document(FEW * 2, 1))
    begin = whole.index(b"[") + 1
    damages = data.draw(st.integers(1, 3))
    for _ in range(damages):
        at, byte = data.draw(st.integers(begin, len(whole) - 1)), data.draw(BYTES)
        what = data.draw(st.sampled_from(["set", "insert", "delete", "repeat"]))
        if what == "set":
            whole[at] = byte
        elif what == "insert":
            whole.insert(at, byte)
        elif what == "delete":
            del whole[at : at + byte % 7 + 1]
        else:
            whole[at:at] = whole[max(at - 20, begin) : at]  # of events: the list begins once
    file.write_bytes(whole)
    wanted = cut_at_separators(bytes(whole))
    parsed = parsed_from(file, block_bytes)
    assert events_in(parsed) >= events_in(wanted) - (damages - 1), bytes(whole)
    assert parsed.truncated in (None, wanted.truncated), bytes(whole)


HEAD = (
    '{"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "H200", "x": [1, 2]}, {"id": 1, "name": "H200"}], '
    '"distributedInfo": {"backend": "nccl", "pg_config": [{"pg_name": "0", "ranks": [0, 1]}, {"pg_name": "1"}]}, '
    '"trace_id": "ABC", "traceEvents": ['
)
TAIL = '], "traceName": "t", "displayTimeUnit": "ms", "samples": [{"id": 0, "name": "a"}, {"id": 1, "name": "b"}]}'


@pytest.mark.parametrize("name", ["kineto", "compact", "windows"])
@budget(60)
@given(data=st.data(), block_bytes=st.sampled_from([96, 400, 1 << 20]), damage=st.sampled_from(["head", "tail", "]"]))
def test_a_bracket_that_does_not_end_the_list_costs_no_more_than_cutting_at_separators(
    name, data, block_bytes, damage, file
):
    """Part of the head or tail of the file is in it twice, or a `]` between events."""
    whole = dataclasses.replace(LAYOUTS[name], head=HEAD, tail=TAIL).document(FEW * 2, 1)
    at = data.draw(st.integers(whole.index(b'"traceEvents"') + 16, len(whole) - 1))
    if damage == "head":
        damaged = whole[:at] + whole[data.draw(st.integers(0, at)) :]
    elif damage == "tail":
        damaged = whole[:at] + whole[data.draw(st.integers(len(whole) - len(TAIL), len(whole))) :] + whole[at:]
    else:
        damaged = whole[:at] + b"]" + whole[data.draw(st.sampled_from([at, at + 1])) :]
    file.write_bytes(damaged)
    assert events_in(parsed_from(file, block_bytes)) >= events_in(cut_at_separators(damaged)), damaged


@pytest.mark.parametrize("seed", [0, 2])
@pytest.mark.parametrize("name", ["kineto", "compact"])
def test_an_event_that_damage_opens_a_list_in_does_not_take_the_rest(name, seed, file):
    """The end of the event list then ends that list, and the end of the document ends that event."""
    whole = LAYOUTS[name].document(FEW * 2, seed)
    begin = whole.index(b"[") + 1
    for at in range(begin, begin + 24):
        data = whole[:at] + whole[at - 20 : at] + whole[at:]
        file.write_bytes(data)
        for block_bytes in (96, 1 << 20):
            assert events_in(parsed_from(file, block_bytes)) >= events_in(cut_at_separators(data)), data
