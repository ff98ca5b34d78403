"""`gpuprof trace --nsys` is as invisible as without the option, and Nsight Systems records the right steps.

nsys is a stand-in; processes, signals, exit codes and files are real.
"""

from __future__ import annotations

import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
import types
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.nsys_programs import SECRET, make_importer, make_nsys, make_stand_in
from helpers.quick import few
from helpers.run_schema import errors_in
from helpers.started import COUNTS, PYTHON, Started, environment, run, state, traced
from helpers.trainings import Run, trace

from gpuprof import runfile
from gpuprof.record.base import ranges


@pytest.fixture(autouse=True)
def nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The stand-in, on PATH, and a token in the environment."""
    path = make_stand_in(tmp_path / "nsight" / "bin")
    monkeypatch.setenv("PATH", f"{path.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("GPUPROF_NSYS", raising=False)
    monkeypatch.setenv("HF_TOKEN", SECRET)
    return path


def under(*words: object) -> list[str]:
    return traced("--nsys", "--out", "run", *words)


# -- as without it


@pytest.mark.parametrize("mode", [pytest.param("", marks=pytest.mark.slow), "code"])
@pytest.mark.parametrize(
    ("code", "status"),
    few(
        [pytest.param(code, status, id=code) for code, status in (
            ("sys.exit(3)", 3), ("sys.exit(0)", 0), ("os.kill(os.getpid(), 9)", -9), ("os.kill(os.getpid(), 15)", -15),
            ("os.abort()", -6),
        )], ["sys.exit(3)", "os.kill(os.getpid(), 9)"],
    ),
)  # fmt: skip
def test_the_end_is_the_targets_whatever_nsys_ends_with(
    code: str, status: int, mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("STAND_IN", mode)
    done = run(under(PYTHON, "-c", f"import os, sys; print('out', flush=True); {code}"), tmp_path)
    assert (done.returncode, done.stdout) == (status, b"out\n"), done.stderr
    assert b"Traceback" not in done.stderr
    manifest = json.loads((tmp_path / "run" / runfile.MANIFEST).read_text())
    assert manifest["options"]["nsys"] is True
    assert b"Collecting data" in (tmp_path / "run" / runfile.NSYS_LOG).read_bytes()


def test_input_and_errors_are_the_targets_own(tmp_path: Path):
    code = "import sys; print(sys.stdin.read().upper()); print('err', file=sys.stderr)"
    done = run(under(PYTHON, "-c", code), tmp_path, input=b"typed")
    assert done.stdout == b"TYPED\n"
    assert b"err\n" in done.stderr


def test_a_closed_input_stays_closed(tmp_path: Path):
    code = "import os\ntry: os.fstat(0)\nexcept OSError: print('closed')"
    words = " ".join(f"'{word}'" for word in under(PYTHON, "-c", code.replace("'", '"')))
    done = run(["sh", "-c", f"{words} <&-"], tmp_path)
    assert done.stdout == b"closed\n", done.stderr


def test_a_terminal_stays_a_terminal(tmp_path: Path):
    ours, theirs = pty.openpty()
    code = "import os; print([os.isatty(n) for n in (0, 1, 2)])"
    subprocess.run(
        under(PYTHON, "-c", code), cwd=tmp_path, env=environment(), stdin=theirs, stdout=theirs, stderr=theirs,
        timeout=60, check=True,
    )  # fmt: skip
    assert b"[True, True, True]" in os.read(ours, 10_000)
    os.close(ours)
    os.close(theirs)


@pytest.mark.parametrize(
    ("name", "to_group"),
    few(
        [
            pytest.param(name, group, id=f"{name}-{'group' if group else 'pid'}")
            for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1")
            for group in (False, True)
        ],
        ["SIGTERM-pid", "SIGINT-group"],
    ),
)
def test_a_signal_comes_once(name: str, to_group: bool, tmp_path: Path):
    with Started(under(PYTHON, "-c", COUNTS, name), tmp_path) as started:
        assert started.line().startswith("ready")
        started.send(getattr(signal, name), to_group)
        assert started.line() == f"got {name}"
        status, out, _ = started.end(b"\n")
    assert (status, out) == (0, f"{{'{name}': 1}}\n".encode())


def test_a_ctrl_c_reaches_what_a_script_runs(tmp_path: Path):
    waits = "import time; print(1, flush=True); [time.sleep(0.05) for _ in range(1200)]"
    (tmp_path / "run.sh").write_text(f"{PYTHON} -c '{waits}'; exit 5")
    with Started(under("bash", "run.sh"), tmp_path) as started:
        assert started.line() == "1"
        started.send(signal.SIGINT, to_group=True)
        status, _, err = started.end()
    assert status == -signal.SIGINT and b"KeyboardInterrupt" in err


def test_a_signal_ends_the_target_and_us_alike(tmp_path: Path):
    with Started(under(PYTHON, "-c", "print('ready', flush=True); import time; time.sleep(60)"), tmp_path) as started:
        assert started.line() == "ready"
        started.send(signal.SIGTERM, to_group=False)
        status, _, err = started.end()
    assert status == -signal.SIGTERM, err
    assert json.loads((tmp_path / "run" / runfile.MANIFEST).read_text())["exit"]["signal"] == "SIGTERM"


def test_who_kills_us_kills_the_target(tmp_path: Path):
    with Started(under(PYTHON, "-c", COUNTS), tmp_path) as started:
        pid = int(started.line().split()[1])
        time.sleep(0.5)
        started.send(signal.SIGKILL, to_group=False)
        started.process.wait()
        deadline = time.monotonic() + 10
        while state(pid) not in "XZ" and time.monotonic() < deadline:
            time.sleep(0.05)
        assert state(pid) in "XZ"


# -- what cannot be done


def test_no_nsys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PATH", "/nowhere")
    done = run(
        under(PYTHON, "-c", "print(1)"), tmp_path, env=environment(PATH="/nowhere", GPUPROF_NSYS="/nowhere/nsys")
    )
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    assert "/nowhere/nsys" in line and "torch.profiler" in line
    assert not (tmp_path / "run").exists()


def test_an_nsys_too_old(tmp_path: Path):
    old = make_nsys(tmp_path / "old", "2018.1.1")
    done = run(under(PYTHON, "-c", ""), tmp_path, env=environment(GPUPROF_NSYS=str(old)))
    assert done.returncode == 2
    assert b"newer" in done.stderr and done.stderr.count(b"\n") == 1


def test_an_nsys_that_does_not_start_the_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", "refuse")
    code = "import sys; print(sys.stdin.read()); sys.exit(3)"
    done = run(under(PYTHON, "-c", code), tmp_path, input=b"typed")
    assert (done.returncode, done.stdout) == (3, b"typed\n"), done.stderr
    assert b"did not start the target (Error: cannot do that): it runs without" in done.stderr
    assert json.loads((tmp_path / "run" / runfile.MANIFEST).read_text())["options"]["nsys"] is False


def test_an_nsys_that_dies_leaves_the_target_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", "crash")
    code = "import sys, time; time.sleep(1); print('out', flush=True); sys.exit(3)"
    done = run(under(PYTHON, "-c", code), tmp_path)
    assert (done.returncode, done.stdout) == (3, b"out\n"), done.stderr


@pytest.mark.parametrize(
    ("options", "word"), [(["--nsys", "--stacks"], "--stacks"), (["--memory", "--nsys"], "--memory"),
                          (["--gpu-metrics"], "--nsys")],
)  # fmt: skip
def test_what_does_not_go_together(options: list[str], word: str, tmp_path: Path):
    done = run(traced(*options, PYTHON, "-c", "print(1)"), tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    (line,) = done.stderr.decode().splitlines()
    assert word in line


def test_counters_that_are_refused_are_left_out(tmp_path: Path):
    done = run(under("--gpu-metrics", PYTHON, "-c", "print(1)"), tmp_path)
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert b"counters are not sampled: the driver lets only administrators" in done.stderr
    assert json.loads((tmp_path / "run" / runfile.MANIFEST).read_text())["options"]["gpu_metrics"] is False


# -- what is recorded

GPU = """
    import _gpuprof.record.windows.capture as capture

    class Runtime:
        def cudaProfilerStart(self): print("start", flush=True)
        def cudaProfilerStop(self): print("stop", flush=True)

    class Nvtx:
        def push(self, name): print("push", name)
        def pop(self): print("pop")
        def start(self, name): print("begin", name); return name
        def end(self, name): print("end", name)

    runtime = Runtime()
    capture.cuda_runtime = lambda: runtime
    capture.find_nvtx = Nvtx
