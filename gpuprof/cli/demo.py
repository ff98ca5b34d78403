"""`gpuprof demo`: the diagnosis of a recording that comes with the package."""

from __future__ import annotations

from importlib.resources import as_file, files

import click

from gpuprof.cli.diagnose import diagnose_file, exit_code
from gpuprof.cli.output import say, show
from gpuprof.errors import GpuprofError

RECORDING = "demo.json.gz"
UNPROFILED_MS = 81.0
"""The same step timed without a profiler: 70.2–91.9 ms in fresh processes, the middle of it."""

AFTERWARDS = (
    "this was one step of a small LoRA fine-tune on an H200, timed with the profiler and without;"
    " now yours: gpuprof trace train.py, or gpuprof diagnose your-trace.json.gz"
)


@click.command(short_help="Diagnose a recording that comes with gpuprof.")
def command() -> int:
    """Diagnose a recording that comes with gpuprof: a small LoRA fine-tune on one GPU."""
    from gpuprof.report.terminal import render

    bundled = files("gpuprof") / "data" / RECORDING
    if not bundled.is_file():
        raise GpuprofError(f"this installation lacks its demo recording (gpuprof/data/{RECORDING})")
    with as_file(bundled) as path:
        diagnosis = diagnose_file(path, step_ms=UNPROFILED_MS)
    show(lambda width: render(diagnosis, width, next_step=""))
    say(AFTERWARDS)
    return exit_code(diagnosis, (), as_json=False)
