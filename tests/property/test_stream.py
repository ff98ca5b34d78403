"""The streaming reader finds what the small one and plain JSON find, whatever the layout, the blocks or the damage."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import numpy as np
import pytest
from helpers.paths import ROOT
from helpers.traces import WHOLE, resolve, shared_trace
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.kineto import blocks, layout, scan, source, stream
from gpuprof.tracefile.kineto.build import build
from gpuprof.tracefile.kineto.envelope import NeedMore
from gpuprof.tracefile.kineto.plan import make_plan
from gpuprof.tracefile.kineto.reader import read_kineto
from gpuprof.tracefile.kineto.small import NO_END, Parsed, read_small
from gpuprof.tracefile.model import Trace

CALM = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Where scanner and parser disagree, fail, rather than read the file in the slow way."""
    monkeypatch.setenv("GPUPROF_DEBUG", "1")


@pytest.fixture(scope="session")
def file(tmp_path_factory) -> Path:
    """A file to write to, again and again."""
    return tmp_path_factory.mktemp("stream") / "trace.json"


def streamed(path: Path, block_bytes: int = stream.BLOCK_BYTES) -> Trace:
    size = path.stat().st_size
    return build(stream.read_stream(path, size, None, block_bytes), str(path), size)


def small(path: Path) -> Trace:
    return read_kineto(path, path.stat().st_size, small_bytes=1 << 40)


# --- the same as the small reader -----------------------------------------------------------------------------------


def differences(one: Trace, other: Trace) -> list[str]:
    """Columns that differ, texts compared as texts."""
    texts = texts_of(one, other)
    found = []
    for table in layout.TABLES:
        a, b = getattr(one, table), getattr(other, table)
        if len(a) != len(b):
            found.append(f"{table}: {len(a)} rows, {len(b)} rows")
            continue
        for field in dataclasses.fields(a):
            left, right = getattr(a, field.name), getattr(b, field.name)
            if field.name in texts:
                left, right = (ids[column] for ids, column in zip(texts[field.name], (left, right), strict=True))
            wrong = np.flatnonzero((left != right) & ~((left != left) & (right != right)))
            if len(wrong):
                found.append(f"{table}.{field.name}: {len(wrong)} differ, first at {wrong[0]}")
    ignored = {"reader": "", "dropped_sample": ""}
    for what in ("meta", "reading"):
        a, b = getattr(one, what), getattr(other, what)
        if what == "reading":
            a, b = dataclasses.replace(a, **ignored), dataclasses.replace(b, **ignored)
        if a != b:
            found.append(f"{what}: {a}, {b}")
    return found


def noted(texts: Iterable[bytes], into: list[bytes]) -> Iterable[bytes]:
    for text in texts:
        into.append(text)
        yield text


def texts_of(one: Trace, other: Trace) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """For every column of texts or threads, numbers that mean the same in both traces."""
    numbers: dict = {}

    def shared(values) -> np.ndarray:
        return np.array([*(numbers.setdefault(value, len(numbers)) for value in values), -1])

    strings, threads = (shared(one.strings), shared(other.strings)), (shared(one.threads), shared(other.threads))
    return {**dict.fromkeys(layout.TEXT_FIELDS, strings), "thread": threads}


@pytest.mark.parametrize("trace", WHOLE)
def test_every_recording_is_read_as_by_the_small_reader(trace, monkeypatch):
    path = resolve(trace)
    wanted = small(path)
    read_by_python = []
    add_texts = stream.add_texts
    monkeypatch.setattr(stream, "add_texts", lambda texts, into: add_texts(noted(texts, read_by_python), into))
    assert not differences(wanted, streamed(path, 1 << 18))
    # Python reads the names of threads, and one event per block to check.
    assert sum(b'"M"' not in text for text in read_by_python) <= wanted.reading.text_bytes / (1 << 18) + 5
    if wanted.reading.text_bytes < 2 << 20:
        assert not differences(wanted, streamed(path, 1 << 10))


