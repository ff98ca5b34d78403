"""Whatever file it is given, the command prints a report or one line that says what is wrong, and never a traceback.

Every input is a file on disk and goes through the command's own `main` in this process, as a new process would show
nothing more; `test_bad_files` also runs each way to end in a separate process.
"""

from __future__ import annotations

import functools
import gzip
import json
import os
import random
import re
import tempfile
from collections.abc import Callable
from dataclasses import astuple, dataclass, replace
from pathlib import Path

import pytest
from helpers.bad_input import NAMES, Result, driven, good, is_json, is_refused, is_report
from helpers.damaged import alone, crowd, cut, event, flipped, named, packed, text, with_events, zipped
from helpers.once import once
from helpers.quick import few

SLOWER = 200
"""CPU time that any of these inputs may take, as a multiple of that of a small sound file. The slowest takes 17 times
as much.

Far above what any of these takes (a second or two), far below what a loop that is quadratic in the file does.
"""


# -- the inputs: what a person may give by mistake, and what a broken or hostile recording may hold


@dataclass(frozen=True)
class Case:
    data: Callable[[], bytes | str]
    ends: str
    """refused: one line, no report · unusable: a report that says why, exit 2 · report: exit 0"""
    says: str = ""
    """Regular expression that the refusal, or one of the issues (`id: message`), matches."""
    modes: tuple[str, ...] = ("text", "json")


OTHER_FILES = {
    "empty": Case(lambda: "", "refused", "empty"),
    "png": Case(lambda: b"\x89PNG\r\n\x1a\n" + bytes(100), "refused", "PNG"),
    "jpeg": Case(lambda: b"\xff\xd8\xff\xe0" + bytes(100), "refused", "JPEG"),
    "pdf": Case(lambda: "%PDF-1.7\n", "refused", "PDF"),
    "html": Case(lambda: "\n<!DOCTYPE html><html><body>Sign in</body></html>", "refused", "web page"),
    "zip": Case(zipped, "refused", "zip archive"),
    "sqlite": Case(lambda: b"SQLite format 3\0" + bytes(500), "refused", "SQLite"),
    "zstd": Case(lambda: b"\x28\xb5\x2f\xfd" + bytes(50), "refused", "zstd"),
    "random bytes": Case(lambda: random.Random(1).randbytes(100_000), "refused", "not a profiler trace"),
    "text": Case(lambda: "step 1 loss 2.3\nstep 2 loss 2.2\n", "refused", "not a profiler trace"),
    "spaces": Case(lambda: " " * 1_000_000, "refused"),
    "zeros": Case(lambda: bytes(1_000_000), "refused"),
    "an object": Case(lambda: '{"a": 1, "b": [2]}', "refused", "traceEvents"),
    "an empty object": Case(lambda: "{}", "refused", "traceEvents"),
    "a list of numbers": Case(lambda: "[1, 2]", "refused", "not a profiler trace"),
    "a list of objects": Case(lambda: '[{"id": 1, "title": "a"}, {"id": 2}]', "refused", "not a profiler trace"),
    "a string": Case(lambda: '"x"', "refused", "not a profiler trace"),
    "a number": Case(lambda: "3", "refused", "not a profiler trace"),
    "null": Case(lambda: "null", "refused", "not a profiler trace"),
    "events are a number": Case(lambda: '{"traceEvents": 5}', "refused", "not a list"),
    "events are an object": Case(lambda: '{"traceEvents": {}}', "refused", "not a list"),
    "events are none": Case(lambda: '{"traceEvents": []}', "unusable", "no_events"),
    "events are no objects": Case(lambda: '{"traceEvents": [1, "x", null, [2]]}', "refused", "nothing in its list"),
    "lists without end": Case(lambda: "[" * 100_000, "unusable", "truncated"),
    "lists without end in events": Case(lambda: '{"traceEvents": ' + "[" * 100_000, "unusable", "truncated"),
    "objects without end": Case(lambda: '{"a": ' * 100_000, "refused", "ends before its first event"),
}

