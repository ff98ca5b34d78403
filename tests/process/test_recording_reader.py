"""The process that reads the recording keeps out of the training's way while that runs, and is not starved
afterwards."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from helpers.paths import ROOT

from gpuprof import runfile
from gpuprof.cli.shared.after_recording import main
from gpuprof.record.launcher import machine, recording_reader
from gpuprof.record.launcher.last_words import VERDICT
from gpuprof.record.launcher.recording_reader import RecordingReader
from gpuprof.record.launcher.signals import OURS

READS = """
import os, pathlib, sys, time
folder, cpu, niced, diagnose = sys.argv[1:]
os.sched_setaffinity(0, {int(cpu)})
if niced:
    os.nice(19)
pathlib.Path(folder, f".half.{os.getpid()}.partial").touch()
while time.process_time() < 0.5:
    pass
pathlib.Path(folder, f".half.{os.getpid()}.partial").unlink()
pathlib.Path(folder, "done").write_text(f"{niced!r} {diagnose!r}")
"""
SLEEPS = "import pathlib, sys, time; time.sleep(1.5); pathlib.Path(sys.argv[1], 'done').write_text(repr(sys.argv[3]))"


@pytest.fixture
def busy_cpu():
    """A CPU that another program uses all the time."""
    cpu = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
    other = subprocess.Popen([sys.executable, "-c", code])
    yield cpu
    other.kill()
    other.wait()


def read_after_the_end(folder: Path, code: str, cpu: int) -> None:
    """Starts a process with that code next to a training, and waits for it from the end of the training on."""

    def closing(run: Path, running: str, diagnose: bool):
        what = [str(run), str(cpu), running, "diagnose" if diagnose else ""]
        return [sys.executable, "-c", code, *what], dict(os.environ)

    with signals_blocked():
        reader = RecordingReader(folder, closing)
        reader.start(running=True, diagnose=True)
        assert reader.wait()


@contextlib.contextmanager
def signals_blocked() -> Iterator[None]:
    """As they are in the launcher."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, OURS)
    try:
        yield
    finally:
        while signal.sigtimedwait(OURS, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@pytest.mark.slow
def test_other_programs_do_not_delay_the_verdict_by_minutes(tmp_path: Path, busy_cpu: int):
    """Half a second of work would take half a minute at the lowest priority, so it is started again at the usual
    one."""
    read_after_the_end(tmp_path, READS, busy_cpu)
    assert (tmp_path / "done").read_text() == "'' 'diagnose'"
    assert [path.name for path in tmp_path.iterdir()] == ["done"]


def test_what_waits_for_a_disk_is_left_alone(tmp_path: Path, busy_cpu: int):
    read_after_the_end(tmp_path, SLEEPS, busy_cpu)
    assert (tmp_path / "done").read_text() == "'running'"


def test_what_was_prepared_begins_once_the_recording_is_complete(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording_reader, "FEWEST_CORES", 1)
    started: list[str] = []
    code = "import os, pathlib, sys; pathlib.Path(sys.argv[1], str(os.getpid())).write_text(sys.stdin.readline())"

    def closing(run: Path, running: str, diagnose: bool):
        started.append(running)
        return [sys.executable, "-c", code, str(run)], dict(os.environ)

    reader = RecordingReader(tmp_path, closing)
    reader.prepare()
    assert not reader.was_started and list(tmp_path.iterdir()) == []
    with signals_blocked():
        reader.start(running=True, diagnose=True)
        assert reader.wait()
    assert started == ["waits"] and [path.read_text() for path in tmp_path.iterdir()] == ["\n"]
    reader.prepare()
    reader.let_go()
    assert len(list(tmp_path.iterdir())) == 1, "what waits in vain does nothing"


def test_what_was_prepared_is_given_up_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording_reader, "FEWEST_CORES", 0)
    started: list[int] = []
    spawn = os.posix_spawn
    monkeypatch.setattr(os, "posix_spawn", lambda *a, **k: started.append(spawn(*a, **k)) or started[-1])
    reader = RecordingReader(tmp_path, lambda *_: (["/bin/cat"], dict(os.environ)))
    reader.prepare()
    reader.look()
    os.kill(started[0], 0)
    monkeypatch.setattr(recording_reader, "PREPARED_FOR_S", -1.0)
    reader.let_go()
    reader.prepare()
    reader.look()
    for pid in started:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_cores_count_and_not_processors_and_no_more_than_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert machine.usable_cores(tmp_path) == 8, "nothing is known of cores"
    for cpu in range(8):
        place = tmp_path / f"devices/system/cpu/cpu{cpu}/topology"
        place.mkdir(parents=True)
        (place / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    assert machine.usable_cores(tmp_path) == 4
    (tmp_path / "fs/cgroup").mkdir(parents=True)
    (tmp_path / "fs/cgroup/cpu.max").write_text("150000 100000\n")
    assert machine.usable_cores(tmp_path) == 1.5


def test_nothing_is_prepared_where_a_container_may_use_few_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(machine, "usable_cores", lambda: 3.5)
    RecordingReader(tmp_path, lambda *_: pytest.fail("it is started")).prepare()


@pytest.mark.slow
def test_started_again_it_does_what_is_left(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    run = tmp_path / "run"
    shutil.copytree(ROOT / "tests" / "data" / "runs" / "tiny_lora", run)
    umask = os.umask(0o077)
    try:
        main(str(run), "", "diagnose")
        assert "a step" in capfd.readouterr().err
        (run / runfile.REPORT).unlink()
        main(str(run), "", "diagnose")  # killed while it drew the report
        assert capfd.readouterr().err == f"gpuprof: report: {run / runfile.REPORT}\n"
        written = [(run / name).stat().st_mtime_ns for name in (VERDICT, runfile.REPORT)]
        main(str(run), "", "diagnose")
        assert capfd.readouterr().err == ""
        assert [(run / name).stat().st_mtime_ns for name in (VERDICT, runfile.REPORT)] == written
    finally:
        os.umask(umask)
