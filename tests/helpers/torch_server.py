"""Runs scripts in forks of a Python that has imported torch: `python torch_server.py SOCKET`.

A request is what an interpreter starts with: arguments, environment, working directory, umask, and the descriptors 0 to
2. The answer is the exit code, or a signal below zero. When its standard input ends, it removes the socket's folder and
ends, too.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

READY = ("torch", "torch.optim", "torch.optim.optimizer", "torch.profiler", "torch.utils.data", "torch._dynamo")
"""What is imported before the first request; the last takes as long as torch, and an optimizer imports it."""
LENGTH = 8
"""Bytes that say how long a request is."""


def serve(place: str) -> dict[str, Any]:
    """Answers requests; returns in a process that is to become one of them."""
    for name in READY:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # a fork would look through, and so copy, 300,000 objects of torch each time it looks for garbage
    assert len([*Path("/proc/self/task").iterdir()]) == 1, "a fork has one thread only: torch would wait for the others"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"{place}.new")
        listening.listen()
        Path(f"{place}.new").rename(place)
        while True:
            ready, _, _ = select.select([listening, 0], [], [], 5)
            while reap():
                pass
            if 0 in ready:
                shutil.rmtree(Path(place).parent, ignore_errors=True)
                os._exit(0)
            if listening in ready:
                connection, _ = listening.accept()
                if os.fork() == 0:
                    listening.close()
                    return keep(connection)
                connection.close()


def reap() -> bool:
    """Whether a child had ended and was reaped."""
    try:
        return os.waitpid(-1, os.WNOHANG)[0] > 0
    except ChildProcessError:
        return False


def keep(connection: socket.socket) -> dict[str, Any]:
    """Forks once more and answers when that child has ended, or kills it when no one waits any longer.

    Returns in the child.
    """
    head, descriptors, _, _ = socket.recv_fds(connection, LENGTH, 3)
    length, text = int.from_bytes(head, "big"), b""
    while len(text) < length:
        text += connection.recv(length - len(text))
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        connection.close()
        for number, descriptor in enumerate(descriptors):
            os.dup2(descriptor, number)
            os.close(descriptor)
        return json.loads(text)
    for descriptor in descriptors:
        os.close(descriptor)
    ended = os.pidfd_open(child)
    ready, _, _ = select.select([ended, connection], [], [])
    if ended not in ready:
        for kill in (os.kill, os.killpg):  # its group is not there before it has made one
            with contextlib.suppress(ProcessLookupError):
                kill(child, signal.SIGKILL)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    with contextlib.suppress(BrokenPipeError):
        connection.send(str(status).encode())
    os._exit(0)


def become(request: dict[str, Any]) -> None:
    """Runs a script as the interpreter does, sitecustomize first."""
    os.chdir(request["cwd"])
    os.umask(request["umask"])
    os.environ.clear()
    os.environ.update(request["env"])
    script, *_ = sys.argv = request["argv"]
    sys.orig_argv = [sys.executable, *sys.argv]
    tempfile.tempdir = None  # found out for the server's own environment
    path = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:1] = [str(Path(script).parent.absolute()), *path]
    with contextlib.suppress(ImportError):
        importlib.import_module("sitecustomize")
    tell_who_waits_for_torch()
    main = types.ModuleType("__main__")
    main.__file__ = script
    main.__dict__["server"] = sys.modules["__main__"]  # or its names would go with it
    sys.modules["__main__"] = main
    code = []
    atexit.register(leave, os.getpid(), code)
    try:
        exec(compile(Path(script).read_bytes(), script, "exec"), main.__dict__)
        code.append(0)
    except SystemExit as leaving:
        code.append(leaving.code)
        raise
    except Exception:
        code.append(1)
        raise


def leave(pid: int, code: list[Any]) -> None:
    """The last of the exit handlers ends the process at once: to free all of torch takes a second.

    Not in what the script forked, nor after a KeyboardInterrupt, which is to end it by a signal.
    """
    if os.getpid() == pid and code:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit((code[0] or 0) & 0xFF if isinstance(code[0], int | None) else 1)


def tell_who_waits_for_torch() -> None:
    """Calls the functions that gpuprof's recorder registered for the import of torch."""
    optimizers = sys.modules["torch.optim.optimizer"]
    for finder in sys.meta_path:
        callback = getattr(finder, "_wanted", {}).pop(optimizers.__name__, None)
        if callback is not None:
            callback(optimizers)


if __name__ == "__main__":
    become(serve(sys.argv[1]))