BROKEN = {
    "70 % of a file": Case(lambda: cut(text(), 0.7), "report", "truncated"),
    "70 %, then zeros": Case(lambda: cut(text(), 0.7) + bytes(100_000), "report", "truncated"),
    "cut in the header": Case(lambda: cut(text(), 0.002), "refused", "ends before its first event"),
    "cut after an event": Case(lambda: text()[: text().rindex('},\n{"ph"') + 1], "report", "truncated"),
    "cut after an event, then zeros": Case(
        lambda: text()[: text().rindex('},\n{"ph"') + 1].encode() + bytes(200_000), "report", "truncated"
    ),
    "cut in the next event": Case(lambda: text()[: text().rindex('},\n{"ph"') + 4], "report", "truncated"),
    "60 % of a gzip": Case(lambda: cut(packed(), 0.6), "report", "truncated.*gzip data ends early"),
    "gzip of garbage": Case(lambda: gzip.compress(random.Random(1).randbytes(5000)), "refused"),
    "garbage as gzip": Case(lambda: b"\x1f\x8b" + random.Random(1).randbytes(5000), "refused", "damaged"),
    "gzip of nothing": Case(lambda: gzip.compress(b""), "refused", "ends before its first event"),
    "a gzip's header": Case(lambda: packed()[:10], "refused", "gzip data ends early"),
    "a gzip's magic": Case(lambda: packed()[:2], "refused", "gzip data ends early"),
    "gzip with a wrong byte": Case(lambda: flipped(packed(), 0.9), "report", "truncated.*gzip data is damaged"),
    "gzip with a wrong checksum": Case(lambda: flipped(packed(), 0.99999), "report", "gzip data is damaged"),
    "gzip with garbage behind": Case(lambda: packed() + b"garbage" * 1000, "report"),
    "gzip padded with zeros": Case(lambda: packed() + bytes(1_000_000), "report"),
    "gzip of 5,000 empty members": Case(lambda: gzip.compress(b"") * 5000 + packed(), "report"),
    "objects among numbers": Case(
        lambda: text().replace('"traceEvents": [\n', '"traceEvents": [\n7, null, "x",\n'), "report", "unreadable_events"
    ),
    "trailing comma": Case(lambda: text().replace("}}\n]", "}},\n]"), "report"),
    "control characters": Case(lambda: text().replace("gemm", "ge\x01\tmm"), "report", "repaired_events"),
    "invalid UTF-8 in names": Case(
        lambda: text().encode().replace(b"gemm", b"ge\xff\xfemm"), "report", "repaired_events"
    ),
    "invalid UTF-8 in args": Case(lambda: text().encode().replace(b"[[8, 8]]", b'"\xff"'), "report", "repaired_events"),
    "invalid UTF-8 in threads": Case(
        lambda: text().encode().replace(b'"tid": 100', b'"tid": "\xff"'), "report", "repaired_events"
    ),
    "lone surrogates": Case(lambda: text().replace("gemm", r"\ud800ge\udc00mm"), "report", "repaired_events"),
    "lone surrogates in threads": Case(lambda: text().replace('"tid": 100', r'"tid": "\udc00"'), "report"),
    "unescaped quotes": Case(lambda: text().replace("gemm", 'ge"mm'), "report", "repaired_events"),
    "backslashes": Case(lambda: text().replace("gemm", r"C:\tmp\gemm"), "report", "repaired_events"),
    "a byte order mark": Case(lambda: b"\xef\xbb\xbf" + text().encode(), "report"),
    "deep args": Case(
        lambda: with_events(event(args=', "deep": ' + "[" * 50_000 + "]" * 50_000)), "report", "unreadable_events"
    ),
    "header of other types": Case(
        lambda: (
            text()
            .replace('"schemaVersion": 1', '"schemaVersion": [], "distributedInfo": 3, "trace_id": null')
            .replace('"deviceProperties": [', '"deviceProperties": 5, "was": [')
        ),
        "report",
    ),
    "header with endless numbers": Case(
        lambda: text().replace('"schemaVersion": 1', f'"cuda_runtime_version": {"9" * 5000}, "a": NaN, "b": 1e999'),
        "report",
    ),
    "devices without a name": Case(
        lambda: text().replace('"deviceProperties": [', '"deviceProperties": [{}, {"id": null, "name": 3}, 7, '),
        "report",
    ),
}

