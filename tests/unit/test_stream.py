"""The streaming reader: damage, gzip, threads and trust."""

from __future__ import annotations

import gzip
import json
import random
import threading
import zlib
from pathlib import Path

import numpy as np
import pytest
from helpers.cpu_time import least_s, times_as_long
from helpers.kineto_documents import LAYOUTS, ends_of_events, events_in, kineto, listed, op, parsed_from, rows_of

from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.kineto import blocks, reader, scan, source, stream
from gpuprof.tracefile.kineto.envelope import NeedMore
from gpuprof.tracefile.kineto.reader import read_kineto
from gpuprof.tracefile.kineto.scan_plan import make_plan
from gpuprof.tracefile.read import read_trace
from gpuprof.tracefile.trace import ABSENT


@pytest.fixture(autouse=True)
def strict(monkeypatch):
    """Fail where scanner and parser disagree, instead of reading the file the slow way."""
    monkeypatch.setenv("GPUPROF_DEBUG", "1")


@pytest.fixture(scope="session")
def file(tmp_path_factory) -> Path:
    """A file to write to, again and again."""
    return tmp_path_factory.mktemp("stream") / "trace.json"


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


@pytest.mark.parametrize("key", ["name", "pid", "id", "bp", "unknown"])
def test_a_bracket_too_many_does_not_take_in_the_events_that_follow(key, file):
    """With it, the broken event looks like one whose value continues to the end of the list and the document."""
    flow = f'{{"ph": "s", "cat": "ac2g", "ts": 3, "{key}": [{{"x"}}'
    file.write_text(f'{{"traceEvents": {listed([op("a"), flow, op("b"), op("c")])}, "traceName": "t"}}')
    parsed = parsed_from(file)
    assert [row["name"] for row in rows_of(parsed)] == ["a", "b", "c"]
    assert parsed.dropped == 1 and not parsed.truncated
    assert parsed.keys["traceName"] == "t"


@pytest.mark.parametrize("block_bytes", [64, 200, 1 << 20])
def test_a_bracket_of_a_list_within_an_event_does_not_end_the_list(block_bytes, file):
    """The text continues in the middle of an event, as when a block of a file was overwritten."""
    torn = '2048, 1], [1, 2048]], "Ev Idx": 7}}'
    file.write_text(f'{{"traceEvents": {listed([op("a"), torn, op("b"), op("c")])}, "traceName": "t"}}')
    parsed = parsed_from(file, block_bytes)
    assert [row["name"] for row in rows_of(parsed)] == ["a", "b", "c"]
    assert not parsed.truncated and parsed.keys["traceName"] == "t"
    file.write_text(f'{{"traceEvents": {listed([op("a"), "17"])}, "traceName": "t"}}')
    assert parsed_from(file, block_bytes).keys["traceName"] == "t"


@pytest.mark.parametrize("block_bytes", [64, 200, 1 << 20])
@pytest.mark.parametrize(("event", "cut"), [('{"nam', 'e": 0'), ("", "]")])
def test_the_list_of_gpus_in_a_head_that_is_there_twice_does_not_end_the_events(event, cut, block_bytes, file):
    head = '{"deviceProperties": [{"device": 0, "name": "H200"}], "trace_id": "t", "traceEvents": [\n'
    events = ",\n".join(op(name) for name in "abcd")
    file.write_text(f'{head}{op("z")},\n{event}{head[head.index(cut) :]}{events}], "traceName": "t"}}')
    parsed = parsed_from(file, block_bytes)
    assert [row["name"] for row in rows_of(parsed)] == ["z", "b", "c", "d"]
    assert (parsed.dropped or parsed.more == "list") and not parsed.truncated and parsed.keys["traceName"] == "t"


def test_a_head_that_is_closed_too_early_leads_to_the_events_all_the_same(file):
    file.write_text(f'{{"schemaVersion": 1}}], "trace_id": "t", "traceEvents": {listed([op("a"), op("b")])}}}')
    assert [row["name"] for row in rows_of(parsed_from(file, 64))] == ["a", "b"]


def test_brackets_that_end_no_list_are_not_looked_behind_without_end(file):
    count = 60_000
    file.write_text("[" + f'{op("a")}, {op("b")}], "x": [5], '.join([""] * count) + "]")
    assert stream.MOST_FALSE_ENDS < events_in(parsed_from(file)) < count


@pytest.mark.parametrize(("text_bytes", "compiled", "used"), [
    (1000, True, "small"), (reader.SHORT_DOCUMENT_BYTES + 1, True, "stream"),
    (reader.SHORT_DOCUMENT_BYTES + 1, False, "small"),
    (reader.SMALL_UNCOMPILED_BYTES + 1, False, "stream"),
])  # fmt: skip
def test_longer_texts_wait_for_no_compiler(text_bytes, compiled, used, file, monkeypatch):
    """Compiled kernels are used from 4 MB on; compiling them costs more than it saves up to 100 MB."""
    monkeypatch.setattr(reader, "_is_compiled", lambda: compiled)
    monkeypatch.setattr(scan, "uncompiled_bytes", lambda: 0)
    monkeypatch.setattr(scan, "note_uncompiled", lambda _: None)
    document = listed([op("a")])
    file.write_text(document[:1] + " " * (text_bytes - len(document)) + document[1:])
    trace = read_kineto(file, file.stat().st_size)
    assert (trace.reading.reader, trace.reading.events) == (used, 1)


