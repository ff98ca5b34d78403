"""Whatever is done to a real recording, gpuprof answers with a diagnosis whose numbers add up, or with one sentence.

Slices of the committed recordings are damaged as events (dropped, doubled, wrong numbers) and as bytes (flipped,
cut, pasted). Every case has a seed and is the same in every run; a failure names it. GPUPROF_FUZZ_CASES=100 makes more
than 10,000 mutations of it: 6,800 diagnosed by the API, 3,200 read by both readers, 850 diagnosed by the command line,
34 of them in processes of their own.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from pathlib import Path

import pytest
from helpers.budgets import times
from helpers.command import gpuprof_command, in_process, one_line
from helpers.diagnosis_invariants import adds_up, numbers
from helpers.kineto_documents import cut_at_separators, events_in
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT
from helpers.quick import few

import gpuprof
from gpuprof import Diagnosis, GpuprofError
from gpuprof.diagnosis.written.diagnosis_json import dumps
from gpuprof.tracefile.kineto.reader import read_kineto
from gpuprof.tracefile.kineto.source import GZIP_MAGIC

RECORDINGS = sorted([*(ROOT / "tests" / "data").glob("*.json.gz"), ROOT / "gpuprof" / "data" / "demo.json.gz"])
EACH = few([pytest.param(i, id=p.name.split(".")[0]) for i, p in enumerate(RECORDINGS)], ["roofline_pair"])
"""The numbers of the recordings."""
HOST = {"cpu_op", "user_annotation", "cuda_runtime", "cuda_driver", "python_function", "cpu_instant_event"}
DEVICE = {"kernel", "gpu_memcpy", "gpu_memset", "cuda_sync"}
HOST_EVENTS = 90
CASES = int(os.environ.get("GPUPROF_FUZZ_CASES", times(2)))
"""Number of cases for each kind of damage to each recording."""
PROCESSES = frozenset({10, 30}) if CASES >= 50 else frozenset()
"""The cases of a kind that get separate processes, which show nothing more about the file than the others."""

Events = list[dict]


# -- what must hold


@contextmanager
def naming_the_case(case: int) -> Iterator[None]:
    """Names the case that fails."""
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error


def diagnose(path: Path, data: bytes) -> Diagnosis | None:
    """The checked diagnosis of a document; None if gpuprof says in one line that it cannot diagnose it."""
    path.write_bytes(data)
    try:
        diagnosis = gpuprof.diagnose(path)
    except GpuprofError as error:
        assert "\n" not in str(error)
        return None
    adds_up(diagnosis)
    failed = [issue.message for issue in diagnosis.quality.issues if issue.id == "finding_failed"]
    assert not failed
    return diagnosis


# -- slices of real recordings


@cache
def slices() -> list[TraceBuilder]:
    """Two steps of some hundred events from each recording, times in ns."""
    found = []
    for path in RECORDINGS:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            document = json.load(file, parse_float=Decimal, strict=False)
        events = document.pop("traceEvents")
        for event in events:
            for key in ("ts", "dur"):
                if key in event:
                    event[key] = int(event[key] * 1000)
        text = {k: v for k, v in document.items() if not isinstance(v, Decimal)}
        found.append(two_steps(events, json.loads(json.dumps(text, default=float))))
    return found


def two_steps(events: Events, top_level: dict) -> TraceBuilder:
    """A stretch from the middle of the recording, twice, each time inside a ProfilerStep."""
    host = sorted((e for e in events if e.get("cat") in HOST), key=lambda e: e["ts"])
    middle = len(host) // 2
    chosen = [e for e in host[middle : middle + HOST_EVENTS] if not e["name"].startswith("ProfilerStep")]
    low = chosen[0]["ts"]
    launched = {e["args"]["correlation"] for e in chosen if "correlation" in e.get("args", {})}
    chosen += [e for e in events if e.get("cat") in DEVICE and e["args"].get("correlation") in launched]
    starts = {(e["pid"], e["tid"], e["ts"]) for e in chosen}
    arrows = [e for e in events if e.get("ph") in ("s", "f") and (e["pid"], e["tid"], e["ts"]) in starts]
    length = max(e["ts"] + e.get("dur", 0) for e in chosen) + 20_000 - low
    builder = TraceBuilder(**top_level)
    builder.events = [e for e in events if e["ph"] == "M"][:4]
    for number in range(2):
        shift = number * length
        builder.annotation(f"ProfilerStep#{number}", low + shift, low + shift + length, tid=chosen[0]["tid"])
        builder.events[-1]["pid"] = chosen[0]["pid"]
        for event in (*chosen, *arrows):
            builder.events.append(moved(event, shift, number))
    return builder


def moved(event: dict, shift: int, number: int) -> dict:
    """A copy of an event, later and with new ids."""
    event = event | {"ts": event["ts"] + shift}
    if "id" in event:
        event["id"] += number * 10**9
    args = event.get("args")
    if args:
        ids = ("correlation", "External id", "Sequence number")
        args = args | {key: args[key] + number * 10**8 for key in ids if args.get(key, 0) > 0}
        event["args"] = json.loads(json.dumps(args, default=float))
    return event


def document(builder: TraceBuilder, events: Events | None = None) -> bytes:
    """The text of a trace, with other events in it."""
    changed = TraceBuilder()
    changed.top_level = builder.top_level
    changed.events = builder.events if events is None else events
    return changed.text().encode()


def copies(events: Events) -> Events:
    return [event | ({"args": dict(event["args"])} if "args" in event else {}) for event in events]


# -- damage to events


def drop_some(events: Events, rng: random.Random) -> Events:
    share = rng.choice([0.02, 0.2, 0.6, 0.95])
    return [e for e in events if rng.random() > share]


def drop_category(events: Events, rng: random.Random) -> Events:
    categories = sorted({str(e.get("cat")) for e in events})
    gone = set(rng.sample(categories, rng.randint(1, min(3, len(categories)))))
    return [e for e in events if str(e.get("cat")) not in gone]


def double_some(events: Events, rng: random.Random) -> Events:
    at = rng.randrange(len(events))
    chunk = events[at : at + rng.choice([1, 10, 100, 1000])]
    to = rng.randrange(len(events))
    return events[:to] + chunk * rng.randint(1, 3) + events[to:]


def swap_numbers(events: Events, rng: random.Random) -> Events:
    for _ in range(rng.choice([1, 10, 100])):
        a, b = rng.choice(events), rng.choice(events)
        key = rng.choice(["ts", "dur", "tid", "pid", "id"])
        if key in a and key in b:
            a[key], b[key] = b[key], a[key]
        key = rng.choice(["correlation", "External id", "stream", "device", "Fwd thread id", "Sequence number"])
        if key in a.get("args", {}) and key in b.get("args", {}):
            a["args"][key], b["args"][key] = b["args"][key], a["args"][key]
    return events


def wrong_times(events: Events, rng: random.Random) -> Events:
    odd = [0, -1, 1, 10**3, -(10**9), 2**53, 10**15, 2**62 - 1, 2**62, 2**63 - 1, -(2**63), 10**22]
    for event in rng.sample(events, rng.choice([1, 5, len(events) // 2])):
        key = rng.choice(["ts", "dur"])
        if key in event:
            near = event[key] + rng.choice([-1, 1]) * rng.choice([1, 10**3, 10**6])
            event[key] = rng.choice([near, -event[key], rng.choice(odd)])
    return events


def backwards(events: Events, rng: random.Random) -> Events:
    """Events that end before they start, or as they do."""
    category = rng.choice(["kernel", "cpu_op", "cuda_runtime", None])
    share, factor = rng.choice([0.01, 0.1, 1]), rng.choice([-1, -1000, 0])
    for event in events:
        if "dur" in event and category in (None, event["cat"]):
            event["dur"] *= factor if rng.random() < share else 1
    return events


def wrong_clock(events: Events, rng: random.Random) -> Events:
    """The clock of one category runs ahead or behind, or ticks in whole milliseconds."""
    category = rng.choice(sorted({str(e.get("cat")) for e in events if "ts" in e}))
    shift, tick = rng.choice([10**3, -(10**5), 10**7, -(10**12)]), rng.choice([1, 1, 10**6])
    for event in events:
        if str(event.get("cat")) == category and "ts" in event:
            event["ts"] = (event["ts"] + shift) // tick * tick
    return events


def wrong_values(events: Events, rng: random.Random) -> Events:
    odd = [None, True, "", "x", -1, 0, 7, 2**31, -(2**31), 2**63, 10**20, 1.5, 1e300, [], [1], {}, {"a": [None]}]
    for event in rng.sample(events, rng.choice([1, 5, len(events) // 4])):
        inner = rng.random() < 0.6 and event.get("args")
        target = event["args"] if inner else event
        key = rng.choice(sorted(set(target) - {"ts", "dur"}) or ["args"])
        target[key] = rng.choice(odd)
        if rng.random() < 0.2:
            del target[key]
    return events


def one_of_each(events: Events, rng: random.Random) -> Events:
    """Threads, streams, devices or correlations that are all the same, or all different."""
    key = rng.choice(["tid", "pid", "stream", "device", "correlation", "External id", "name", "ts"])
    same = rng.random() < 0.5
    for number, event in enumerate(events):
        target = event if key in event else event.get("args", {})
        if key in target:
            old = target[key]
            target[key] = (f"n{number}" if key == "name" else number) if not same else (old if key == "name" else 7)
    return events


# -- damage to bytes


def flip(text: bytes, rng: random.Random) -> bytes:
    data = bytearray(text)
    for _ in range(rng.choice([1, 3, 30, 300])):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def delete(text: bytes, rng: random.Random) -> bytes:
    for _ in range(rng.choice([1, 3, 10])):
        at = rng.randrange(len(text))
        text = text[:at] + text[at + rng.choice([1, 2, 20, 500, 5000]) :]
    return text


def paste(text: bytes, rng: random.Random) -> bytes:
    """A piece of the text (or other bytes) in another place."""
    for _ in range(rng.choice([1, 3, 10])):
        at, to = rng.randrange(len(text)), rng.randrange(len(text))
        length = rng.choice([1, 5, 200, 5000])
        piece = rng.choice([text[at : at + length], rng.randbytes(min(length, 50)), bytes(length), b'"', b"}", b"[{"])
        text = text[:to] + piece + text[to:]
    return text


def overwrite(text: bytes, rng: random.Random) -> bytes:
    """A block of zeros or of old text, as a file system leaves it after a crash."""
    length = rng.choice([1, 64, 512, 4096])
    at, old = rng.randrange(len(text)), rng.randrange(len(text))
    return text[:at] + rng.choice([bytes(length), text[old : old + length]]) + text[at + length :]


def truncate(text: bytes, rng: random.Random) -> bytes:
    return text[: rng.randrange(len(text))] + rng.choice([b"", b"", bytes(1000), b"\n" * 50, b"]}"])


def digits(text: bytes, rng: random.Random) -> bytes:
    data = bytearray(text)
    places = [i for i, c in enumerate(data) if c in b"0123456789"]
    for at in rng.sample(places, rng.choice([1, 20, 400])):
        data[at] = rng.choice(b"0123456789.-e ")
    return bytes(data)


def gzip_flip(text: bytes, rng: random.Random) -> bytes:
    return flip(gzip.compress(text, 1), rng)


def gzip_truncate(text: bytes, rng: random.Random) -> bytes:
    packed = gzip.compress(text, 1)
    return packed[: rng.randrange(2, len(packed))]


EVENT_DAMAGE: list[Callable[[Events, random.Random], Events]] = [
    drop_some, drop_category, double_some, swap_numbers, wrong_times, backwards, wrong_clock, wrong_values, one_of_each,
]  # fmt: skip
BYTE_DAMAGE: list[Callable[[bytes, random.Random], bytes]] = [
    flip, delete, paste, overwrite, truncate, digits, gzip_flip, gzip_truncate,
]  # fmt: skip


@pytest.mark.slow
def test_the_slices_are_sound(tmp_path: Path):
    for builder in slices():
        diagnosis = diagnose(tmp_path / "slice.json", document(builder))
        assert diagnosis is not None
        assert diagnosis.steps is not None
        assert diagnosis.steps.count == 2
        assert diagnosis.kernels is not None
        assert diagnosis.kernels.count >= 8
        assert diagnosis.kernels.unattributed_ns < diagnosis.kernels.total_ns
        assert diagnosis.verdict.summary


@pytest.mark.parametrize("damage", EVENT_DAMAGE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("recording", EACH)
def test_damaged_events(damage: Callable, recording: int, tmp_path: Path):
    builder = slices()[recording]
    for case in range(CASES):
        rng = random.Random(f"{damage.__name__} {recording} {case}")
        events = damage(copies(builder.events), rng)
        with naming_the_case(case):
            diagnose(tmp_path / "damaged.json", document(builder, events))


@pytest.mark.parametrize("damage", BYTE_DAMAGE, ids=lambda f: f.__name__)
@pytest.mark.parametrize("recording", EACH)
def test_damaged_bytes(damage: Callable, recording: int, tmp_path: Path):
    text = document(slices()[recording])
    for case in range(CASES):
        rng = random.Random(f"{damage.__name__} {recording} {case}")
        with naming_the_case(case):
            diagnose(tmp_path / "damaged.json", damage(text, rng))


@pytest.mark.parametrize("damage", BYTE_DAMAGE, ids=lambda f: f.__name__)
def test_both_readers_keep_the_same_events(damage: Callable, tmp_path: Path):
    path = tmp_path / "damaged.json"
    for recording, builder in enumerate(slices()):
        text = document(builder)
        for case in range(CASES):
            data = damage(text, random.Random(f"{damage.__name__} {recording} {case}"))
            path.write_bytes(data)
            with naming_the_case(case):
                streamed = kept(path, 0)
                assert kept(path, 1 << 40) == streamed, f"recording {recording}"
                if streamed and not data.startswith(GZIP_MAGIC):
                    assert streamed[0] >= events_in(cut_at_separators(data)), f"recording {recording}"


def test_keys_that_are_written_with_escapes_are_the_same_keys(tmp_path: Path):
    path, text = tmp_path / "escaped.json", document(next(iter(slices()))).decode()
    document_keys = sorted(set(re.findall(r'"([A-Za-z][\w .]*)":', text)))
    assert {"traceEvents", "name", "args"} <= set(document_keys)
    path.write_text(text)
    plain = kept(path, 0)
    for key in document_keys:
        path.write_text(text.replace(f'"{key}":', f'"\\u{ord(key[0]):04x}{key[1:]}":'))
        assert kept(path, 0) == plain == kept(path, 1 << 40), key


def kept(path: Path, small_bytes: int) -> tuple[int, ...] | None:
    """How many events a reader keeps, and of each kind; None if it cannot read."""
    try:
        trace = read_kineto(path, path.stat().st_size, small_bytes=small_bytes)
    except GpuprofError:
        return None
    tables = ("ops", "calls", "gpu", "frames", "syncs", "other")
    return trace.reading.events, *(len(getattr(trace, table)) for table in tables)


@pytest.mark.parametrize("damage", [*EVENT_DAMAGE, *BYTE_DAMAGE], ids=lambda f: f.__name__)
def test_the_command_line_says_what_the_api_says(damage: Callable, tmp_path: Path):
    """The same diagnosis as JSON and as text, or the same refusal in one line on stderr; exit code 0 or 2."""
    path = tmp_path / "damaged.json"
    for case in range(max(CASES // 2, 1)):
        recording = (case + len(damage.__name__)) % len(RECORDINGS)
        with naming_the_case(case):
            found = diagnose(path, damaged(damage, recording, case))
            answered(found, path, in_process)
            if case in PROCESSES:
                answered(found, path, gpuprof_command)


def damaged(damage: Callable, recording: int, case: int) -> bytes:
    """A slice of a recording with one kind of damage."""
    builder, rng = slices()[recording], random.Random(f"{damage.__name__} {recording} {case}")
    if damage in EVENT_DAMAGE:
        return document(builder, damage(copies(builder.events), rng))
    return damage(document(builder), rng)


def answered(found: Diagnosis | None, path: Path, command: Callable) -> None:
    """Checks that the command prints the same for a file as the API returns."""
    for option in ("--json", "-v"):
        done = command("diagnose", path, option)
        assert "Traceback" not in done.stderr and "please report it" not in done.stderr
        if found is None:
            assert (done.returncode, done.stdout) == (2, "")
            one_line(done.stderr)
        else:
            assert done.returncode == (2 if found.quality.status == "unusable" else 0)
            assert json.loads(done.stdout) == json.loads(dumps(found)) if option == "--json" else done.stdout.strip()


@pytest.mark.parametrize("recording", EACH)
def test_the_order_of_events_changes_nothing(recording: int, tmp_path: Path):
    builder = slices()[recording]
    expected = numbers(diagnosed(tmp_path, builder, builder.events))
    for case in range(CASES):
        events = list(builder.events)
        random.Random(case).shuffle(events)
        assert numbers(diagnosed(tmp_path, builder, events)) == expected, f"case {case}"
    assert numbers(diagnosed(tmp_path, builder, builder.events[::-1])) == expected


@pytest.mark.parametrize(
    "later_ns", few([pytest.param(n, id=str(n)) for n in (10**18, -(10**18), 123_456_789, 1)], ["123456789"])
)
def test_the_origin_of_the_clock_changes_nothing(later_ns: int, tmp_path: Path):
    for builder in slices():
        expected = numbers(diagnosed(tmp_path, builder, builder.events))
        events = [e | {"ts": e["ts"] + later_ns} if "ts" in e else e for e in builder.events]
        found = numbers(diagnosed(tmp_path, builder, events))
        moved_back = {key: str(int(time) - later_ns) for key, time in found["window"].items()}
        assert found | {"window": moved_back} == expected


def test_the_numbers_of_threads_change_nothing(tmp_path: Path):
    for builder in slices():
        expected = without_tracks(diagnosed(tmp_path, builder, builder.events))
        host = {e["pid"] for e in builder.events if e.get("cat") == "cpu_op"}
        events = [e | {"tid": f"thread {-e['tid']}"} if e["pid"] in host else e for e in builder.events]
        assert without_tracks(diagnosed(tmp_path, builder, events)) == expected


def without_tracks(diagnosis: Diagnosis) -> dict:
    """The numbers of a diagnosis without the names of threads in its evidence."""
    found = numbers(diagnosis)
    for finding in (*found["findings"], *found["worth_trying"]):
        for evidence in finding["evidence"]:
            evidence["where"] = None
    return found


def diagnosed(tmp_path: Path, builder: TraceBuilder, events: Events) -> Diagnosis:
    diagnosis = diagnose(tmp_path / "trace.json", document(builder, events))
    assert diagnosis is not None
    return diagnosis
