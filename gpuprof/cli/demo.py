"""`gpuprof demo`: the diagnosis of a recording that comes with the package."""

from __future__ import annotations

from importlib.resources import as_file, files

import click

from gpuprof.cli.diagnose import diagnose_file, exit_code
from gpuprof.cli.output import say, show
from gpuprof.errors import GpuprofError

RECORDING = "demo.json.gz"


@click.command(short_help="Diagnose a recording that comes with gpuprof.")
def command() -> int:
    """Diagnose a recording that comes with gpuprof: a small LoRA fine-tune on one GPU."""
    from gpuprof.report.terminal import render

    bundled = files("gpuprof") / "data" / RECORDING
    if not bundled.is_file():
        raise GpuprofError(f"this installation lacks its demo recording (gpuprof/data/{RECORDING})")
    with as_file(bundled) as path:
        diagnosis = diagnose_file(path)
    show(lambda width: render(diagnosis, width, next_step=""))
    say("this was a small LoRA fine-tune, recorded on one GPU; now yours: gpuprof diagnose your-trace.json.gz")
    return exit_code(diagnosis, (), as_json=False)
