"""`gpuprof report`: a recording in, one HTML file out."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import click

from gpuprof.cli.diagnose import exit_code
from gpuprof.cli.output import say, write
from gpuprof.cli.output_paths import RECORDING, check_place
from gpuprof.cli.recordings import diagnose_file, latest, recording_name
from gpuprof.runfile import REPORT


@click.command(short_help="Write the diagnosis as one HTML file.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=RECORDING)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help=f"Output file (default: {REPORT} in the run folder, or a file here named after the trace).",
)  # fmt: skip
@click.option("--step", metavar="REGEX", help="Name of the range or op that is a step; detected by default.")
@click.option("--skip", type=click.IntRange(min=0), default=0, metavar="N", help="Skip the first N steps.")
@click.option("--step-ms", type=float, metavar="MS", help="Step time measured without a profiler.")
def command(paths: tuple[Path, ...], output: Path | None, step: str | None, skip: int, step_ms: float | None) -> int:
    """Write the diagnosis of PATH as one self-contained HTML file.

    PATH is anything that gpuprof diagnose accepts: a run folder, a trace, several ranks. Without PATH: the latest run.
    """
    paths = paths or (latest(),)
    target = output or default_place(paths[0])
    to_stdout = str(output) == "-"
    if not to_stdout:
        check_place(target, paths)
    diagnosis = diagnose_file(*paths, step=step, skip=skip, step_ms=step_ms)
    if to_stdout:
        from gpuprof.report.page.html import render

        write(render(diagnosis))
        say("written to stdout")
    else:
        from gpuprof.report.page.file import write_report

        write_report(diagnosis, target)
        say(f"report: {target}")
    return exit_code(diagnosis, (), as_json=True)


def default_place(recording: Path) -> Path:
    """`report.html` in the folder of a run or of ranks, else in the working directory, named after the recording."""
    from gpuprof.tracefile.run import find_run

    with suppress(OSError):  # of a name that no file can have; reading it says so
        if recording.is_dir():
            run = find_run(recording)
            return (run[0] if run else recording) / REPORT
    return Path(f"{recording_name(recording)}.{REPORT}")
