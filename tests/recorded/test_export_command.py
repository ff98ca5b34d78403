"""`gpuprof export`: the names of its files, what it never overwrites, and one line for what cannot be done."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import helpers.trace_event_rules as rules
import pytest
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT
from helpers.traces import COMMITTED, RUNS

from gpuprof.cli.entry import main

MS = 1_000_000
START = "from gpuprof.cli import main; raise SystemExit(main())"

Export = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def export(
    monkeypatch: pytest.MonkeyPatch, capfdbinary: pytest.CaptureFixture[bytes], each_diagnosed_once: None
) -> Export:
    """Runs `gpuprof export` in this process."""

    def command(*arguments: object, cwd: Path) -> subprocess.CompletedProcess[bytes]:
        capfdbinary.readouterr()
        with monkeypatch.context() as patch:
            patch.chdir(cwd)
            for name in [name for name in os.environ if name.startswith("GPUPROF_")]:
                patch.delenv(name)
            code = main(["export", *map(str, arguments)])
        return subprocess.CompletedProcess([], code, *capfdbinary.readouterr())

    return command


def export_process(*arguments: object, cwd: Path, python: str = "") -> subprocess.CompletedProcess[bytes]:
    """Runs `gpuprof export` as a user does; `python`: statements that run before it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUPROF_")}
    return subprocess.run(
        [sys.executable, "-c", f"{python}\n{START}", "export", *map(str, arguments)],
        cwd=cwd, env={**clean, "PYTHONPATH": str(ROOT)}, capture_output=True,
    )  # fmt: skip


def one_line(stderr: bytes) -> str:
    text = stderr.decode()
    assert text.startswith("gpuprof: ") and text.count("\n") == 1 and "Traceback" not in text, text
    return text[:-1]


@pytest.fixture
def small(tmp_path) -> Path:
    builder = TraceBuilder()
    for i in range(3):
        builder.step(i, i * MS, (i + 1) * MS).op("aten::mm", i * MS + 10, i * MS + 900)
        builder.launch("gemm", (i * MS + 20, i * MS + 40), (i * MS + 50, i * MS + 600_000))
    return builder.write(tmp_path / "small.json")


def test_files_are_named_after_the_recording(export, small, tmp_path):
    pytest.importorskip("pyarrow")
    away = tmp_path / "away"
    away.mkdir()
    done = export_process(small, "--perfetto", "--speedscope", "--parquet", cwd=away)
    assert (done.returncode, done.stdout) == (0, b"")
    assert {p.name for p in away.iterdir()} == {"small.perfetto.json.gz", "small.speedscope.json", "small.parquet"}
    assert [line.split(":")[1].strip() for line in done.stderr.decode().splitlines()] == [
        "small.perfetto.json.gz", "small.speedscope.json", "small.parquet",
    ]  # fmt: skip
    rules.check(rules.read(away / "small.perfetto.json.gz"))
    assert export(small, "--perfetto", "--speedscope", "--parquet", cwd=away).returncode == 0  # ours may be


def test_a_recording_is_never_overwritten(export, small, tmp_path):
    before = small.read_bytes()
    for options in (("--perfetto",), ("--speedscope", "--force")):
        done = export(small, *options, "-o", small, cwd=tmp_path)
        assert done.returncode == 2 and "is the recording itself" in one_line(done.stderr)
    link = tmp_path / "link.json"
    link.symlink_to(small)
    assert export(small, "--perfetto", "--force", "-o", link, cwd=tmp_path).returncode == 2
    other = tmp_path / "other.json"
    other.write_text("{}")
    done = export(small, "--perfetto", "-o", other, cwd=tmp_path)
    assert done.returncode == 2 and "was not written by gpuprof" in one_line(done.stderr)
    assert other.read_text() == "{}"
    assert export(small, "--perfetto", "--force", "-o", other, cwd=tmp_path).returncode == 0
    assert small.read_bytes() == before


@pytest.mark.slow
def test_files_of_a_run_are_never_overwritten(export, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    for file in RUNS[0].parent.iterdir():
        (run / file.name).write_bytes(file.read_bytes())
    done = export(run, "--speedscope", "--force", "-o", run / "steps.jsonl", cwd=tmp_path)
    assert done.returncode == 2 and "is a file of the recording" in one_line(done.stderr)
    assert export(run, "--speedscope", cwd=tmp_path).returncode == 0
    assert (tmp_path / "run.speedscope.json").is_file()


def test_a_folder_of_traces_gets_no_file_that_looks_like_one(export, small, tmp_path):
    (tmp_path / "rank1.json").write_bytes(small.read_bytes())
    done = export(".", "--perfetto", cwd=tmp_path)
    assert done.returncode == 2 and "look like one of the traces" in one_line(done.stderr)


def test_stdout_gets_the_file_and_nothing_else(export, small, tmp_path):
    done = export(small, "--perfetto", "-o", "-", cwd=tmp_path)
    assert json.loads(gzip.decompress(done.stdout))["exporter"].startswith("gpuprof")
    assert one_line(done.stderr) == "gpuprof: written to stdout"
    assert json.loads(export(small, "--speedscope", "-o", "-", cwd=tmp_path).stdout)["profiles"]
    done = export(small, "--parquet", "-o", "-", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, b"") and "only one file" in one_line(done.stderr)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("small.json",), "choose a format"),
        (("none.json", "--perfetto"), "no such file"),
        (("--perfetto",), "no recording given"),
        (("small.json", "--perfetto", "-o", "small.json/x"), "cannot be written"),
        (("small.json", "--perfetto", "--skip", "9"), "leaves no step"),
    ],
)
def test_what_cannot_be_done_is_one_line(export, small, tmp_path, arguments, words):
    done = export(*arguments, cwd=tmp_path)
    assert done.returncode == 2 and words in one_line(done.stderr)
    assert [p.name for p in tmp_path.iterdir()] == ["small.json"]


def test_without_pyarrow_one_line_says_what_to_install(export, small, tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = export(small, "--parquet", cwd=tmp_path)
    assert done.returncode == 2 and "pip install pyarrow" in one_line(done.stderr)
    assert not [one for one in tmp_path.iterdir() if one.is_dir()]


def test_an_interrupted_export_leaves_the_old_file(export, small, tmp_path):
    """The disk fills up midway: the file is neither cut short nor lost."""
    assert export(small, "--speedscope", cwd=tmp_path).returncode == 0
    before = (tmp_path / "small.speedscope.json").read_bytes()
    full = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))"
    )
    done = export_process(small, "--speedscope", cwd=tmp_path, python=full)
    assert done.returncode == 2 and "cannot be written" in one_line(done.stderr)
    assert (tmp_path / "small.speedscope.json").read_bytes() == before
    assert not list(tmp_path.glob("*.partial")) and not list(tmp_path.glob(".*.partial"))


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error(tmp_path):
    """With a file too large for a pipe's buffer."""
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuprof", "export", str(COMMITTED[0]), "--speedscope", "-o", "-"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert (process.stderr.read(), process.wait(60)) == (b"", 0)
