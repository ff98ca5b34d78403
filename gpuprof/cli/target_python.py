"""The Python that a training would run under."""

from __future__ import annotations

import sys

from gpuprof.cli.shared.output import say


def target_python() -> str:
    """The interpreter that `gpuprof trace train.py` would use. Raises GpuprofError if none has torch."""
    from gpuprof.cli.trace import has_torch
    from gpuprof.errors import GpuprofError
    from gpuprof.record.launcher.command import CannotStart, resolve

    try:
        target = resolve((), "torch", sys.executable, has_torch)
    except CannotStart as error:
        raise GpuprofError(str(error)) from None
    for note in target.notes:
        say(note)
    return target.python or sys.executable
