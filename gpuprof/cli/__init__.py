"""The command line: one file per command; each parses, calls the API and prints."""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gpuprof.cli.trace_without_click import TraceRequest

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; no exception leaves it."""
    if arguments is None:
        from gpuprof.cli.quick_dataclasses import compile_methods_when_called

        compile_methods_when_called()
        _without_scipy()
        _with_fewer_collections()
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["trace"]:
        from gpuprof.cli import trace_without_click

        request = trace_without_click.parse(words[1:])
        if request is not None:
            return _trace(request)
    from gpuprof.cli.entry import main

    return main(words)


def _without_scipy() -> None:
    """Keeps numba from importing scipy for linear algebra, which no kernel here uses: that saves 0.1 s in every command
    that compares or diagnoses. Only for processes that run nothing but the command."""
    sys.modules.setdefault("scipy", None)  # type: ignore[arg-type]


def _with_fewer_collections() -> None:
    """A command creates millions of long-lived objects: collecting garbage after every 700 new ones, Python's default,
    took an eighth of the demo's time. The collection at the end of the process, of which nothing is used any more, took
    0.1 s; frozen objects are left out of it."""
    gc.set_threshold(100_000, 20, 100)
    atexit.register(gc.freeze)


def _trace(request: TraceRequest) -> int:
    """A plain `gpuprof trace`, without click; errors are handled as in `entry`."""
    from gpuprof.cli import trace
    from gpuprof.errors import GpuprofError

    try:
        return trace.run(request)
    except GpuprofError as error:
        from gpuprof.cli.shared.output import say

        say(str(error))
        return error.exit_code
    except Exception as error:
        from gpuprof.cli.shared.output import say

        say(f"unexpected {type(error).__name__}: {error}; GPUPROF_DEBUG=1 shows where, please report it")
        return 2
    except KeyboardInterrupt:  # before the target was started
        return 130
