"""`gpuprof trace` is invisible: a command's output, exit and signals are the same as without it."""

from __future__ import annotations

import fcntl
import os
import pty
import resource
import signal
import stat
import subprocess
import termios
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from helpers.quick import few
from helpers.started import (
    COUNTS,
    PYTHON,
    UNTIL_TOLD,
    Started,
    environment,
    manifest_of,
    only_run,
    run,
    state,
    traced,
    wait_for,
)

from gpuprof import runfile

NOTHING = (
    b"gpuprof: nothing was recorded: the target took no optimizer step in a Python with torch "
    b"(a loop without one marks its steps with gpuprof.Recorder)\n"
)
"""Everything gpuprof prints about a target without torch."""

ENDING = ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
QUICK_SIGNALS = ("SIGINT-group", "SIGTERM-pid", "SIGUSR1-pid")
"""Ctrl-C, `kill`, and one that gpuprof does not use."""


def both_ways(names: Iterable[str]) -> list:
    """Parameters: each signal, sent to the process alone and to its group."""
    return [
        pytest.param(name, group, id=f"{name}-{'group' if group else 'pid'}")
        for name in names
        for group in (False, True)
    ]


READY = f"print('ready', flush=True)\n{UNTIL_TOLD}"


def members(group: int) -> list[int]:
    """The living processes of a group."""
    pids = [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]

    def belongs(pid: int) -> bool:
        try:
            return os.getpgid(pid) == group and state(pid) not in "XZ"
        except ProcessLookupError:
            return False

    return [pid for pid in pids if belongs(pid)]


# -- the same as bare python


ENDS = {
    "nothing": "pass",
    "zero": "raise SystemExit(0)",
    "three": "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)",
    "exception": "1 / 0",
    "text": "import sys; sys.exit('a text')",
    "at once": "import os; os._exit(7)",
    "abort": "import os; os.abort()",
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "terminated": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "interrupted": "import os, signal; os.kill(os.getpid(), signal.SIGINT)",
    "interrupt raised": "raise KeyboardInterrupt",
    "real time signal": "import os, signal; os.kill(os.getpid(), signal.SIGRTMIN + 3)",
    "stdin": "import sys; sys.stdout.write(sys.stdin.read().upper())",
    "binary": "import os; os.write(1, bytes(range(256))); os.write(2, bytes(range(255, -1, -1)))",
    "arguments": "import sys; print(sys.argv, sys.flags, sys.path[0] == '')",
    "group": "import os; print(os.getpgrp() == os.getpgid(os.getppid()), os.getsid(0) == os.getsid(os.getppid()))",
    "mask": "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, ()))",
    "handlers": "import signal; print([signal.getsignal(s) for s in sorted(signal.valid_signals()) if s != 2])",
    "descriptors": "import os; print(sorted(os.listdir('/proc/self/fd')))",
    "forks": "import os, time\nif os.fork(): os._exit(5)\ntime.sleep(0.1); print('the child')",
    "spawns": "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1)']); print(2)",
    "no help": "import sys; print(sys.orig_argv[1:2])",
}


QUICK = ("three", "exception", "killed", "interrupted", "stdin", "group", "forks")


@pytest.mark.parametrize("code", few([pytest.param(code, id=name) for name, code in ENDS.items()], QUICK))
def test_as_under_bare_python(code: str, tmp_path: Path):
    words = (PYTHON, "-c", code, "--steps", "1", "--help", "-m", "--", "a b")

    def no_core():
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    bare, ours = (
        run(command, tmp_path, input=b"some\ntext", preexec_fn=no_core) for command in (words, traced(*words))
    )
    assert (ours.returncode, ours.stdout) == (bare.returncode, bare.stdout)
    assert ours.stderr == bare.stderr + NOTHING


def test_a_trace_inside_of_a_trace_is_named(tmp_path: Path):
    words = ("--out", "inner_run", PYTHON, "-c", "print('ran')")
    ours = run(traced("--out", "outer_run", PYTHON, "-m", "gpuprof", "trace", *words), tmp_path)
    assert (ours.returncode, ours.stdout) == (0, b"ran\n")
    folder = tmp_path.resolve() / "inner_run"
    said = f"gpuprof: nothing was recorded here: the target has a gpuprof trace of its own, which records in {folder}\n"
    assert ours.stderr == NOTHING + said.encode()


