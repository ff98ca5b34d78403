"""`gpuprof export --perfetto --ranks`: several ranks in one file, on one clock."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path

import helpers.trace_event_rules as rules
import pytest
from helpers.command import one_line
from helpers.command import run as command
from helpers.rank_program import MS, RankProgram, run, write

PROGRAMS = [
    RankProgram(clock_ns=10**12),
    RankProgram(extra_ns=40 * MS, clock_ns=10**12 + 777 * MS + 13),
    RankProgram(clock_ns=10**12 - 5 * 10**9),
]
STEPS = 4


def exported(folder: Path, ranks: str, capsys: pytest.CaptureFixture[str]) -> dict:
    out = folder / "out" / "ranks.json.gz"
    code, _, err = command(capsys, "export", folder, "--perfetto", "--ranks", ranks, "-o", out)
    assert code == 0, err
    document = rules.read(out)
    rules.check(document)
    return document


def by_rank(document: dict, name: str) -> dict[int, list[tuple[int, int]]]:
    """Start and end of the spans of this name, per rank, in ns."""
    rank = {
        event["pid"]: int(event["args"]["name"].split(":")[0].removeprefix("rank "))
        for event in document["traceEvents"]
        if event["name"] == "process_name"
    }
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["name"].startswith(name):
            start = rules.nanoseconds(event["ts"])
            found[rank[event["pid"]]].append((start, start + rules.nanoseconds(event["dur"])))
    return {r: sorted(spans) for r, spans in found.items()}


def test_all_ranks_on_one_clock(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path, PROGRAMS, STEPS)
    document = exported(tmp_path, "all", capsys)
    kernels = by_rank(document, "ncclDevKernel_AllReduce")
    done = run(PROGRAMS, STEPS)
    zero = kernels[0][0][1] - done[0][0].reduce[0][1]
    for r in range(3):
        assert kernels[r] == [(zero + a, zero + b) for step in done[r] for a, b in step.reduce], "as they really were"
    assert min(rules.nanoseconds(event["ts"]) for event in document["traceEvents"] if event["ph"] == "X") == 0
    names = [event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"]
    assert [name.split(":")[0] for name in names] == sorted(name.split(":")[0] for name in names)
    tracks = [(event["pid"], event["tid"]) for event in document["traceEvents"] if event["name"] == "thread_name"]
    assert len({tid for _, tid in tracks}) == len(tracks), (
        "viewers take one number for one thread, whatever its process"
    )


def test_each_times_count_from_the_moment_that_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path, PROGRAMS, STEPS)
    document = exported(tmp_path, "all", capsys)
    done = run(PROGRAMS, STEPS)
    for r, spans in by_rank(document, "ncclDevKernel_AllReduce").items():
        origin = int(document["otherData"]["origin_ns"][str(r)])
        assert spans[0][1] + origin == done[r][0].reduce[0][1] + PROGRAMS[r].clock_ns
    assert document["otherData"]["recordings"] == {str(r): f"rank{r}.json.gz" for r in range(3)}


def test_some_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path, PROGRAMS, STEPS)
    assert set(by_rank(exported(tmp_path, "2,1", capsys), "nccl")) == {1, 2}
    assert set(by_rank(exported(tmp_path, "1", capsys), "nccl")) == {1}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--perfetto", "--ranks", "0,7"], "no rank 7: its ranks are 0, 1, 2"),
        (["--perfetto", "--ranks", "some"], "neither a list of ranks"),
        (["--perfetto", "--speedscope", "--ranks", "all"], "is for --perfetto"),
    ],
)
def test_what_cannot_be_exported_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str], given, says: str):
    write(tmp_path, PROGRAMS)
    code, out, err = command(capsys, "export", tmp_path, *given, "-o", tmp_path / "out" / "x.gz")
    assert (code, out) == (2, "")
    assert says in one_line(err)
    assert not (tmp_path / "out").exists()


def test_one_recording_has_no_ranks_to_choose(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (path, *_) = write(tmp_path, PROGRAMS)
    code, out, err = command(capsys, "export", path, "--perfetto", "--ranks", "0", "-o", tmp_path / "x.gz")
    assert (code, out) == (2, "")
    assert "leave --ranks out" in one_line(err)


def test_the_shift_of_each_clock_is_in_the_diagnosis(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path, PROGRAMS)
    code, out, _ = command(capsys, "diagnose", tmp_path, "--json")
    assert code == 0
    shifts = [rank["to_first_clock_ns"] for rank in json.loads(out)["ranks"]]
    assert shifts == [PROGRAMS[0].clock_ns - one.clock_ns for one in PROGRAMS]
