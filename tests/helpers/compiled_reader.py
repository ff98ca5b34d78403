"""The trace reader, compiled while the workers of a test session collect: in a fresh clone that takes ten seconds."""

from __future__ import annotations

import atexit
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from helpers.paths import ROOT

LOCK = "TESTS_READER_LOCK"
"""Variable that names the file which the compiling process holds locked, for the workers of its session."""
COMPILES = """
from gpuprof.tracefile.kineto import scan, stream
scan.is_compiled() or stream.compile_reader()
"""


def begin() -> None:
    """Starts to compile it, in a process of its own. Where that fails, who waits for it compiles it itself."""
    handle, path = tempfile.mkstemp(prefix="reader-")
    atexit.register(Path(path).unlink, missing_ok=True)
    fcntl.flock(handle, fcntl.LOCK_EX)  # held until that process, which shares the handle, has ended
    subprocess.Popen(
        [sys.executable, "-c", COMPILES], cwd=ROOT, pass_fds=[handle], stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(handle)
    os.environ[LOCK] = path


def wait() -> None:
    """Returns once it is compiled, and loaded in this process."""
    from gpuprof.tracefile.kineto.stream import compile_reader

    if LOCK in os.environ:
        with Path(os.environ[LOCK]).open() as file:
            fcntl.flock(file, fcntl.LOCK_SH)
    compile_reader()
