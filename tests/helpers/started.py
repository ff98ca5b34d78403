"""Programs run under `gpuprof trace`, without torch."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpuprof import runfile
from helpers.paths import ROOT

PYTHON = sys.executable

UNTIL_TOLD = """
import select, sys
while not select.select([sys.stdin], [], [], 0.05)[0]:
    pass
"""
"""Waits for a line or the end of its input.

Not by reading it: a signal that comes between Python's last look for one and the system's call for the input is only
seen once that call returns.
"""

COUNTS = f"""
import os, signal, sys
seen = {{}}
def count(number, frame):
    name = signal.Signals(number).name
    seen[name] = seen.get(name, 0) + 1
    os.write(1, f"got {{name}}\\n".encode())
for name in sys.argv[1:]:
    signal.signal(getattr(signal, name), count)
print("ready", os.getpid(), flush=True)
{UNTIL_TOLD}
sys.stdin.readline()
print(seen, flush=True)
"""


def traced(*words: object) -> list[str]:
    """The command line that records `words`."""
    return [PYTHON, "-m", "gpuprof", "trace", *map(str, words)]


def environment(**more: str) -> dict[str, str]:
    """Nothing of this shell's GPUPROF_*, and our package where Python finds it."""
    clean = {k: v for k, v in os.environ.items() if not k.startswith("GPUPROF_") and k != "COLUMNS"}
    folder = str(Path(PYTHON).parent)
    return {**clean, "PYTHONPATH": str(ROOT), "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}", **more}


def run(command: Sequence[object], cwd: Path, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs a command to its end."""
    options = {"env": environment(), "capture_output": True, "timeout": 60, **options}
    if "input" not in options and "stdin" not in options:
        options["stdin"] = subprocess.DEVNULL
    return subprocess.run([str(word) for word in command], cwd=cwd, **options)


def finished(
    command: Sequence[object], *, timeout: float, input: Any = None, capture_output: bool = True, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` in a session of its own, all of which is killed at the end of the time.

    What a killed launcher has started would live on, with the pipes that are read here.
    """
    words = [str(word) for word in command]
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    if input is not None:
        options["stdin"] = subprocess.PIPE
    with subprocess.Popen(words, start_new_session=True, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
    return subprocess.CompletedProcess(words, process.returncode, out, err)


class Started:
    """A process with which a test communicates; it is killed at the end of a `with`."""

    def __init__(self, command: Sequence[object], cwd: Path, before: Callable[[], object] | None = None) -> None:
        def prepare() -> None:
            os.setpgid(0, 0)
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            if before:
                before()

        self.process = subprocess.Popen(
            [str(word) for word in command], cwd=cwd, env=environment(), preexec_fn=prepare,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def __enter__(self) -> Started:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.communicate()

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().decode().strip()

    def send(self, number: int, to_group: bool) -> None:
        (os.killpg if to_group else os.kill)(self.process.pid, number)

    def end(self, text: bytes = b"", timeout: float = 30) -> tuple[int, bytes, bytes]:
        out, err = self.process.communicate(text, timeout)
        return self.process.returncode, out, err


def state(pid: int) -> str:
    """The letter that the kernel has for a process; X if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True


def manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest of a run."""
    found = runfile.read_json(folder / runfile.MANIFEST)
    assert found is not None
    return found


def only_run(cwd: Path) -> Path:
    """The one run that was recorded in a folder."""
    (folder,) = [path for path in (cwd / runfile.RUNS).iterdir() if not path.is_symlink()]
    return folder
