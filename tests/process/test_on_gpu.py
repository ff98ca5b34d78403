"""One script runs everything that needs a GPU: each command has a time limit, and a failure does not affect the
others."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import pytest
from helpers.paths import ROOT

from benchmarks import on_gpu
from benchmarks.on_gpu import Command, Measurement, Part, parts

STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
open(sys.argv[1] + "/child", "w").write(str(child.pid))
time.sleep(600)
"""
GOOD = "import sys; print('good'); open(sys.argv[1] + '/found.json', 'w').write('[1]')"


def code(name: str, text: str, limit_s: float = 20.0, result: str | None = None) -> Command:
    return Command(name, ("-c", text, "{out}"), limit_s, result)


def lines(out: Path) -> dict[str, dict]:
    found = map(json.loads, (out / "results.jsonl").read_text().splitlines())
    return {line["command"]: line for line in found}


def inside(archive: Path) -> dict[str, bytes]:
    with tarfile.open(archive) as opened:
        return {one.name: opened.extractfile(one).read() for one in opened}  # type: ignore[union-attr]


def test_each_command_says_what_came_of_it(tmp_path: Path):
    measurement = Measurement(tmp_path / "out", tmp_path / "work", time.monotonic() + 200)
    measurement.out.mkdir()
    lanes = (
        (code("good", GOOD, result="found.json"), code("fails", "print('why'); raise SystemExit(3)")),
        (code("stubborn", STUBBORN, limit_s=1.5), code("after", GOOD)),
    )
    measurement.part(Part("first", lanes))
    found = lines(measurement.out)
    assert (found["good"]["why"], found["good"]["result"], found["good"]["last"]) == (None, [1], ["good"])
    assert (found["fails"]["why"], found["fails"]["last"]) == ("exit code 3", ["why"])
    assert found["stubborn"]["why"] == "ended after 2 s"
    assert found["after"]["why"] is None, "nothing waits for what is cut off: no time would be left"
    child = int((tmp_path / "work" / "files" / "stubborn" / "child").read_text())
    assert not Path(f"/proc/{child}").exists() or ") Z " in Path(f"/proc/{child}/stat").read_text()
    assert inside(measurement.out / "logs.tar.xz")["logs/good.log"] == b"good\n"
    assert inside(measurement.out / "files.tar.xz")["files/good/found.json"] == b"[1]"


def test_what_no_time_is_left_for_is_named_and_what_is_too_large_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(on_gpu, "MOST_BYTES", 1000)
    large = "import sys; open(sys.argv[1] + '/large.gz', 'wb').write(bytes(3000)); print('said')"
    measurement = Measurement(tmp_path, tmp_path / "work", time.monotonic() + 60)
    measurement.part(Part("first", ((code("large", large),),)))
    measurement.end = time.monotonic() + 1
    measurement.part(Part("second", ((code("late", GOOD),),)))
    assert lines(tmp_path)["late"]["why"] == "no time was left"
    kept = inside(tmp_path / "files.tar.xz")
    assert json.loads(kept["left_out.json"]) == {"left_out": ["files/large/large.gz"]}
    assert "files/large/large.gz" not in kept
    assert "logs/large.log" in inside(tmp_path / "logs.tar.xz")


@pytest.mark.parametrize("tiny", [False, True])
def test_every_part_runs_what_is_there(tiny: bool):
    for command in (one for part in parts(tiny) for lane in part.lanes for one in lane):
        module = command.words[1]
        assert (ROOT / f"{module.replace('.', '/')}.py").is_file(), module
        others = [word for word in command.words[2:] if word.startswith("scenarios.")]
        assert all((ROOT / f"{word.replace('.', '/')}.py").is_file() for word in others)


def test_a_part_that_is_not_known_is_one_line(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.on_gpu", "--out", str(tmp_path / "out"), "--parts", "memroy"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].endswith(
        "no part is named memroy: counters, memory, verdict, overhead, sampling"
    )
    assert not (tmp_path / "out").exists()
