"""The processes of a training of which a benchmark asks steps, bare or traced, and what runs next to them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LOOP = str(Path(__file__).with_name("timed_loop.py"))


def environment() -> dict[str, str]:
    """The processes' environment: like that of a user who has compiled bytecode and no gpuprof options set."""
    left_out = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX", "PYTHONPROFILEIMPORTTIME")
    variables = {k: v for k, v in os.environ.items() if k not in left_out and not k.startswith("GPUPROF")}
    path = variables.get("PYTHONPATH")
    return variables | {"PYTHONPATH": f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)}


def trace_command(*options: str) -> tuple[str, ...]:
    """What stands before a command to trace it."""
    return (sys.executable, "-m", "gpuprof", "trace", *options)


class Training:
    """A process of benchmarks/timed_loop.py, or of another `loop`, bare or traced into `run`. It is started when the
    object is created, and waits until it is asked for steps."""

    def __init__(
        self, name: str, folder: Path, before: tuple[str, ...] = (), run: Path | None = None,
        loop: tuple[str, ...] = (LOOP,),
    ) -> None:  # fmt: skip
        self.run = run
        self.first: list[int] = []
        """Nanoseconds of its first steps, in which it is recorded."""
        self.read: list[int] = []
        """Nanoseconds of the steps until the recording had been read."""
        self._errors = (folder / "stderr").open("ab")
        self._process = subprocess.Popen(
            [*before, sys.executable, *loop, name],
            cwd=folder, env=environment(), text=True, bufsize=1,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
        )  # fmt: skip
        self._facts: dict[str, Any] | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """Who it is; waits until it has started."""
        facts = self._facts or self._answer()
        self._facts = facts
        return facts

    def steps(self, count: int) -> list[int]:
        """Runs this many steps; nanoseconds of each."""
        return self.ask(str(count))

    def ask(self, line: str) -> Any:
        """Its answer to a line."""
        assert self.facts
        assert self._process.stdin is not None
        self._process.stdin.write(f"{line}\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            said = Path(self._errors.name).read_text(errors="replace").strip().splitlines()
            raise RuntimeError(f"a training ended early: {said[-1] if said else f'exit {self._process.wait()}'}")
        return json.loads(line)

    def gpuprof_processes(self) -> list[int]:
        """The processes of gpuprof's that run next to the training, the launcher first; none where there is no
        /proc."""
        if self.run is None:
            return []
        return [pid for pid in _family(self._process.pid) if pid != self.facts["pid"]]

    def end(self) -> None:
        """Lets it come to its end."""
        self._process.communicate()
        self._errors.close()

    def __enter__(self) -> Training:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.returncode is None:
            self._process.terminate()  # the launcher passes it on
            self.end()


def _family(pid: int) -> Iterator[int]:
    """A process and its descendants, in order of age."""
    yield pid
    with contextlib.suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from _family(int(child))


@contextlib.contextmanager
def stopped(pids: Sequence[int]) -> Iterator[None]:
    """Holds processes up for a while."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def cpu_ns(pids: Sequence[int]) -> int:
    """CPU time that processes have taken so far."""
    total = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").glob("*"):
            with contextlib.suppress(OSError):
                total += int((thread / "schedstat").read_text().split()[0])
    return total
