"""`gpuprof report`: writes the diagnosis of a recording as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.diagnose import exit_code
from gpuprof.cli.export import choose, parsed
from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import say, write
from gpuprof.cli.shared.output_paths import check_place
from gpuprof.cli.shared.recordings import RECORDING, diagnose_given, given
from gpuprof.cli.shared.report_pages import pages_for, write_pages
from gpuprof.diagnosis.asked import Asked
from gpuprof.runfile import REPORT

if TYPE_CHECKING:
    from gpuprof.tracefile.recording import Recording


@click.command(short_help="Write the diagnosis as one HTML file.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=RECORDING)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help=f"Output file (default: {REPORT} in the run folder, or a file here named after the trace).",
)  # fmt: skip
@click.option("--step", metavar="REGEX", help="Name of the range or op that is a step; detected by default.")
@click.option("--skip", type=WholeNumber(0), default=0, metavar="N", help="Skip the first N steps.")
@click.option("--step-ms", type=float, metavar="MS", help="Step time measured without a profiler.")
@click.option(
    "--ranks", metavar="0,1",
    help="Of several ranks: write reports of these, or all, next to FILE and link them (default: a usual rank).",
)  # fmt: skip
@click.option("--roles", is_flag=True, help="Processes of different roles (trainer, generator) on one timeline.")
def command(
    paths: tuple[str, ...],
    output: Path | None,
    step: str | None,
    skip: int,
    step_ms: float | None,
    ranks: str | None,
    roles: bool,
) -> int:
    """Write the diagnosis of PATH as one self-contained HTML file.

    PATH is anything that gpuprof diagnose accepts: a run folder, a trace, several ranks. Without PATH: the latest run.
    Of several ranks the report shows the one that the others wait for, and links to a second report of a usual rank.
    Runs of a job's trainer and of its generator are put on one timeline.
    """
    recording = given(paths)
    if roles or recording.kind == "roles":
        if step or skip or step_ms or ranks is not None:
            raise click.UsageError("for roles on one timeline there is only --output")
        return _report_roles(recording, output)
    target = output or default_place(recording)
    to_stdout = str(output) == "-"
    if to_stdout and ranks is not None:
        raise click.UsageError("--ranks writes more files next to the report: name a file with -o")
    wanted = None if ranks is None else parsed(ranks)
    if not to_stdout:
        check_place(target, recording.files)
    diagnosis = diagnose_given(recording, Asked(step, skip, step_ms))
    if to_stdout:
        from gpuprof.report.page.html import render

        write(render(diagnosis))
        say("written to stdout")
    else:
        from gpuprof import diagnose
        from gpuprof.report.page.rank_pages import page_of

        chosen = pages_for(diagnosis, None if ranks is None else choose(diagnosis, wanted, recording))
        for one in chosen:
            check_place(page_of(target, one.rank), recording.files)
        first, *others = write_pages(diagnosis, target, chosen, lambda path: diagnose(path, step=step, skip=skip))
        say(f"report: {first}")
        for one in others:
            say(f"report of one rank: {one}")
    return exit_code(diagnosis, (), as_json=True)


def _report_roles(recording: Recording, output: Path | None) -> int:
    from gpuprof.diagnosis.roles.sources import diagnose_roles

    target = output or Path(f"roles.{REPORT}")
    if str(output) != "-":
        check_place(target, recording.files)
    found = diagnose_roles(recording)
    if str(output) == "-":
        from gpuprof.report.page.roles import render

        write(render(found))
        say("written to stdout")
        return 0
    from gpuprof.report.page.file import write_roles

    write_roles(found, target)
    say(f"report: {target}")
    return 0


def default_place(recording: Recording) -> Path:
    """`report.html` in the folder of a run or of ranks, else in the working directory, named after the recording."""
    if recording.folder is not None:
        return recording.folder / REPORT
    return Path(f"{recording.name}.{REPORT}")