@pytest.mark.parametrize(
    "way",
    few(
        ["script", "module", "module before options end", "folder", "dashes", "program"],
        ["script", "module", "program"],
    ),
)
def test_ways_to_name_a_target(way: str, tmp_path: Path):
    code = "import sys; print(sys.argv[1:], __name__); sys.exit(4)"
    (tmp_path / "train.py").write_text(code)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "__main__.py").write_text(code)
    arguments = ("--out", "x", "-m", "--stacks")
    words, bare = {
        "script": (("train.py", *arguments), (PYTHON, "train.py", *arguments)),
        "module": (("-m", "train", *arguments), (PYTHON, "-m", "train", *arguments)),
        "module before options end": (
            ("--stacks", "--steps=2", "-m", "train", "--help"), (PYTHON, "-m", "train", "--help"),
        ),
        "folder": (("--stacks", "folder", *arguments), (PYTHON, "folder", *arguments)),
        "dashes": (("--nvtx", "--", "train.py", *arguments), (PYTHON, "train.py", *arguments)),
        "program": (("sh", "-c", "echo $0 $1; exit 4", "a", "b"), ("sh", "-c", "echo $0 $1; exit 4", "a", "b")),
    }[way]  # fmt: skip
    expected, ours = run(bare, tmp_path), run(traced(*words), tmp_path)
    assert (ours.returncode, ours.stdout) == (expected.returncode, expected.stdout)
    assert expected.returncode == 4
    assert ours.stderr == NOTHING


def test_output_ends_when_the_target_closes_it(tmp_path: Path):
    """Whoever reads the output must not wait for gpuprof's own copy of it."""
    code = "import os, sys; print('said', flush=True); os.close(1); sys.stdin.read()"
    with Started(traced(PYTHON, "-c", code), tmp_path) as ours:
        assert ours.process.stdout and ours.process.stdout.read() == b"said\n"
        assert ours.process.poll() is None
        assert ours.end()[0] == 0


@pytest.mark.parametrize("closed", few(["<&-", ">&-", "2>&-", "<&- >&- 2>&-"], [">&-", "<&- >&- 2>&-"]))
def test_closed_descriptors_stay_closed(closed: str, tmp_path: Path):
    code = "import os; open('seen', 'w').write(str(sorted(os.listdir('/proc/self/fd')))); raise SystemExit(4)"
    seen = []
    for command in ((PYTHON, "-c", code), traced(PYTHON, "-c", code)):
        done = run(("sh", "-c", f'"$@" {closed}', "sh", *command), tmp_path)
        assert done.returncode == 4
        seen.append((tmp_path / "seen").read_text())
    assert seen[0] == seen[1]


def test_arguments_that_are_no_text(tmp_path: Path):
    words = (PYTHON, "-c", "import sys; print(sys.argv[1:])", os.fsdecode(b"\xff\x1b[31m"))
    done = run(traced(*words), tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"['\\udcff\\x1b[31m']\n", NOTHING)


# -- signals


@pytest.mark.parametrize(("name", "to_group"), few(both_ways(ENDING), QUICK_SIGNALS))
def test_a_signal_ends_both(name: str, to_group: bool, tmp_path: Path):
    number = getattr(signal, name)
    endings = []
    for command in ((PYTHON, "-c", READY), traced(PYTHON, "-c", READY)):
        with Started(command, tmp_path) as started:
            assert started.line() == "ready"
            started.send(number, to_group)
            started.process.wait(10)
            code, out, err = started.end()
            last = err.removesuffix(NOTHING).splitlines()[-1:]  # where the traceback is raised is chance
            endings.append((code, out, last))
    assert endings[0] == endings[1]
    assert endings[1][0] == -number


@pytest.mark.parametrize(
    ("name", "to_group"),
    few(both_ways([*ENDING, "SIGALRM", "SIGWINCH", "SIGABRT"]), (*QUICK_SIGNALS, "SIGWINCH-group")),
)
def test_a_signal_comes_exactly_once(name: str, to_group: bool, tmp_path: Path):
    with Started(traced(PYTHON, "-c", COUNTS, name), tmp_path) as started:
        assert started.line().startswith("ready")
        for _ in range(2):
            started.send(getattr(signal, name), to_group)
            assert started.line() == f"got {name}"
        time.sleep(0.12)
        assert started.end(b"\n") == (0, f"{{'{name}': 2}}\n".encode(), NOTHING)


