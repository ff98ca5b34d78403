"""A Python that has imported torch already, so that a training starts in milliseconds instead of seconds.

Scripts run in forks of one server, which all workers of a test session share. Where the import of torch itself matters
(what gpuprof does when it comes, how long it takes, in which order libraries come), or a command starts its own
interpreters, take `sys.executable`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest

from helpers.once import once
from helpers.started import wait_for

CLIENT, SERVER = (Path(__file__).with_name(f"torch_{name}.py") for name in ("client", "server"))

START_S = 120
"""Seconds that a server may take to import torch, on a machine that has other work."""
PLACE, HOLD = "place", "hold"
"""The file that says where the server is, and the pipe in its folder that ends it once no worker holds it open."""

_folders: list[pytest.TempPathFactory] = []


def share_with_workers(folders: pytest.TempPathFactory) -> None:
    """From now on the server is that of the session, whichever worker starts it."""
    _folders[:] = [folders]


@cache
def warm_python() -> str:
    """The path of an executable named python. Its server runs until all processes that have asked for it have ended,
    and then removes its folder."""
    with tempfile.TemporaryDirectory() as own:
        folder = once(_folders[0], "torch", _start) if _folders else Path(own)
        if not _folders:
            _start(folder)
        place = Path((folder / PLACE).read_text())
    try:
        os.open(place / HOLD, os.O_WRONLY | os.O_NONBLOCK)  # never closed, but for the end of this process
    except OSError:  # whoever held it has ended already
        warm_python.cache_clear()
        _folders.clear()
        return warm_python()
    return str(place / "python")


def _start(folder: Path) -> None:
    """Starts a server in a folder of its own, as a socket needs a short path, and notes in `folder` where that is."""
    place = Path(tempfile.mkdtemp(prefix="torch-"))
    os.mkfifo(place / HOLD)
    socket, end = place / "socket", os.open(place / HOLD, os.O_RDONLY | os.O_NONBLOCK)
    os.open(place / HOLD, os.O_WRONLY)
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(socket)], cwd=place, start_new_session=True, stdin=end,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(end)
    assert wait_for(lambda: socket.exists() or server.poll() is not None, START_S) and socket.exists(), "no server"
    python = place / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{CLIENT}" "{socket}" "$@"\n')
    python.chmod(0o755)
    (folder / PLACE).write_text(str(place))
