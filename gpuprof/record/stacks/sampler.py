"""Samples the Python stacks of a training, from a separate process that reads them out of the training's memory.
A thread of the training could not: it needs the GIL, so it would see only the moments at which the GIL is released.
Requests come as lines of JSON on its stdin, a socket, from sampling.py in the training:

    {"check": …}  reads a stack that is known, and answers in a line: {"pid": …, "error": null | why}
    {"go": …}     samples from now on
    {"stop": …}   writes the samples into the run folder, and ends

It is not a child of the training, which might wait for any child; it ends when its stdin or the training ends.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import select
import signal
import sys
import time
from pathlib import Path
from typing import Any

from ...runfile import log, partial_of, whole_file
from ..base.code_paths import shortened
from .frame_layout import layout
from .python_stacks import CodeDescription, ProcessMemory, StackReader, Unreadable

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Calls, Convention, Count, Samples, Seconds


SCHEMA = "gpuprof.samples/1"
ATTEMPTS: Assumed[Calls] = 3
"""How often a stack that makes no sense is read."""
MOST_SAMPLES: Convention[Samples] = 20_000
LOOK_S: Assumed[Seconds] = 0.5
"""Seconds between two searches for autograd threads."""
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_AUTOGRAD = "pt_autograd"
"""torch's name of the threads that compute backward passes."""
MOST_WORKERS: Assumed[Count] = 256
_WORKER_FILE = "torch/utils/data/_utils/worker.py"
_AUTOGRAD_FILES = ("torch/autograd/", "torch/utils/checkpoint")


def main(folder: str, file: str) -> None:
    """Serves the training that writes to stdin; its samples go to this file of a run folder."""
    if os.fork():
        os._exit(0)
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    try:
        _serve(Path(folder), file)
    except (BrokenPipeError, ProcessLookupError):
        pass
    except Exception as error:
        log(Path(folder), f"sampling ends early: {type(error).__name__}: {error}")


def _serve(folder: Path, file: str) -> None:
    requests, partial = _Requests(), partial_of(folder / file)
    try:
        _answer(requests, folder, file, partial)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _answer(requests: _Requests, folder: Path, file: str, partial: Path) -> None:
    sampler: Sampler | None = None
    for request in iter(requests.next, None):
        if "check" in request:
            sampler, error = None, None
            try:
                sampler = Sampler(request["check"])
                error = sampler.check(request["check"]["stack"])
            except PermissionError:
                error = DENIED
            except OSError as failed:
                error = failed.strerror or str(failed)
            except Unreadable:
                error = "its memory cannot be read"
            os.write(0, json.dumps({"pid": os.getpid(), "error": error}).encode() + b"\n")
        elif "go" in request and sampler is not None:
            partial.touch(0o600)  # from now on whoever reads the run knows that there will be samples
            sampler.sample(request["go"]["period_ns"], requests, request["go"]["workers"])
        elif "stop" in request and sampler is not None:
            found = sampler.document(request["stop"])
            with whole_file(folder / file, 0o600) as out:
                out.write(json.dumps(found, separators=(",", ":")).encode())
            return


class _Requests:
    """The lines that come on stdin, a socket."""

    def __init__(self) -> None:
        self._read = b""

    def wait(self, seconds: float) -> bool:
        """Whether there is a line, or the end of them, within this time."""
        return b"\n" in self._read or bool(select.select([0], [], [], seconds)[0])

    def next(self) -> dict[str, Any] | None:
        """The next line; None at the end."""
        while b"\n" not in self._read:
            data = os.read(0, 1 << 16)
            if not data:
                return None
            self._read += data
        line, _, self._read = self._read.partition(b"\n")
        return json.loads(line)


DENIED = "denied"
"""The system does not let one process read another's memory."""


