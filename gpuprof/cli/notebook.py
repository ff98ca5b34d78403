"""`%load_ext gpuprof`: `%%gpuprof` records what a cell trains, `%gpuprof diagnose` shows a run's diagnosis."""

from __future__ import annotations

import contextlib
import shlex
from typing import Any

from gpuprof.cli import trace_without_click
from gpuprof.errors import GpuprofError

USAGE = """\
%%gpuprof [--steps N] [--settle N] [--baseline N] [--no-sampling] [--out DIR] …   records what the cell trains
%gpuprof diagnose [RUN]      why a step of a run takes as long as it does; the latest if none is named
%gpuprof compare RUN RUN     where the difference between two runs comes from"""
_OPTIONS = ("settle", "baseline", "steps", "stacks", "memory", "sampling", "shapes", "modules", "nvtx")
"""Options of `gpuprof trace` that `%%gpuprof` takes."""


def register(shell: Any) -> None:
    """Adds the magics to an IPython shell."""

    def gpuprof(line: str, cell: str | None = None) -> Any:
        """Record what a cell trains (%%gpuprof), or show a run (%gpuprof diagnose)."""
        from IPython.core.error import UsageError  # pyright: ignore[reportMissingImports]

        try:
            found, failed = (_line(line), None) if cell is None else _cell(shell, line, cell)
        except (GpuprofError, OSError) as error:
            raise UsageError(" ".join(str(error).split())) from None
        if failed is not None:
            _fail(failed, found)
        return found

    gpuprof.__doc__ = USAGE
    shell.register_magic_function(gpuprof, "line_cell", "gpuprof")


def _line(line: str) -> Any:
    import gpuprof

    words = shlex.split(line)
    if words[:1] == ["diagnose"] and len(words) <= 2:
        return gpuprof.diagnose(words[1] if len(words) == 2 else None)
    if words[:1] == ["compare"] and len(words) == 3:
        return gpuprof.compare(words[1], words[2])
    print(USAGE)
    return None


def _cell(shell: Any, line: str, cell: str) -> tuple[Any, BaseException | None]:
    """Runs the cell unchanged. Returns the diagnosis of what it trained, and what it raised."""
    import gpuprof
    from gpuprof.cli.shared.output import say
    from gpuprof.record.entry.cell import CellRecorder

    request = trace_without_click.parse([*shlex.split(line), "cell"])
    if request is None or request.module is not None or list(request.words) != ["cell"]:
        raise GpuprofError(f"{line!r} is not understood; {USAGE.splitlines()[0]}")
    recorder = CellRecorder(out=request.out, **{name: request.options[name] for name in _OPTIONS})
    if recorder.is_recorded_around:
        say("this kernel runs under gpuprof trace, which records it; the cell runs as usual")
        return None, _run(shell, cell)
    recorder.begin(list(shell.user_ns.values()))
    failed: str | None = "interrupted"
    try:
        error = _run(shell, cell)
        failed = None if error is None else type(error).__name__
    finally:
        recorder.end(failed is not None)
    said, has_any = recorder.outcome(failed)
    if said:
        say(said)
    return gpuprof.diagnose(recorder.folder) if has_any else None, error


def _run(shell: Any, cell: str) -> BaseException | None:
    """Runs a cell; what it raised. Raises GpuprofError if it cannot be run, which IPython has explained."""
    result = shell.run_cell(cell, store_history=False)
    if result.error_before_exec is not None:
        raise GpuprofError(f"the cell did not run ({type(result.error_before_exec).__name__})")
    return result.error_in_exec


def _fail(error: BaseException, found: Any) -> None:
    """Shows the diagnosis and raises what ended the cell, so that the cells after it do not run either. IPython has
    printed its traceback, so that only its last line is shown again."""
    from IPython.display import display  # pyright: ignore[reportMissingImports]

    if found is not None:
        display(found)

    def nothing() -> list[str]:
        del error._render_traceback_  # type: ignore[attr-defined]  # `%tb` shows all of it
        return []

    with contextlib.suppress(AttributeError):
        error._render_traceback_ = nothing  # type: ignore[attr-defined]
    raise error
