"""Prints lines to stderr without breaking a progress bar of the training."""

from __future__ import annotations

import sys


def say(message: str) -> None:
    """Writes one line. Never raises, as stderr may be closed."""
    line = f"gpuprof: {message}"
    try:
        bars = sys.modules.get("tqdm.std") or sys.modules.get("tqdm")
        if bars is not None and getattr(bars.tqdm, "_instances", None):
            bars.tqdm.write(line, file=sys.stderr)  # clears the bars, writes, draws them again
        else:
            sys.stderr.write(line + "\n")
        sys.stderr.flush()
    except Exception:
        pass