class Sampler:
    """Samples one training. target: its pid, the thread that trains, and how to find its code objects."""

    def __init__(self, target: dict[str, Any]) -> None:
        self._pid, self._thread, self._roots = target["pid"], target["thread"], target["roots"]
        places = layout()
        if places is None:
            raise Unreadable
        self._by_number = not places.frames_are_objects
        self._reader = StackReader(ProcessMemory(self._pid), places, target["code_type"])
        self._workers: Workers | None = None
        self._root = 0
        self._others: list[int] = []
        self._samples: list[tuple[int, Any, Any]] = []
        self._unread = 0
        self._period_ns = self._begun_ns = self._ended_ns = 0

    def check(self, expected: list[list[Any]]) -> str | None:
        """Why the stacks of this Python cannot be read; None if they can. expected: the stack as the thread itself
        reports it: file, function and line of each call except the innermost ones, outermost first."""
        frames = self._reader.known(self._reader.frames(self._thread))
        found = [self._reader.place(*frame) for frame in reversed(frames)]
        for (code, line), (file, name, known) in zip(found, expected, strict=False):
            if (code.file, code.name, line) != (file, name, known):
                return f"this Python keeps its stacks differently ({name} at line {known} reads as {code.name} {line})"
        if len(found) < len(expected):
            return "this Python keeps its stacks differently"
        self._root = frames[-1][0]
        return None

    # -- sampling

    def sample(self, period_ns: int, requests: _Requests, workers: bool) -> None:
        """Reads the stacks until there is a request, at random intervals of 0.5 to 1.5 periods, so that sampling does
        not lock to a rhythm of the training; what was read stays if the training cannot be read any more. workers: also
        read one DataLoader worker each time, in turn."""
        gc.disable()
        self._workers = Workers(self._pid, self._thread, self._root, self._reader) if workers else None
        self._period_ns, self._begun_ns = period_ns, time.monotonic_ns()
        due, look = self._begun_ns, 0
        chance = random.Random(0)
        while True:
            due = max(due + int(period_ns * chance.uniform(0.5, 1.5)), time.monotonic_ns() - period_ns)
            wait_s = max(due - time.monotonic_ns(), 0) / 1e9
            if requests.wait(wait_s) or len(self._samples) >= MOST_SAMPLES:
                break
            now = time.monotonic_ns()
            try:
                if now >= look:
                    self._find_others()
                    if self._workers is not None:
                        self._workers.find()
                    look = now + int(LOOK_S * 1e9)
                self._take(now)
            except OSError:  # the training has ended, or the stretch has and it may not be read any more
                break
            if self._workers is not None:
                self._workers.take(now)
        self._ended_ns = time.monotonic_ns()
        gc.enable()

    def _take(self, now: int) -> None:
        main = self._read(self._thread, self._root)
        if main is None:
            self._unread += 1
            return
        other = None
        for thread in self._others:
            other = self._read(thread, 0)
            if other:
                break
        self._samples.append((now, main, other or None))

    def _read(self, thread: int, root: int) -> Any:
        """The frames of a thread; None if they make no sense. root: its expected outermost function."""
        return read(self._reader, thread, root)

    def _find_others(self) -> None:
        """Finds autograd's threads: by name; in Python 3.10 by what they run."""
        try:
            threads = self._reader.threads(self._thread)
        except Unreadable:
            return
        self._others = [
            state for state, number in threads if state != self._thread and self._is_autograd(state, number)
        ]

    def _is_autograd(self, state: int, number: int) -> bool:
        if self._by_number:
            try:
                return Path(f"/proc/{self._pid}/task/{number}/comm").read_text().startswith(_AUTOGRAD)
            except OSError:
                return False
        frames = self._read(state, 0)
        if not frames:
            return False
        code, _ = self._reader.place(*frames[-1])
        return any(part in code.file for part in _AUTOGRAD_FILES)

    # -- what is written

    def document(self, steps: dict[str, Any]) -> dict[str, Any]:
        """The samples as samples.rank<N>.json has them: a tree of calls, and per sample a node of it."""
        tree = _Tree(self._reader, self._roots)
        begun = self._begun_ns
        rows = [[at - begun, tree.node(main), tree.node(other) if other else -1] for at, main, other in self._samples]
        found = {} if self._workers is None else self._workers.document(tree, begun)
        return {
            "schema": SCHEMA,
            "python": ".".join(map(str, sys.version_info[:3])),
            "period_ns": self._period_ns,
            "begun_ns": begun,
            "ended_ns": self._ended_ns,
            "unread": self._unread,
            **steps,
            "functions": tree.functions,
            "nodes": tree.nodes,
            "samples": rows,
            **found,
        }


