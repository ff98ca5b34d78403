"""Samples the Python stacks of a training, by a process of its own that reads them out of its memory.

Never a thread of the training: one that needs the interpreter lock sees only the moments at which the lock is given
away. Requests come as lines of JSON on its stdin, a socket, from sampling.py in the training:

    {"check": …}  reads a stack that is known, and answers in a line: {"pid": …, "error": null | why}
    {"go": …}     samples from now on
    {"stop": …}   writes the samples into the run folder, and ends

It is no child of the training, whose waits for any child must not find it; it ends when its stdin or the training ends.
"""

from __future__ import annotations

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

from ..runfile import log, whole_file
from .code_paths import shortened
from .frame_layout import layout
from .python_stacks import Memory, StackReader, Unreadable

SCHEMA = "gpuprof.samples/1"
ATTEMPTS = 3
"""How often a stack is read that makes no sense."""
MOST_SAMPLES = 20_000
LOOK_S = 0.5
"""From one look for threads of autograd to the next."""
_IGNORED = ("SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT", "SIGUSR1", "SIGUSR2")
_AUTOGRAD = "pt_autograd"
"""torch's name of the threads that compute backward passes."""
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
    sampler: Sampler | None = None
    requests = _Requests()
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
            sampler.sample(request["go"]["period_ns"], requests)
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
    """Samples of one training. target: its pid, the thread that trains, and how to find its code objects."""

    def __init__(self, target: dict[str, Any]) -> None:
        self._pid, self._thread, self._roots = target["pid"], target["thread"], target["roots"]
        places = layout()
        if places is None:
            raise Unreadable
        self._by_number = not places.frames_are_objects
        self._reader = StackReader(Memory(self._pid), places, target["code_type"])
        self._root = 0
        self._others: list[int] = []
        self._samples: list[tuple[int, Any, Any]] = []
        self._unread = 0
        self._period_ns = self._begun_ns = self._ended_ns = 0

    def check(self, expected: list[list[Any]]) -> str | None:
        """Why the stacks of this Python cannot be read; None if they can. expected: what the thread says of its own
        stack: file, function and line of each call but the innermost ones, outermost first."""
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

    def sample(self, period_ns: int, requests: _Requests) -> None:
        """Reads the stacks until there is a request, at intervals that are 1 period on average and vary from half
        of one to one and a half, so that no rhythm of the training is met."""
        gc.disable()
        self._period_ns, self._begun_ns = period_ns, time.monotonic_ns()
        due, look = self._begun_ns, 0
        chance = random.Random(0)
        while True:
            due = max(due + int(period_ns * chance.uniform(0.5, 1.5)), time.monotonic_ns() - period_ns)
            wait_s = max(due - time.monotonic_ns(), 0) / 1e9
            if requests.wait(wait_s) or len(self._samples) >= MOST_SAMPLES:
                break
            now = time.monotonic_ns()
            if now >= look:
                self._find_others()
                look = now + int(LOOK_S * 1e9)
            self._take(now)
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
        """The frames of a thread; None where they make no sense. root: what its outermost function has to be."""
        for _ in range(ATTEMPTS):
            try:
                frames = self._reader.known(self._reader.frames(thread))
            except Unreadable:
                continue
            if not root or (frames and frames[-1][0] == root):
                return tuple(frames)
        return None

    def _find_others(self) -> None:
        """Which threads are autograd's: by their name; in Python 3.10 by what they run."""
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
        }


class _Tree:
    """Calls: a node per call of a line of a function out of the same chain of calls."""

    def __init__(self, reader: StackReader, roots: list[str]) -> None:
        self._reader, self._roots = reader, roots
        self.functions: list[list[Any]] = []
        """Per function: whose it is, its file, its name, its first line."""
        self.nodes: list[list[int]] = []
        """Per node: the node that calls it (-1 for none), the function, the line."""
        self._function_of: dict[Any, int] = {}
        self._node_of: dict[tuple[int, int, int], int] = {}
        self._known: dict[Any, int] = {}

    def node(self, frames: Any) -> int:
        """The node of a stack's innermost call; -1 for an empty stack."""
        found = self._known.get(frames)
        if found is None:
            found = -1
            for frame in reversed(frames):
                code, line = self._reader.place(*frame)
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
            self._known[frames] = found
        return found