@pytest.mark.parametrize("name", ["broken_truncated_json_70pct", "broken_truncated_gzip_60pct"])
def test_a_cut_recording_is_read_as_by_the_small_reader(name):
    path = shared_trace(f"public/{name}")
    wanted = small(path)
    assert wanted.reading.truncated
    for block_bytes in (1 << 12, stream.BLOCK_BYTES):
        assert not differences(wanted, streamed(path, block_bytes))


# --- the same as plain JSON -----------------------------------------------------------------------------------------


class Raw(str):
    """A number as it is to stand in the file."""


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


# Of keys that fill the same field only one, since no profiler writes two of them into an event.
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


@dataclasses.dataclass(frozen=True)
class Layout:
    """How white space, envelope and encoding are chosen; the order of keys is random."""

    comma: str
    colon: str
    begin: str
    end: str
    newline: str = "\n"
    head: str = '{"schemaVersion": 1, "traceEvents": ['
    tail: str = '], "traceName": "t", "baseTimeNanoseconds": 17}'
    mark: bytes = b""
    ascii: bool = True

    def document(self, events: list[dict], seed: int) -> bytes:
        draw = random.Random(seed)
        text = f"{self.comma}".join(self.value(event, draw) for event in events)
        text = f"{self.head}{self.begin}{text}{self.end}{self.tail}"
        return self.mark + text.replace("\n", self.newline).encode(
            "utf-8", "surrogatepass" if self.ascii else "replace"
        )

    def value(self, value, draw: random.Random) -> str:
        if isinstance(value, Raw):
            return value
        if isinstance(value, dict):
            items = list(value.items())
            draw.shuffle(items)
            inner = self.comma.join(f"{self.value(str(k), draw)}{self.colon}{self.value(v, draw)}" for k, v in items)
            return f"{{{self.begin}{inner}{self.end}}}" if items else "{}"
        if isinstance(value, list):
            return f"[{', '.join(self.value(v, draw) for v in value)}]"
        return json.dumps(value, ensure_ascii=self.ascii)


LAYOUTS = {
    "kineto": Layout(",\n    ", ": ", "\n    ", "\n  "),
    "one line": Layout(", ", ": ", "", ""),
    "compact": Layout(",", ":", "", "", ascii=False),
    "list": Layout(",\n ", " :\t", "\n", "\n", head=" [", tail="]\n"),
    "windows": Layout(",\n", ": ", "\n\t", "\n", newline="\r\n", mark=b"\xef\xbb\xbf"),
    "wide": Layout("   \n" * 9 + "," + " " * 40, " " * 33 + ":" + "\n" * 70, " " * 70, "\n\n" * 35, ascii=False),
}


@pytest.mark.parametrize("name", LAYOUTS)
@CALM
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


class Float(str):
    """A number with a point or an exponent, as text."""


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
    row = {"table": table}
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


def rows_of(parsed: Parsed) -> list[dict]:
    """All rows that were read, as `expected` gives them."""
    texts = [*parsed.strings, None]
    found = []
    for table in layout.TABLES:
        columns = parsed.tables[table].take()
        for i in range(parsed.tables[table].count):
            row: dict = {"table": table}
            for field, column in columns.items():
                value = column[i].item()
                if field in layout.TEXT_FIELDS:
                    value = texts[value]
                    if field not in PLAIN_TEXTS and value is not None:
                        value = as_json(value)
                elif value != value or (column.dtype.kind == "i" and value == np.iinfo(column.dtype).min):
                    value = None
                row[field] = value
            found.append(row)
    return found


PLAIN_TEXTS = ("name", "category", "pid", "tid")


def as_json(text: str):
    """The value that a text stands for; a text that is no JSON stands for itself."""
    try:
        return [json.loads(text, parse_float=Float)]
    except ValueError:
        return text


def parsed_from(path: Path, block_bytes: int = stream.BLOCK_BYTES) -> Parsed:
    return stream.read_stream(path, path.stat().st_size, None, block_bytes)


def events_in(parsed: Parsed) -> int:
    return sum(table.count for table in parsed.tables.values()) + parsed.metadata_events


def test_a_number_that_stands_for_nothing_is_absent(file):
    file.write_text('[{"ph":"X","cat":"kernel","ts":1,"args":{"stream":-9223372036854775808,"device":-2147483648}}]')
    (row,) = rows_of(parsed_from(file))
    assert (row["stream"], row["device"], row["extra"]) == (None, None, None)


