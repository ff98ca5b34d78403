"""`gpuprof demo`: the diagnosis and the report of a recording that comes with the package."""

from __future__ import annotations

from importlib.resources import as_file
from pathlib import Path

import click

from gpuprof.cli.diagnose import exit_code
from gpuprof.cli.shared.output import say, show
from gpuprof.cli.shared.output_paths import check_place
from gpuprof.cli.shared.read_ahead import DEMO, DEMO_UNPROFILED_MS
from gpuprof.cli.shared.recordings import diagnose_given, given
from gpuprof.diagnosis.asked import Asked
from gpuprof.errors import GpuprofError

REPORT = "gpuprof-demo.html"

AFTERWARDS = (
    "that was one step of a small LoRA fine-tune on an H200, timed with and without the profiler;"
    " now try your own: gpuprof trace train.py, or gpuprof diagnose your-trace.json.gz"
)


@click.command(short_help="Diagnose the demo recording included with gpuprof.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), default=REPORT, metavar="FILE",
    help=f"Where to write the report (default: {REPORT}).",
)  # fmt: skip
def command(output: Path) -> int:
    """Diagnose the demo recording included with gpuprof: a small LoRA fine-tune on one GPU."""
    from gpuprof.report.page.file import write_report
    from gpuprof.report.terminal.terminal import render

    check_place(output, ())
    if not DEMO.is_file():
        raise GpuprofError(f"this installation lacks its demo recording (gpuprof/data/{DEMO.name})")
    with as_file(DEMO) as path:
        diagnosis = diagnose_given(given(str(path)), Asked(step_ms=DEMO_UNPROFILED_MS))
    show(lambda width: render(diagnosis, width, next_step=""))
    write_report(diagnosis, output)
    say(f"report: {output}")
    say(AFTERWARDS)
    return exit_code(diagnosis, (), as_json=False)
