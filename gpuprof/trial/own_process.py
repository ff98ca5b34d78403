"""gpuprof in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path


def own_command(*words: str) -> list[str]:
    """What runs `gpuprof` with these words in this interpreter.

    This package is not put on PYTHONPATH: a training started by it would inherit the folder, and with it our packages.
    """
    root = str(Path(__file__).parents[2])
    start = f"import sys; sys.path[0] = {root!r}; from gpuprof.cli import main; sys.exit(main())"
    return [sys.executable, "-c", start, *words]