def test_texts_that_differ_only_in_escapes_are_one(file):
    names = ['"a/b"', '"a\\/b"', '"a\\u002fb"', '"other"']
    file.write_text(listed(f'{{"ph":"X","cat":"cpu_op","name":{name},"ts":1}}' for name in names))
    parsed = parsed_from(file)
    assert len(parsed.strings) == len(set(parsed.strings))
    assert [row["name"] for row in rows_of(parsed)] == ["a/b", "a/b", "a/b", "other"]


def listed(events: Iterable[str], comma: str = ",\n") -> str:
    return f"[{comma.join(events)}]"


def op(name: str = "op", ts: str = "1", more: str = "") -> str:
    return f'{{"ph": "X", "cat": "cpu_op", "name": "{name}", "pid": 1, "tid": 2, "ts": {ts}, "dur": 1{more}}}'


# --- damage ---------------------------------------------------------------------------------------------------------

FEW = [
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 2, "ts": Raw("1.250"), "dur": Raw("2.5"),
     "args": {"External id": 7, "Input Dims": [[2, 3], []], "Concrete Inputs": ["", "[1]"], "Ev Idx": 1}},
    {"ph": "s", "id": 3, "pid": 1, "tid": 2, "ts": Raw("1.5"), "cat": "ac2g", "name": "ac2g"},
    {"ph": "X", "cat": "kernel", "name": "k<float, 4>", "pid": 0, "tid": 7, "ts": Raw("3.000"), "dur": Raw("1"),
     "args": {"device": 0, "stream": 7, "correlation": 3, "grid": [4, 1, 1], "est. achieved occupancy %": 31}},
    {"ph": "X", "cat": "python_function", "name": "a.py(1): f", "pid": 1, "tid": 2, "ts": Raw("1"), "dur": Raw("9"),
     "args": {"Python id": 1, "Python parent id": None}},
    {"ph": "i", "cat": "cpu_instant_event", "s": "t", "name": "[memory]", "pid": 1, "tid": 2, "ts": Raw("4"),
     "args": {"Bytes": 512, "Addr": 140000000, "Device Type": 1, "Device Id": 0}},
]  # fmt: skip


@pytest.mark.parametrize("name", ["kineto", "compact", "list"])
def test_a_file_may_end_anywhere(name, file):
    whole = LAYOUTS[name].document(FEW, 0)
    ends = ends_of_events(whole.decode())
    assert len(ends) == len(FEW)
    for size in range(whole.index(b"[") + 1, len(whole), 1 if name == "compact" else 3):
        file.write_bytes(whole[:size])
        parsed = parsed_from(file, 128)
        assert events_in(parsed) == sum(end <= size for end in ends), size
        assert parsed.truncated == (None if b"]" in whole[max(ends) : size] else NO_END), size
        assert not parsed.dropped, size


def ends_of_events(document: str) -> list[int]:
    """Where each event of a valid document ends."""
    at = document.index("[", max(document.find("traceEvents"), 0)) + 1
    decoder, ends = json.JSONDecoder(), []
    while True:
        while document[at] in " \t\r\n,":
            at += 1
        if document[at] == "]":
            return ends
        _, at = decoder.raw_decode(document, at)
        ends.append(at)


BYTES = st.sampled_from([*b'"\\{}[],: \n\0\x01\xff\xc3', *b"0a-.eN"])


@pytest.mark.parametrize("name", ["kineto", "compact", "windows"])
@CALM
@given(data=st.data(), block_bytes=st.sampled_from([96, 400, 1 << 20]))
def test_damage_costs_hardly_more_than_it_costs_the_small_reader(name, data, block_bytes, file):
    """One damage costs no more; of several each further one may cost one event more, where they lie together."""
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
            whole[at:at] = whole[at - 20 : at]
    file.write_bytes(whole)
    wanted = read_small(bytes(whole))
    parsed = parsed_from(file, block_bytes)
    assert events_in(parsed) >= events_in(wanted) - (damages - 1), bytes(whole)
    assert parsed.truncated in (None, wanted.truncated), bytes(whole)


