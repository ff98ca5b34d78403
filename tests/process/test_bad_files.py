"""Files for which the command runs in a separate process: each way to end, gzip that unpacks to far more than its size,
and large damaged files."""

from __future__ import annotations

import gzip
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers.bad_input import ENVIRONMENT, Result, driven, good, is_json, is_refused, is_report, looks_well
from helpers.damaged import command, crowd, cut, text
from helpers.make_trace import TraceBuilder

PATIENCE_S = 60
"""For a file of 20,000 threads."""
BOMB_RSS_BYTES = 1_500_000_000


# -- one for each way to end


def test_a_report_of_an_unusable_recording(tmp_path: Path):
    path = TraceBuilder().op("aten::mm", 0, 1000).write(tmp_path / "cpu.json")
    is_report(driven([("cpu", os.fsencode(path), ("text",))])["cpu text"], 2)
    found = is_json(command(path, "--json"), 2)
    assert found["verdict"]["bound"] is None


def test_a_gate_that_fails(tmp_path: Path):
    result = command(good().write(tmp_path / "trace.json"), "--fail-on", "idle:0.1%")
    assert result.code == 1
    assert re.fullmatch(r"gpuprof: gate failed: idle [^\n]+\n", result.stderr)


def test_a_file_that_may_not_be_read(tmp_path: Path):
    path = good().write(tmp_path / "trace.json")
    path.chmod(0)
    result = driven([("closed", os.fsencode(path), ("text",))])["closed text"]
    if os.access(path, os.R_OK):  # root may read anything
        is_report(result, 0)
    else:
        is_refused(result)
        assert "cannot be read" in result.stderr


def test_names_of_files_are_text_too(tmp_path: Path):
    names = [b"[bold]x.json", b"\x1b[31mred.json", b"a\nb.json", b"\xff\xfe.json", "\u202egpj.json".encode(), b" "]
    todo = []
    for number, name in enumerate(names):
        for where, data in (("good", text()), ("bad", "x")):
            folder = os.fsencode(tmp_path / where)
            Path(os.fsdecode(folder)).mkdir(exist_ok=True)
            path = folder + b"/" + name
            Path(os.fsdecode(path)).write_text(data)
            todo.append((f"{where} {number}", path, ("text", "json")))
    found = driven(todo)
    for number in range(len(names)):
        for mode in ("text", "json"):
            is_refused(found[f"bad {number} {mode}"])
        is_report(found[f"good {number} text"], 0)
        is_json(found[f"good {number} json"], 0)
    assert "[bold]x.json" in found["good 0 text"].stdout
    assert r"\x1b[31mred.json" in found["bad 1 text"].stderr


# -- gzip that unpacks to far more than its size


def unpacks_to(head: str, unit: str, count_mb: int) -> bytes:
    """A valid gzip of `head` and then this many MB of `unit`, as members."""
    mega = (unit * (2**20 // len(unit) + 1))[: 2**20]
    return gzip.compress(head.encode()) + gzip.compress(mega.encode()) * count_mb


BOMBS = {
    "spaces": ("", " "),
    "zeros": ("", "\0"),
    "a header without end": ('{"a": "', "a"),
    "a name without end": ('{"traceEvents": [{"name": "', "a"),
    "lists without end": ('{"traceEvents": [', "["),
    "commas without end": ('{"traceEvents": [', ","),
    "spaces between events": ('{"traceEvents": [{"ph": "X", "ts": 1}', " "),
}


def measured(path: Path, timeout_s: float) -> tuple[Result, int]:
    """Runs the command; returns its result and its peak memory in bytes."""
    code = (
        "import resource, subprocess, sys; child = subprocess.run(sys.argv[1:], check=False);"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024, file=sys.stderr);"
        "sys.exit(child.returncode)"
    )
    begun = time.monotonic()
    child = subprocess.run(
        [sys.executable, "-c", code, sys.executable, "-m", "gpuprof", "diagnose", str(path)], capture_output=True,
        env=ENVIRONMENT, timeout=timeout_s, check=False,
    )  # fmt: skip
    lines = [line for line in child.stderr.decode().splitlines(True) if "compiling the trace reader" not in line]
    rss = int(lines.pop())
    return Result(child.returncode, child.stdout.decode(), "".join(lines), time.monotonic() - begun), rss


def defused(path: Path) -> None:
    result, rss = measured(path, timeout_s=120)
    looks_well(result)
    assert result.code == 2
    assert result.stderr or "truncated" in result.stdout or "cut" in result.stdout
    assert rss < BOMB_RSS_BYTES


def test_a_file_that_unpacks_to_200_mb(tmp_path: Path):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(unpacks_to(*BOMBS["lists without end"], 200))
    defused(path)


@pytest.mark.slow
@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_unpacks_to_10_gb(tmp_path: Path, name: str):
    path = tmp_path / "bomb.json.gz"
    path.write_bytes(unpacks_to(*BOMBS[name], 10_000))
    defused(path)


@pytest.mark.slow
@pytest.mark.parametrize("what", ["tid", "stream", "device"])
def test_20_000_of_anything(tmp_path: Path, what: str):
    path = tmp_path / "crowd.json"
    path.write_text(crowd(20_000, **{what: True}))
    result = command(path)
    is_report(result, 0)
    assert result.seconds < PATIENCE_S


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "issue"),
    [
        ("90 % of a file", "truncated"),
        ("control characters", "repaired_events"),
        ("invalid UTF-8 in names", "repaired_events"),
        ("unescaped quotes", "repaired_events"),
    ],
)
def test_the_same_damage_to_a_large_file(tmp_path: Path, name: str, issue: str):
    """Large files are read by the streaming reader, damaged ones too."""
    large = good(24_000).text()
    assert len(large) > 30 << 20
    damaged = {
        "90 % of a file": cut(large, 0.9),
        "control characters": large.replace("gemm", "ge\x01\tmm", 1000).encode(),
        "invalid UTF-8 in names": large.encode().replace(b"gemm", b"ge\xff\xfemm", 1000),
        "unescaped quotes": large.replace("gemm", 'ge"mm', 1000).encode(),
    }
    path = tmp_path / "large.json"
    path.write_bytes(damaged[name])
    is_report(command(path), 0)
    found = is_json(command(path, "--json"), 0)
    assert issue in {one["id"] for one in found["quality"]["issues"]}
    share = 0.89 if name == "90 % of a file" else 1
    assert found["source"]["events"] >= share * large.count('"ph": "X"')