def test_different_signals_at_once(tmp_path: Path):
    with Started(traced(PYTHON, "-c", COUNTS, "SIGUSR1", "SIGTERM", "SIGHUP"), tmp_path) as started:
        assert started.line().startswith("ready")
        started.send(signal.SIGUSR1, to_group=True)
        started.send(signal.SIGTERM, to_group=False)
        started.send(signal.SIGHUP, to_group=True)
        assert {started.line() for _ in range(3)} == {"got SIGUSR1", "got SIGTERM", "got SIGHUP"}
        time.sleep(0.12)
        _, out, _ = started.end(b"\n")
        assert out.decode().count(": 1") == 3


def test_timeout_ends_it_as_it_ends_python(tmp_path: Path):
    words = (PYTHON, "-c", "import time; time.sleep(9)")
    codes = [run(("timeout", "0.3", *command), tmp_path).returncode for command in (words, traced(*words))]
    assert codes == [124, 124]


@pytest.mark.parametrize(("name", "to_group"), few(both_ways(["SIGINT", "SIGHUP"]), ["SIGINT-group", "SIGHUP-pid"]))
def test_what_is_ignored_stays_ignored(name: str, to_group: bool, tmp_path: Path):
    """As under nohup, or in the background of a script."""
    number = getattr(signal, name)
    with Started(traced(PYTHON, "-c", READY), tmp_path, lambda: signal.signal(number, signal.SIG_IGN)) as started:
        assert started.line() == "ready"
        started.send(number, to_group)
        time.sleep(0.12)
        assert started.end() == (0, b"", NOTHING)


@pytest.mark.parametrize("to_group", [False, True], ids=["pid", "group"])
def test_a_target_that_ignores_a_signal_lives_on(to_group: bool, tmp_path: Path):
    code = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)\n{READY}"
    with Started(traced(PYTHON, "-c", code), tmp_path) as started:
        assert started.line() == "ready"
        started.send(signal.SIGINT, to_group)
        time.sleep(0.12)
        assert started.end() == (0, b"", NOTHING)


