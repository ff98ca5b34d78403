"""Runs gpuprof in a subprocess."""

from __future__ import annotations

import os
import sys
from pathlib import Path

_DIES = (
    "import ctypes, os; ctypes.CDLL(None).prctl(1, 15); "  # PR_SET_PDEATHSIG, SIGTERM
    "os.getppid() == {parent} or os._exit(143); "
)


def own_command(*words: str, with_parent: bool = False) -> list[str]:
    """The command that runs `gpuprof` with these words in this interpreter.
    with_parent: on Linux the process gets SIGTERM when the thread that starts it ends.
    This package is not put on PYTHONPATH: a training started by it would inherit the folder, and our packages with it.
    """
    root = str(Path(__file__).parents[2])
    start = f"import sys; sys.path[0] = {root!r}; from gpuprof.cli import main; sys.exit(main())"
    if with_parent and sys.platform.startswith("linux"):
        start = _DIES.format(parent=os.getpid()) + start
    return [sys.executable, "-c", start, *words]