# Texts that take a careless regular expression hours.
SLOW = {
    "quotes, all escaped": Case(lambda: '{"traceEvents":[{"name":"' + '\\"' * 100_000, "unusable", "truncated"),
    "quotes": Case(lambda: '{"traceEvents":[{"name":"' + '"a' * 70_000, "unusable", "truncated"),
    "backslashes without end": Case(lambda: '{"traceEvents":[{"name":"' + "\\" * 150_001, "unusable", "truncated"),
    "a list that is something else, cut": Case(
        lambda: "[" + '{"title": "t", "name": "x", "value": 1},' * 10_000, "refused", "nothing in its list"
    ),
    "spaces behind an event": Case(lambda: cut(text(), 0.5) + b'"}' + b" " * 150_000 + b"x", "report", "truncated"),
    "closing braces": Case(lambda: '{"traceEvents":[' + "}" * 150_000, "refused", "nothing in its list"),
    "a string without end": Case(lambda: '{"traceEvents":["' + "x" * 1_000_000, "unusable", "truncated"),
    "nan without end": Case(lambda: '{"traceEvents":[{"name":' + "nan," * 30_000, "unusable", "truncated"),
    "keys without end": Case(
        lambda: "{" + ",".join(f'"k{i}":1' for i in range(30_000)), "refused", "ends before its first event"
    ),
}

HUGE = "12345678901234567890"
UNREADABLE_TIMES = (
    HUGE,
    "9" * 5000,
    "NaN",
    "Infinity",
    "-Infinity",
    "1e400",
    "-1e400",
    "1e18",
    "9.3e15",
    "-9.3e15",
    "null",
    '"abc"',
    '""',
    "true",
    "[]",
    "{}",
    "0x10",
    "1_000",
)
READABLE_TIMES = ('"12.5"', "1E3", "1e-400", "0." + "0" * 300 + "1", "-0", "-5", "9e10", "-9e10", "1.0005")
IMPOSSIBLE_TIMES = ("4.7e15", "-4.7e15", "9.2e15", "-9.2e15")

