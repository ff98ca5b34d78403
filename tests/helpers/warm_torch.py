"""A Python that has imported torch already, so that a training starts in milliseconds instead of seconds.

Scripts run in forks of one server a test process. Where the import of torch itself matters (what gpuprof does when it
comes, how long it takes, in which order libraries come), or a command starts its own interpreters, take
`sys.executable`.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from helpers.started import wait_for

CLIENT, SERVER = (Path(__file__).with_name(f"torch_{name}.py") for name in ("client", "server"))

START_S = 120
"""Seconds that a server may take to import torch, on a machine that has other work."""


@cache
def warm_python() -> str:
    """The path of an executable named python; its server runs until this process ends."""
    folder = Path(tempfile.mkdtemp(prefix="torch-"))
    socket = folder / "socket"
    server = subprocess.Popen(
        [sys.executable, str(SERVER), str(socket)], cwd=folder, start_new_session=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": ""}, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
    )  # fmt: skip

    def stop() -> None:
        server.communicate()
        shutil.rmtree(folder, ignore_errors=True)

    atexit.register(stop)
    assert wait_for(lambda: socket.exists() or server.poll() is not None, START_S) and socket.exists(), "no server"
    python = folder / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{CLIENT}" "{socket}" "$@"\n')
    python.chmod(0o755)
    return str(python)