"""
"""Stands in for CUDA's runtime and NVTX, and prints what they receive."""


def train(tmp_path: Path, code: str, *options: str) -> Run:
    need("torch")
    first = "import _gpuprof.record.recording.session\n" + textwrap.dedent(GPU)
    return trace(tmp_path, code, "--nsys", *options, first=first, diagnosed=True)


def test_a_training(tmp_path: Path):
    found = train(tmp_path, "train(60); sys.exit(5)", "--steps", "4", "--baseline", "3", "--no-report")
    assert found.code == 5, found.stderr
    printed = found.stdout.split("\n")
    begin, end = printed.index("start"), printed.index("stop")
    assert printed[begin + 1] == "begin step_14" and printed[end - 1] == "end step_17"
    marks = printed[begin + 1 : end]
    assert [m for m in marks if "step_" in m] == [f"{w} step_{n}" for n in (14, 15, 16, 17) for w in ("begin", "end")]
    assert marks.count("push backward") == marks.count("push optimizer") == 4
    assert sum(m.startswith("push") for m in marks) == marks.count("pop")
    assert not [m for m in printed[:begin] + printed[end + 1 :] if m.startswith(("push", "begin"))]
    (window,) = found.rank()["windows"]
    assert (window["window"], window["file"], window["first_step"], window["steps"]) == ("nsys", "nsys.sqlite", 14, 4)
    stages = {step["step"]: (step["stage"], step["profiled"]) for step in found.steps()}
    assert stages[11] == ("baseline_sync", False) and stages[13] == ("warmup", True)
    assert [stages[n] for n in (14, 17)] == [("nsys", True)] * 2 and stages[18] == ("after", False)
    assert errors_in(found.folder) == []
    export = found.folder / "nsys.sqlite"
    assert SECRET.encode() in (found.folder / "nsys.nsys-rep").read_bytes()
    assert SECRET.encode() not in export.read_bytes()
    with sqlite3.connect(export) as file:
        assert file.execute("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchone() == (100,)
    assert "nsys.nsys-rep holds the whole environment" in found.stderr
    assert not list(found.folder.glob("*.json.gz"))


@pytest.mark.parametrize(("mode", "word"), [("newer", "2099.1.1"), ("silent", "left no report")])
def test_a_report_that_cannot_be_read(mode: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", mode)
    found = train(tmp_path, "train(40); sys.exit(5)", "--baseline", "2")
    assert found.code == 5
    lines = [line for line in found.stderr.splitlines() if "could not be read" in line]
    assert len(lines) == 1 and word in lines[0]
    assert "Traceback" not in found.stderr and "not diagnosed" not in found.stderr


def test_a_stream_without_its_importer(nsys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("STAND_IN", "stream")
    make_importer(nsys, "echo x: error while loading shared libraries: libdw.so.1: cannot open; exit 127")
    found = train(tmp_path, "train(40)", "--baseline", "2")
    assert found.code == 0
    assert "libdw1" in found.stderr and "nsys.qdstrm holds the whole environment" in found.stderr
    assert (found.folder / "nsys.qdstrm").exists() and not (found.folder / "nsys.sqlite").exists()


def test_a_process_without_a_gpu(tmp_path: Path):
    need("torch")
    found = trace(tmp_path, "train(40)", "--nsys", "--baseline", "2", diagnosed=True)
    assert found.code == 0
    assert found.rank()["windows"] == []
    assert "no work on a GPU" in found.rank()["notes"][0]


# -- NVTX


class DummyDomain:
    """What nvtx uses as a domain when it believes that no tool listens; it drops every range."""


class RealDomain:
    def get_event_attributes(self, **_: object) -> object:
        return object()

    def __getattr__(self, name: str) -> object:
        return print


@pytest.mark.parametrize(("domain", "by"), [(DummyDomain, "torch"), (RealDomain, "nvtx")])
def test_a_dummy_domain_is_seen(domain: type, by: str, monkeypatch: pytest.MonkeyPatch):
    need("torch")
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/x.so")
    monkeypatch.setitem(sys.modules, "nvtx", types.SimpleNamespace(get_domain=lambda _: domain()))  # type: ignore[arg-type]
    monkeypatch.setattr(ranges, "_torch", lambda: "torch")
    found = ranges.find_nvtx()
    assert (found == "torch") is (by == "torch")