ONE_TIME = {
    **{
        f"a time of {t[:25]}": Case(lambda t=t: with_events(event(ts=t)), "report", "unreadable")
        for t in UNREADABLE_TIMES
    },
    **{
        f"a duration of {t[:25]}": Case(lambda t=t: with_events(event("kernel", dur=t)), "report", "unreadable_events")
        for t in UNREADABLE_TIMES
    },
    **{f"a time of {t[:25]}": Case(lambda t=t: with_events(event("kernel", ts=t)), "report") for t in READABLE_TIMES},
    # A day after all other events, so that the window has hardly any GPU work.
    **{f"a time of {t}": Case(lambda t=t: with_events(event("kernel", ts=t)), "unusable") for t in ("9e10", "-9e10")},
    **{f"a duration of {t[:25]}": Case(lambda t=t: with_events(event(dur=t)), "report") for t in READABLE_TIMES},
}
VALUES = {
    # The reader drops or reads the one event; the text of the rest is that of "no keys at all".
    **{name: replace(case, modes=("json",)) for name, case in ONE_TIME.items()},
    **{
        f"a time of {t}": Case(lambda t=t: with_events(event("kernel", ts=t)), "unusable", "impossible_times")
        for t in IMPOSSIBLE_TIMES
    },
    **{
        f"{what} of {HUGE}": Case(lambda key=key, what=what: with_events(event("kernel", **{key: HUGE})), "report")
        for key, what in (
            ("correlation", "a correlation"),
            ("External id", "an External id"),
            ("pid", "a pid"),
            ("tid", "a tid"),
            ("device", "a device"),
            ("stream", "a stream"),
            ("bytes", "a size"),
        )
    },
    "an occupancy of 1e300": Case(
        lambda: with_events(event("kernel", args=', "est. achieved occupancy %": 1e300')), "report"
    ),
    "a grid of other numbers": Case(
        lambda: with_events(
            event("kernel", args=', "grid": [1, 2, 3e9], "block": [1, 2, 3, 4], "shared memory": -1.5')
        ),
        "report",
    ),
    "a pid of 5,000 digits": Case(lambda: with_events(event(pid="9" * 5000)), "report"),
    "ids that are text": Case(
        lambda: with_events(
            event("ac2g", ph='"s"', extra=', "id": "0x1f"'), event("ac2g", ph='"f"', extra=', "id": "x"')
        ),
        "report",
    ),
    "290 years": Case(lambda: alone(event(ts="-4.5e15"), event("kernel", ts="4.5e15")), "unusable", "impossible_times"),
    "two days": Case(lambda: alone(event(ts="0"), event("kernel", ts="172800e6")), "unusable", "impossible_times"),
    "one kernel of 145 years": Case(lambda: alone(event("kernel", dur="4.6e15")), "unusable", "impossible_times"),
    "kernels of 500 years in all": Case(
        lambda: with_events(*(event("kernel", ts=str(i), dur="3.1e15", stream=str(i)) for i in range(5))),
        "unusable",
        "impossible_times",
    ),
    "negative durations only": Case(lambda: alone(event("kernel", dur="-10")), "unusable", "no_events"),
    "zero durations only": Case(lambda: alone(*(event(ts="5", dur="0") for _ in range(9))), "unusable", "no_events"),
    "10,000 events without duration": Case(
        lambda: alone(*(event(ts=str(i), dur="0") for i in range(10_000)), event("kernel")), "unusable"
    ),
    "10,000 events at one time": Case(
        lambda: alone(*(event(c, ts="5") for c in ("cpu_op", "kernel") for _ in range(5_000))), "report"
    ),
    "10,000 events of one correlation": Case(
        lambda: alone(*(event(c, ts=str(i)) for c in ("cuda_runtime", "kernel") for i in range(5_000))), "report"
    ),
    "devices -1 and 10^9": Case(
        lambda: with_events(*(event("kernel", device=d) for d in ("-1", "1000000000", "-2147483648", "2147483648"))),
        "report",
    ),
    "optimizer steps at one time": Case(
        lambda: alone(event("kernel"), *(event("user_annotation", name='"Optimizer.step#SGD.step"') for _ in range(3))),
        "report",
    ),
    "steps without duration": Case(
        lambda: re.sub(r'("ProfilerStep.*?"dur": )\d+', r"\g<1>0", text()), "report", "no_steps"
    ),
    "args of other types": Case(
        lambda: with_events(
            *(re.sub(r'"args": .*', f'"args": {args}}}', event("kernel")) for args in ("[1]", '"x"', "null", "3"))
        ),
        "report",
    ),
    "all keys of other types": Case(
        lambda: with_events(
            '{"ph": [["X"]], "cat": {"a": 1}, "name": null, "pid": {}, "tid": [1], "ts": 5, "dur": 1, "args": 1}'
        ),
        "report",
    ),
    "no keys at all": Case(lambda: with_events("{}", '{"ph": "X"}'), "report", "unreadable_events"),
    "thousands of step names": Case(
        lambda: alone(
            event("kernel"),
            *(
                event(
                    "user_annotation", name=json.dumps("step " + "".join(chr(97 + int(c)) for c in str(i))), ts=str(i)
                )
                for i in range(1000)
            ),
        ),
        "unusable",
    ),
}

CROWDS = {
    "500 threads": Case(lambda: crowd(500, tid=True), "report", modes=("json",)),
    "500 streams": Case(lambda: crowd(500, stream=True), "report", modes=("json",)),
    "500 devices": Case(lambda: crowd(500, device=True), "report", modes=("text",)),
    "1,000 processes and threads": Case(lambda: crowd(1000, tid=True, pid=True), "report", modes=("text",)),
}

NAMED = {
    **{f"name: {what}": Case(lambda n=name: named(json.dumps(n)), "report") for what, name in NAMES.items()},
    **{
        f"name in UTF-8: {what}": Case(lambda n=name: named(json.dumps(n, ensure_ascii=False)), "report")
        for what, name in NAMES.items()
        if not name.isascii()  # else the text is the same
    },
    **{
        f"name that is {value}": Case(lambda v=value: named(v), "report")
        for value in ("5", "null", '[1, {"a": 2}]', "{}")
    },
}

SLOW = {name: replace(case, modes=("text",) if case.ends == "refused" else ("json",)) for name, case in SLOW.items()}
BATCHES = {
    "other files": OTHER_FILES,
    "broken": BROKEN,
    "slow": SLOW,
    "some values": dict([*VALUES.items()][::5]),
    "values": VALUES,
    "crowds": CROWDS,
    "names": NAMED,
}
SLOW_BATCHES = ("values", "crowds")


# -- the runs


