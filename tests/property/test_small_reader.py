"""The small reader keeps every event of every recording, and every number of it, exactly."""

from __future__ import annotations

import json
from collections import Counter
from decimal import Decimal

import pytest
from helpers import oracle
from helpers.traces import WHOLE, resolve, shared_trace
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.tracefile.kineto.layout import CATEGORIES, OTHER, TABLES
from gpuprof.tracefile.kineto.number import nanoseconds
from gpuprof.tracefile.kineto.reader import read_kineto
from gpuprof.tracefile.model import ABSENT, NO_TEXT, Trace

LIMIT = 1 << 28


def read(path) -> Trace:
    return read_kineto(path, path.stat().st_size, small_bytes=LIMIT)


@pytest.mark.parametrize("trace", WHOLE)
def test_nothing_is_dropped_or_changed(trace):
    path = resolve(trace)
    got, events = read(path), oracle.load(path)
    assert got.reading.events == len(events)
    assert spans(got) == wanted_spans(events)
    check_gpu_arguments(got, events)
    check_op_arguments(got, events)


def wanted_spans(events) -> Counter:
    """(table, name, process, thread, start, end) of every span in the file, with how often it occurs."""
    return Counter(
        (table_of(e), e["name"], str(e["pid"]), str(e["tid"]), e["ts"], e["ts"] + e.get("dur", 0))
        for e in events
        if e["ph"] == "X" and table_of(e) != "syncs"
    )


def table_of(event) -> str:
    return TABLES[CATEGORIES.get(event.get("cat", ""), (OTHER, 0))[0]]


def spans(trace: Trace) -> Counter:
    found: Counter = Counter()
    for table in ("ops", "calls", "gpu", "frames", "other"):
        t = getattr(trace, table)
        for name, thread, start, end in zip(
            *(c.tolist() for c in (t.name, t.thread, t.start_ns, t.end_ns)), strict=True
        ):
            track = trace.threads[thread]
            found[table, trace.strings[name], track.process, track.thread, start, end] += 1
    # Instants lie in `other` too, and are no spans: they have no duration in the file.
    instants = Counter({k: n for k, n in found.items() if k[0] == "other" and k[4] == k[5]})
    return found - instants


def check_gpu_arguments(trace: Trace, events) -> None:
    gpu = [e for e in events if e["ph"] == "X" and e.get("cat", "") in oracle.DEVICE_CATEGORIES]
    assert len(gpu) == len(trace.gpu)
    for i, e in enumerate(gpu):
        args = e.get("args") or {}
        assert trace.gpu.device[i] == args.get("device", e["pid"])
        assert trace.gpu.correlation[i] == args.get("correlation", ABSENT)
        assert trace.gpu.bytes[i] == args.get("bytes", ABSENT)
        grid = args.get("grid")
        if isinstance(grid, list):
            assert [trace.gpu.grid_x[i], trace.gpu.grid_y[i], trace.gpu.grid_z[i]] == grid


def check_op_arguments(trace: Trace, events) -> None:
    ops = [e for e in events if e["ph"] == "X" and table_of(e) == "ops"]
    assert len(ops) == len(trace.ops)
    for i, e in enumerate(ops):
        args = e.get("args") or {}
        dims = trace.text(int(trace.ops.dims[i]))
        assert (None if dims is None else json.loads(dims)) == args.get("Input Dims")
        assert trace.ops.sequence[i] == args.get("Sequence number", ABSENT)
        assert trace.ops.forward_thread[i] == args.get("Fwd thread id", ABSENT)
        assert (trace.ops.extra[i] != NO_TEXT) == ("Collective name" in args)


@pytest.mark.parametrize("name", ["broken_truncated_json_70pct", "broken_truncated_gzip_60pct"])
def test_a_cut_file_is_read_as_far_as_it_goes(name):
    path = shared_trace(f"public/{name}")
    text = oracle.inflate_what_is_there(path)
    whole = text[: text.rindex(b"\n  },") + 4] + b"]}"
    wanted = oracle.parse(whole)
    got = read(path)
    assert got.reading.truncated
    assert got.reading.events == len(wanted)


@given(st.decimals(min_value=-(10**15), max_value=10**15, places=3, allow_nan=False))
def test_three_decimals_are_exact(value):
    assert nanoseconds(f"{value:f}".encode()) == (int(value * 1000), False)


@given(st.integers(-(10**15), 10**15), st.text("0123456789", min_size=1, max_size=12))
def test_more_decimals_round_to_the_nearest(whole, fraction):
    text = f"{whole}.{fraction}"
    value, rounded = nanoseconds(text.encode()) or (None, None)
    exact = Decimal(text) * 1000
    assert value == oracle.ns(text)
    assert rounded == (exact != value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1.5e3", 1_500_000),
        ('"12.25"', 12_250),
        ("9223372036854775.806", 9223372036854775806),
        ("9223372036854776", None),
        ("1e400", None),
        ("NaN", None),
        ("null", None),
        ("", None),
    ],
)
def test_odd_numbers(text, value):
    result = nanoseconds(text.encode())
    assert (result and result[0]) == value