def read(reader: StackReader, thread: int, root: int) -> tuple[tuple[int, int], ...] | None:
    """The frames of a thread; None if they make no sense. root: its expected outermost function, or 0."""
    for _ in range(ATTEMPTS):
        try:
            frames = reader.known(reader.frames(thread))
        except Unreadable:
            continue
        if not root or (frames and frames[-1][0] == root):
            return tuple(frames)
    return None


class Workers:
    """The DataLoader's worker processes. Only workers forked by the training thread are read: their stack is at the
    same address as that thread's and begins with the same functions."""

    def __init__(self, pid: int, thread: int, root: int, reader: StackReader) -> None:
        self._pid, self._thread, self._root, self._parent = pid, thread, root, reader
        self._readers: dict[int, StackReader] = {}
        """The reader of each living worker, by pid."""
        self._numbers: dict[int, int] = {}
        """Number of each worker so far, by pid."""
        self._samples: list[tuple[int, int, Any]] = []
        self._turn = 0

    def find(self) -> None:
        """Looks for new ones among the children of the training."""
        for pid in _children(self._pid):
            if pid not in self._readers and len(self._numbers) < MOST_WORKERS:
                reader = self._parent.of_fork(ProcessMemory(pid))
                frames = self._read(reader)
                if frames and any(_is_worker(reader.place(*frame)[0]) for frame in frames):
                    self._numbers.setdefault(pid, len(self._numbers))
                    self._readers[pid] = reader

    def take(self, now: int) -> None:
        """Samples the next worker in turn."""
        if not self._readers:
            return
        self._turn = (self._turn + 1) % len(self._readers)
        pid = list(self._readers)[self._turn]
        frames = self._read(self._readers[pid])
        if frames:
            self._samples.append((now, pid, (self._readers[pid], frames)))
        elif not os.path.exists(f"/proc/{pid}"):
            del self._readers[pid]

    def _read(self, reader: StackReader) -> Any:
        try:
            return read(reader, self._thread, self._root)
        except OSError:  # it is gone, or may not be read
            return None

    def document(self, tree: _Tree, begun_ns: int) -> dict[str, Any]:
        """The workers' part of samples.rank<N>.json."""
        return {
            "workers": len(self._numbers),
            "worker_samples": [
                [at - begun_ns, self._numbers[pid], tree.node(frames, reader)]
                for at, pid, (reader, frames) in self._samples
            ],
        }


def _children(pid: int) -> list[int]:
    """Child processes that have not been reaped."""
    found: list[int] = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            found += [int(word) for word in path.read_text().split()]
        except OSError:  # the thread is gone
            continue
    return found


def _is_worker(code: CodeDescription) -> bool:
    return code.name == "_worker_loop" and code.file.endswith(_WORKER_FILE)


class _Tree:
    """Call tree: one node for each (chain of callers, function, line)."""

    def __init__(self, reader: StackReader, roots: list[str]) -> None:
        self._reader, self._roots = reader, roots
        self.functions: list[list[Any]] = []
        """Per function: owner (code_paths.py), file, name, first line."""
        self.nodes: list[list[int]] = []
        """Per node: the node that calls it (-1 for none), the function, the line."""
        self._function_of: dict[Any, int] = {}
        self._node_of: dict[tuple[int, int, int], int] = {}
        self._known: dict[Any, int] = {}

    def node(self, frames: Any, reader: StackReader | None = None) -> int:
        """The node of a stack's innermost call; -1 for an empty stack. reader: of its process; None: the training."""
        reader = reader or self._reader
        found = self._known.get((reader, frames))
        if found is None:
            found = -1
            for frame in reversed(frames):
                code, line = reader.place(*frame)
                function = self._function_of.get(code)
                if function is None:
                    function = self._function_of[code] = len(self.functions)
                    kind, path = shortened(code.file, self._roots)
                    self.functions.append([kind, path, code.name, code.first_line])
                key = (found, function, line)
                found = self._node_of.get(key, -1)
                if found < 0:
                    found = self._node_of[key] = len(self.nodes)
                    self.nodes.append(list(key))
            self._known[reader, frames] = found
        return found