def test_texts_that_were_read_before_count_for_the_compiler(file, monkeypatch):
    """Who reads trace after trace waits for it once, as each is then read in half the time."""
    noted = [0]
    monkeypatch.setattr(reader, "_is_compiled", lambda: False)
    monkeypatch.setattr(reader, "SHORT_DOCUMENT_BYTES", 10)
    monkeypatch.setattr(reader, "SMALL_UNCOMPILED_BYTES", 250)
    monkeypatch.setattr(scan, "uncompiled_bytes", lambda: noted[-1])
    monkeypatch.setattr(scan, "note_uncompiled", noted.append)
    file.write_text(listed([op("a")]).ljust(100))
    used = [read_kineto(file, file.stat().st_size).reading.reader for _ in range(4)]
    assert (used, noted) == (["small", "small", "stream", "stream"], [0, 100, 200])


def test_compiled_kernels_are_known_as_such():
    stream.compile_reader()
    assert scan.is_compiled()


@pytest.mark.parametrize("small_bytes", [0, 1 << 20])
def test_a_number_beyond_all_floats_counts_as_not_given(small_bytes, file):
    file.write_text(listed([op("a", more=', "args": {"External id": 31e791, "Sequence number": 7}')]))
    trace = read_kineto(file, file.stat().st_size, small_bytes=small_bytes)
    assert (trace.reading.events, trace.reading.dropped) == (1, 0)
    assert (trace.ops.sequence.tolist(), trace.ops.external.tolist()) == ([7], [ABSENT])


def test_an_event_within_a_whole_one_is_part_of_it(file):
    inner = json.dumps([json.loads(op("not an event"))] * 3)
    file.write_text(listed([op("a"), f'{{"ph": "X", "args": {{"x": {inner}}}}}', op("b", more=f', "stack": {inner}')]))
    parsed = parsed_from(file)
    assert [row["name"] for row in rows_of(parsed)] == ["a", "b"]
    assert parsed.dropped == 1  # without a time


@pytest.mark.slow
def test_many_odd_events_take_no_more_than_they_must(file):
    """About 15 times what a JSON parser takes for the whole file, however long it is."""
    count = 30_000
    text = listed(op(f"op{i % 100}", f'"{i}.5"') for i in range(count))
    file.write_text(text)
    parsed = parsed_from(file)
    assert [row["start_ns"] for row in rows_of(parsed)] == [i * 1000 + 500 for i in range(count)]
    assert times_as_long(lambda: parsed_from(file), lambda: json.loads(text)) < 80


@pytest.mark.measures_time
@pytest.mark.slow
def test_a_quote_too_many_costs_one_event_and_little_time(file):
    """After an odd quote in a list, strings and the text between them would swap roles up to the end of the file."""
    good = op("good", more=', "args": {"Concrete Inputs": ["", "[4, 256]"], "Input Dims": [[4, 256], []]}')
    bad = op("bad", more=', "args": {"Concrete Inputs": ["it"s", "[4, 256]"], "Input Dims": [[4, 256], []]}')
    took_s = []
    for count in (2_000, 20_000):
        file.write_text(listed(bad if i % 10 == 5 else good for i in range(count)))
        parsed = parsed_from(file)
        assert parsed.dropped == count // 10
        assert events_in(parsed) == count - parsed.dropped
        took_s.append(least_s(lambda: parsed_from(file), 2))
    assert took_s[1] < 40 * took_s[0], "ten times the events, and not a hundred times the work"


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
        monkeypatch.setattr(module, "LONGEST_EVENT_BYTES", 5000)
    file.write_text(
        listed([op("a"), op("x" * 20_000), op("b"), op("c", more=', "args": {"x": "' + "y" * 30_000 + '"}'), op("d")])
    )
    parsed = parsed_from(file, 256)
    assert [row["name"] for row in rows_of(parsed)] == ["a", "b", "d"]
    assert parsed.dropped == 2 and not parsed.truncated


def test_a_header_without_an_end_is_no_trace(file, monkeypatch):
    monkeypatch.setattr(stream, "LONGEST_EVENT_BYTES", 5000)
    file.write_text('{"schemaVersion": [' + "1, " * 5000)
    with pytest.raises(UnreadableTrace):
        parsed_from(file, 64)
    file.write_text('{"schemaVersion": [1, 2')
    with pytest.raises(NeedMore):
        parsed_from(file, 64)
    file.write_text('{"results": []}')
    with pytest.raises(UnreadableTrace, match="traceEvents"):
        parsed_from(file, 64)


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


def test_progress_is_reported_by_the_calling_thread(file):
    file.write_bytes(kineto(6_000))
    size, result = file.stat().st_size, []
    stream.read_stream(file, size, lambda done, of: result.append((done, of, threading.get_ident())), 1 << 12)
    assert result and {thread for _, _, thread in result} == {threading.get_ident()}
    assert all(0 <= done <= of == size for done, of, _ in result)


def test_a_key_press_ends_it(file):
    file.write_bytes(kineto(6_000))

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


@pytest.mark.slow
def test_what_looks_like_events_in_events_without_end_is_not_read_over_and_over():
    def scanned(count: int) -> blocks.Block:
        block = blocks.Block(make_plan())
        block.put(b'{"ph": [{}, ' * count)
        block.scan(final=True)
        return block

    assert scanned(60_000).sheet["odd"] > 40_000
    assert times_as_long(lambda: scanned(60_000), lambda: scanned(6_000), 2) < 40, "linear, and not quadratic"


def test_a_second_document_behind_the_first_is_not_read(tmp_path: Path):
    document = json.dumps({"traceEvents": [json.loads(op(name=name)) for name in "ab"], "traceName": "x"})
    once, twice = tmp_path / "once.json", tmp_path / "twice.json"
    once.write_text(document)
    twice.write_text(document + document)
    assert len(read_trace(once).ops) == len(read_trace(twice).ops) == 2