def test_started_by_something_that_ignores_its_children(tmp_path: Path):
    words = traced(PYTHON, "-c", "raise SystemExit(3)")
    done = run(words, tmp_path, preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    assert done.returncode == 3


def test_the_target_killed_by_its_own_pid(tmp_path: Path):
    with Started(traced(PYTHON, "-c", COUNTS), tmp_path) as started:
        target = int(started.line().split()[1])
        os.kill(target, signal.SIGKILL)
        assert started.end()[0] == -signal.SIGKILL
    assert manifest_of(only_run(tmp_path))["status"] == "killed"


def test_the_target_does_not_outlive_a_killed_launcher(tmp_path: Path):
    with Started(traced(PYTHON, "-c", COUNTS), tmp_path) as started:
        target = int(started.line().split()[1])
        os.kill(started.process.pid, signal.SIGKILL)
        assert wait_for(lambda: state(target) in "XZ")
        assert started.process.wait(10) == -signal.SIGKILL


def test_no_process_is_left_behind(tmp_path: Path):
    with Started(traced(PYTHON, "-c", READY), tmp_path) as started:
        assert started.line() == "ready"
        group = started.process.pid
        started.end()
    assert wait_for(lambda: not members(group))


def test_stopped_and_continued(tmp_path: Path):
    """Ctrl-Z and fg: the whole group stops, and goes on."""
    with Started(traced(PYTHON, "-c", COUNTS), tmp_path) as started:
        target = int(started.line().split()[1])
        pids = (started.process.pid, target)
        started.send(signal.SIGTSTP, to_group=True)
        assert wait_for(lambda: all(state(pid) == "T" for pid in pids))
        started.send(signal.SIGCONT, to_group=True)
        assert wait_for(lambda: all(state(pid) in "SR" for pid in pids))
        assert started.end(b"\n") == (0, b"{}\n", NOTHING)


def test_ctrl_c_on_a_terminal_comes_once(tmp_path: Path):
    ours, theirs = pty.openpty()

    def be_its_terminal():
        os.setsid()
        fcntl.ioctl(theirs, termios.TIOCSCTTY, 0)

    process = subprocess.Popen(
        traced(PYTHON, "-c", COUNTS, "SIGINT"), cwd=tmp_path, env=environment(), preexec_fn=be_its_terminal,
        stdin=theirs, stdout=theirs, stderr=theirs,
    )  # fmt: skip
    os.close(theirs)
    text = b""

    def read_until(end: bytes, times: int = 1) -> bytes:
        nonlocal text
        while text.count(end) < times:
            try:
                text += os.read(ours, 4096)
            except OSError:  # no process has the terminal open any more
                break
        return text

    try:
        read_until(b"ready")
        for i in range(2):
            os.write(ours, b"\x03")
            read_until(b"got SIGINT", i + 1)
        time.sleep(0.12)
        os.write(ours, b"\n")
        assert b"{'SIGINT': 2}" in read_until(b"torch")
        assert process.wait(10) == 0
    finally:
        process.kill()
        process.wait()
        os.close(ours)


# -- what cannot be


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("missing.py",), b"missing.py: no such file"),
        (("no-such-command",), b"no-such-command: no such command"),
        (("./notes.txt",), b"./notes.txt may not be executed: chmod +x it, or name what runs it (bash ./notes.txt)"),
        (("notes.txt",), b"notes.txt is a file that may not be executed: name the command of a training"),
        (("empty/",), b"empty/ is a folder without a __main__.py"),
        ((), b"nothing to run: gpuprof trace train.py, or -m module, torchrun \xe2\x80\xa6, python \xe2\x80\xa6"),
        (("--out", "full", PYTHON, "-c", "pass"), b"--out full: is not empty, and gpuprof overwrites nothing"),
        (("--out", "notes.txt", PYTHON, "-c", "pass"), b"--out notes.txt: already exists, and is not a folder"),
        (("--steps", "0", PYTHON, "-c", "print(1)"), b"--steps"),
        (("--steps", "many", PYTHON, "-c", "print(1)"), b"--steps"),
        (("--ranks", "0,x", PYTHON, "-c", "print(1)"), b"is not a list of ranks"),
        (("--step", "5", PYTHON, "-c", "print(1)"), b"--step"),
        (("--out",), b"--out"),
        (("-m",), b"-m"),
    ],
    ids=lambda value: " ".join(value)[-30:] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_one_line_and_no_start(words: tuple[str, ...], says: bytes, tmp_path: Path):
    (tmp_path / "notes.txt").write_text("hello")
    (tmp_path / "notes.txt").chmod(0o600)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "theirs").touch()
    (tmp_path / "empty").mkdir()
    done = run(traced(*words), tmp_path)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"gpuprof: ") and done.stderr.count(b"\n") == 1 and says in done.stderr
    assert not (tmp_path / runfile.RUNS).exists()


def test_a_variable_sets_an_option(tmp_path: Path):
    done = run(traced("--out", "run", PYTHON, "-c", "pass"), tmp_path, env=environment(GPUPROF_TRACE_STEPS="7"))
    assert done.returncode == 0
    assert manifest_of(tmp_path / "run")["options"]["steps"] == 7


@pytest.mark.parametrize("flags", few(["-I", "-sE", "-u -S", "-W ignore -E"], ["-I", "-u -S"]))
def test_an_interpreter_that_shuts_us_out(flags: str, tmp_path: Path):
    done = run(traced(PYTHON, *flags.split(), "-c", "print(1)"), tmp_path)
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert done.stderr.count(b"\n") == 1 and b"not recorded" in done.stderr


@pytest.mark.parametrize("place", ["file in the way", "no room here"])
def test_where_no_folder_can_be_made(place: str, tmp_path: Path):
    (tmp_path / runfile.RUNS).touch()
    (tmp_path / "elsewhere").mkdir()
    cwd = tmp_path if place == "file in the way" else Path("/proc")
    done = run(traced(PYTHON, "-c", "print(1)"), cwd, env=environment(TMPDIR=str(tmp_path / "elsewhere")))
    assert (done.returncode, done.stdout) == (0, b"1\n")
    assert b"no run folder can be made here" in done.stderr and done.stderr.endswith(NOTHING)
    (folder,) = (tmp_path / "elsewhere").iterdir()
    assert manifest_of(folder)["status"] == "finished"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_where_nothing_can_be_written(tmp_path: Path):
    """The disk is full: the training still runs."""

    def full():
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    code = "import os; print('GPUPROF_RUN' in os.environ); raise SystemExit(3)"
    done = run(traced(PYTHON, "-c", code), tmp_path, preexec_fn=full)
    assert (done.returncode, done.stdout) == (3, b"False\n")
    assert done.stderr.count(b"\n") == 1 and b"this run is not recorded" in done.stderr