@pytest.fixture(scope="module")
def answers(tmp_path_factory) -> Callable[[str], dict[str, Result]]:
    """Runs the command on a batch of inputs once: "name mode" → what came out."""

    def run(batch: str, folder: Path) -> None:
        todo = []
        for number, (name, case) in enumerate(BATCHES[batch].items()):
            data = case.data()
            path = folder / f"{number}.json"
            path.write_bytes(data if isinstance(data, bytes) else data.encode())
            todo.append((name, os.fsencode(path), case.modes))
        found = driven(todo)
        (folder / "answers").write_text(json.dumps({key: astuple(result) for key, result in found.items()}))

    def answers(batch: str) -> dict[str, Result]:
        folder = once(tmp_path_factory, f"bad input, {batch}", lambda folder: run(batch, folder))
        return {key: Result(*result) for key, result in json.loads((folder / "answers").read_text()).items()}

    return answers


@pytest.mark.parametrize("batch", few(BATCHES, set(BATCHES) - set(SLOW_BATCHES)))
def test_every_input_is_answered(batch: str, answers):
    results = answers(batch)
    wrong = {}
    for name, case in BATCHES[batch].items():
        try:
            is_answered(case, {mode: results[f"{name} {mode}"] for mode in case.modes})
        except (Exception, pytest.fail.Exception) as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    assert not wrong, "\n\n".join(f"{name}: {what}" for name, what in wrong.items())


def is_answered(case: Case, results: dict[str, Result]) -> None:
    code = 0 if case.ends == "report" else 2
    for mode, result in results.items():
        assert result.seconds < SLOWER * usual_s()
        if case.ends == "refused":
            is_refused(result)
            assert re.search(case.says, result.stderr)
        elif mode == "text":
            is_report(result, code)
        else:
            found = is_json(result, code)
            issues = [f"{issue['id']}: {issue['message']}" for issue in found["quality"]["issues"]]
            assert any(re.search(case.says, issue) for issue in issues) or not case.says, issues
            assert (found["quality"]["status"] == "unusable") == (case.ends == "unusable")
            assert found["verdict"]["bound"] is None or case.ends == "report"


@functools.cache
def usual_s() -> float:
    """CPU time for a small sound file, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = good().write(Path(folder) / "trace.json")
        return min(driven([("sound", os.fsencode(path), ("text",))])["sound text"].seconds for _ in range(3))


def test_names_are_shown_as_they_are(answers):
    results = answers("names")
    for name in ("markup", "closing markup", "abi tag", "emoji code", "formats", "script"):
        assert NAMES[name] in results[f"name: {name} text"].stdout
        assert NAMES[name] in json.dumps(json.loads(results[f"name: {name} json"].stdout), ensure_ascii=False)


def test_characters_that_act_are_shown_escaped(answers):
    shown = {
        "colour": r"\x1b[31mred",
        "bidi": r"\u202eevil\u2066",
        "c1": r"\x9b31mred",
        "zero byte": r"a\x00b",
    }
    results = answers("names")
    for name, escaped in shown.items():
        for how in ("name", "name in UTF-8") if not NAMES[name].isascii() else ("name",):
            assert escaped in results[f"{how}: {name} text"].stdout


def test_what_is_whole_is_kept(answers):
    """Everything in a damaged file that was not hit is used."""
    cases = {name: case for name, case in BROKEN.items() if case.ends == "report"}
    results = answers("broken")
    kept = {name: json.loads(results[f"{name} json"].stdout)["source"]["events"] for name in cases}
    sound = good().text().count('"ph": "X"')
    mended = {n for n, case in BROKEN.items() if case.says == "repaired_events"}
    assert len(mended) >= 7
    for name in (*mended, "lone surrogates in threads", "trailing comma", "header of other types"):
        assert kept[name] == sound, name
    assert kept["70 % of a file"] >= 0.65 * sound
    for name in ("cut in the next event", "cut after an event", "cut after an event, then zeros"):
        assert kept[name] == sound - 1, name
    packed_events = good(300).text().count('"ph": "X"')
    assert kept["60 % of a gzip"] > 0.5 * packed_events
    assert kept["gzip with a wrong byte"] > 0.8 * packed_events
    assert kept["gzip with a wrong checksum"] > 0.9 * packed_events
    assert kept["gzip with garbage behind"] == kept["gzip padded with zeros"] == packed_events