BROKEN = {
    "control character": (op("a\x01b\tc"), {"name": "a\x01b\tc"}),
    "lone backslash": (op("C:\\dir\\x"), {"name": "C:\\dir\\x"}),
    "quotes in the name": (op('a "b" c'), {"name": 'a "b" c'}),
    "not a number": (op(more=', "args": {"External id": 5, "x": NaN}'), {"external": 5}),
    "infinite": (op(more=', "args": {"x": -inf, "External id": 5}'), {"external": 5}),
    "comma before the end": (op(more=', "args": {"External id": 5,},'), {"external": 5}),
    "invalid UTF-8": (op("caf\udce9"), {"name": "caf\ufffd"}),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_event_is_mended_and_counted(what, file):
    broken, wanted = BROKEN[what]
    events = [op("first"), broken, op("last"), broken, op("end")]
    file.write_bytes(listed(events).encode("utf-8", "surrogateescape"))
    for block_bytes in (64, 1 << 20):
        parsed = parsed_from(file, block_bytes)
        rows = rows_of(parsed)
        assert (parsed.repaired, parsed.dropped, len(rows)) == (2, 0, 5)
        assert sum(wanted.items() <= row.items() for row in rows) == 2
        assert {"first", "last", "end"} <= {row["name"] for row in rows}


def test_what_stands_between_events_may_be_odd(file):
    file.write_bytes(
        b"[" + op("a").encode() + b"\0\0\r\n" + op("b").encode() + b",,\n," + op("c").encode() + b",\0\0]\n"
    )
    for block_bytes in (64, 1 << 20):
        parsed = parsed_from(file, block_bytes)
        assert [row["name"] for row in rows_of(parsed)] == ["a", "b", "c"]
        assert not parsed.truncated and not parsed.dropped


def test_of_a_key_that_occurs_twice_the_last_counts(file):
    args = ', "args": {"External id": 1}, "args": {"Sequence number": 4, "External id": 2, "External id": 3}'
    file.write_text(listed([op("a", more=f', "name": "b", "ts": 7{args}')]))
    (row,) = rows_of(parsed_from(file))
    assert (row["name"], row["start_ns"], row["sequence"], row["external"]) == ("b", 7000, 4, 3)


def test_what_cannot_be_mended_is_dropped_and_counted(file):
    file.write_text(
        listed([op("a"), '{"ph": "X", "name": ?, "ts": 1}', op("b"), "17", op("c"), '{"ph": "X", "name": "no time"}'])
    )
    parsed = parsed_from(file, 64)
    assert [row["name"] for row in rows_of(parsed)] == ["a", "b", "c"]
    assert parsed.dropped == 3 and parsed.dropped_sample.startswith('{"ph": "X", "name": ?')


def test_many_odd_events_take_no_more_than_they_must(file):
    count = 30_000
    file.write_text(listed(op(f"op{i % 100}", f'"{i}.5"') for i in range(count)))
    begin = time.monotonic()
    parsed = parsed_from(file)
    assert time.monotonic() - begin < count * 100e-6
    assert [row["start_ns"] for row in rows_of(parsed)] == [i * 1000 + 500 for i in range(count)]


def test_a_quote_too_many_costs_one_event_and_little_time(file):
    """Read on from an odd quote in a list, strings and what is between them change places up to the end of the file."""
    count = 20_000
    good = op("good", more=', "args": {"Concrete Inputs": ["", "[4, 256]"], "Input Dims": [[4, 256], []]}')
    bad = op("bad", more=', "args": {"Concrete Inputs": ["it"s", "[4, 256]"], "Input Dims": [[4, 256], []]}')
    file.write_text(listed(bad if i % 10 == 5 else good for i in range(count)))
    begin = time.monotonic()
    parsed = parsed_from(file)
    assert time.monotonic() - begin < 20
    assert parsed.dropped == count // 10
    assert events_in(parsed) == count - parsed.dropped


@pytest.mark.parametrize("block_bytes", [256, 1 << 20])
def test_an_event_may_be_longer_than_a_block(block_bytes, file):
    separators = json.dumps([op("not an event")] * 200)
    real = json.dumps([json.loads(op("not an event either"))] * 200)
    more = f', "args": {{"Concrete Inputs": {separators}, "Input Dims": {real}}}'
    file.write_text(listed([op("a"), op("long", more=more), op("b"), op("long", more=more), op("c")]))
    parsed = parsed_from(file, block_bytes)
    rows = rows_of(parsed)
    assert [row["name"] for row in rows] == ["a", "long", "b", "long", "c"]
    assert rows[1]["concrete"] == [json.loads(separators)] and rows[3]["dims"] == [json.loads(real)]


def test_an_event_beyond_the_limit_is_given_up(file, monkeypatch):
    for module in (blocks, stream):
        monkeypatch.setattr(module, "LIMIT_BYTES", 5000)
    file.write_text(
        listed([op("a"), op("x" * 20_000), op("b"), op("c", more=', "args": {"x": "' + "y" * 30_000 + '"}'), op("d")])
    )
    parsed = parsed_from(file, 256)
    assert [row["name"] for row in rows_of(parsed)] == ["a", "b", "d"]
    assert parsed.dropped == 2 and not parsed.truncated


def test_a_header_without_an_end_is_no_trace(file, monkeypatch):
    monkeypatch.setattr(stream, "LIMIT_BYTES", 5000)
    file.write_text('{"schemaVersion": [' + "1, " * 5000)
    with pytest.raises(UnreadableTrace):
        parsed_from(file, 64)
    file.write_text('{"schemaVersion": [1, 2')
    with pytest.raises(NeedMore):
        parsed_from(file, 64)
    file.write_text('{"results": []}')
    with pytest.raises(UnreadableTrace, match="traceEvents"):
        parsed_from(file, 64)


# --- gzip -----------------------------------------------------------------------------------------------------------


def kineto(count: int) -> bytes:
    return LAYOUTS["kineto"].document(FEW * (count // len(FEW)), 2)


def test_members_of_a_gzip_file_are_one_text(file):
    text = kineto(3000)
    parts = [text[:1000], text[1000:1001], b"", text[1001:]]
    file.write_bytes(b"".join(map(gzip.compress, parts)) + bytes(512))
    parsed = parsed_from(file, 1 << 12)
    assert (events_in(parsed), parsed.truncated, parsed.text_bytes) == (3000, None, len(text))
    file.write_bytes(gzip.compress(text) + b"something else")
    assert (events_in(parsed_from(file)), parsed.truncated) == (3000, None)


def test_what_a_cut_gzip_file_holds_is_read(file):
    text = kineto(3000)
    packed = gzip.compress(text)
    for size in (len(packed) * 2 // 3, len(packed) - 9, len(packed) - 1):
        file.write_bytes(packed[:size])
        there = zlib.decompressobj(31).decompress(packed[:size]).decode()
        for block_bytes in (1 << 10, 1 << 20):
            parsed = parsed_from(file, block_bytes)
            assert parsed.text_bytes == len(there)
            assert events_in(parsed) == sum(end <= len(there) for end in ends_of_events(text.decode()))
            assert parsed.truncated == source.CUT


def test_a_damaged_gzip_file_is_read_up_to_the_damage(file):
    text = b"[" + b",".join(op(f"op {random.Random(i).random()}", str(i)).encode() for i in range(60_000)) + b"]"
    packed = bytearray(gzip.compress(text, 6))
    middle = len(packed) // 2
    packed[middle : middle + 64] = b"\xff" * 64
    file.write_bytes(packed)
    parsed = parsed_from(file)
    assert parsed.truncated == source.DAMAGED
    assert events_in(parsed) > 20_000
    assert parsed.tables["ops"].take()["start_ns"][:20_000].tolist() == [1000 * i for i in range(20_000)]


@pytest.mark.parametrize("filling", [b"\0", b" ", b"[", b"x", op("again").encode() + b","])
def test_a_bomb_is_refused(filling, file, monkeypatch):
    monkeypatch.setattr(source, "BOMB_BYTES", 1 << 20)
    for head in (b"", b"[", b'{"traceEvents": ['):
        file.write_bytes(gzip.compress(head + filling * ((16 << 20) // len(filling)), 9))
        with pytest.raises(UnreadableTrace):
            parsed_from(file)


@pytest.mark.slow
def test_a_real_bomb_is_refused_in_little_memory(tmp_path):
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"[" + op().encode())
        for _ in range(10_000):
            file.write(bytes(1 << 20))
    code = (
        "import resource, sys; from pathlib import Path; from gpuprof.errors import GpuprofError\n"
        "import gpuprof\n"
        "try: gpuprof.load(sys.argv[1])\n"
        "except GpuprofError as error: print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
    )
    done = subprocess.run([sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 1_500_000  # KiB


# --- threads, trust, cache ------------------------------------------------------------------------------------------


def test_progress_is_told_by_the_thread_that_asked(file):
    file.write_bytes(kineto(60_000))
    size, told = file.stat().st_size, []
    stream.read_stream(file, size, lambda done, of: told.append((done, of, threading.get_ident())), 1 << 12)
    assert told and {thread for _, _, thread in told} == {threading.get_ident()}
    assert all(0 <= done <= of == size for done, of, _ in told)


def test_a_key_press_ends_it(file):
    file.write_bytes(kineto(60_000))

    def press(done: int, of: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        stream.read_stream(file, file.stat().st_size, press, 1 << 12)
    assert threading.active_count() == before


def test_what_goes_wrong_in_a_thread_is_raised(file, monkeypatch):
    file.write_bytes(kineto(600))
    monkeypatch.setattr(stream, "add_texts", lambda *_: 1 / 0)
    before = threading.active_count()
    with pytest.raises(ZeroDivisionError):
        parsed_from(file)
    assert threading.active_count() == before


def test_a_scanner_that_is_wrong_is_not_trusted(file, monkeypatch):
    events = [json.loads(event) for event in (op("a", "1.5"), op("b"), op("[memory]").replace('"X"', '"i"'), op("c"))]
    file.write_bytes(LAYOUTS["kineto"].document(events, 0))
    wanted = sorted(map(repr, rows_of(parsed_from(file))))

    def wrong() -> np.void:
        plan = np.array([make_plan()])[0]
        plan["offset"][0, scan.S_START], plan["offset"][0, scan.S_END] = 8, 0
        return plan

    monkeypatch.setattr(stream, "make_plan", wrong)
    with pytest.raises(stream.Distrust):
        parsed_from(file)
    monkeypatch.delenv("GPUPROF_DEBUG")
    parsed = parsed_from(file, 64)
    assert sorted(map(repr, rows_of(parsed))) == wanted
    assert parsed.reader != "stream"


def test_it_compiles_where_nothing_can_be_kept(tmp_path):
    """No cache folder can be made: neither beside the package nor in the user's home."""
    shutil.copytree(ROOT / "gpuprof", tmp_path / "gpuprof", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "gpuprof" / "tracefile" / "kineto" / "__pycache__").write_text("not a folder")
    (tmp_path / "home").write_text("not a folder")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "trace.json").write_bytes(kineto(600))
    code = (
        "import gpuprof; from pathlib import Path; from gpuprof.tracefile.kineto import stream\n"
        "path = Path('trace.json'); parsed = stream.read_stream(path, path.stat().st_size)\n"
        "print(sum(table.count for table in parsed.tables.values()))"
    )
    home = str(tmp_path / "home")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("NUMBA", "XDG", "PYTHON"))}
    environment |= {"HOME": home, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "traces", env=environment, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "600\n"), done.stderr
    assert done.stderr.count("\n") == 1 and "compiling" in done.stderr
    assert [path.name for path in (tmp_path / "traces").iterdir()] == ["trace.json"]


def test_what_looks_like_events_in_events_without_end_is_not_read_over_and_over():
    block = blocks.Block(make_plan())
    block.put(b'{"ph": [{}, ' * 300_000)
    begin = time.monotonic()
    block.scan(final=True)
    assert time.monotonic() - begin < 20  # without a limit to the depth: minutes
    assert block.sheet["odd"] > 200_000
