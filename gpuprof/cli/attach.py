"""`gpuprof attach`: lists armed trainings, and records some steps of one that runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import say, show, write
from gpuprof.errors import GpuprofError
from gpuprof.record.base.options import LARGEST_NUMBER, STEPS
from gpuprof.units import GB, Assumed, Convention, Seconds

if TYPE_CHECKING:
    from gpuprof.attach.jobs import ArmedProcess
    from gpuprof.attach.opened import Opened
    from gpuprof.diagnosis.result.diagnosis import Diagnosis

DISK_GB: Convention[GB] = 2.0
"""GB that a watch keeps by default: a few dozen windows of most fine-tunes."""
MOST_DISK_GB: Convention[GB] = 1e6
LEAVING_S: Assumed[Seconds] = 10.0
"""After the verdict the job times some more steps to see whether it is as fast as before, for at most this long."""


@click.command(short_help="Record steps of a training that runs already.")
@click.argument("place", metavar="[PID|RUN]", required=False)
@click.option(
    "--steps",
    type=WholeNumber(1, LARGEST_NUMBER),
    metavar="N",
    help=f"Record N steps (default {STEPS}, fewer if a step has many ops).",
)
@click.option(
    "--baseline",
    type=WholeNumber(1, LARGEST_NUMBER),
    metavar="N",
    help="Time N steps first, twice (default automatic).",
)
@click.option(
    "--stacks", type=WholeNumber(1, LARGEST_NUMBER), metavar="N", help="Then record N more steps with Python stacks."
)
@click.option("--out", metavar="DIR", help="Run folder, new or empty (default gpuprof-runs/DATE_NAME_PID).")
@click.option("--no-report", is_flag=True, help="Write no report.html into the run folder.")
@click.option("--watch", is_flag=True, help="Watch the step time until the job ends; record when it changes.")
@click.option(
    "--disk",
    type=click.FloatRange(min=0, min_open=True),
    default=DISK_GB,
    metavar="GB",
    show_default=True,
    help="With --watch: keep recordings of this many GB at most.",
)
@click.option("--python-path", is_flag=True, help="Print the folder to put on PYTHONPATH to arm every Python.")
@click.option("--json", "as_json", is_flag=True, help="Print the diagnosis, or the list of jobs, as JSON.")
def command(
    place: str | None,
    out: str | None,
    no_report: bool,
    watch: bool,
    disk: float,
    python_path: bool,
    as_json: bool,
    **options: int | None,
) -> int:
    """Record some steps of a training that is running, and print why they take as long as they do.

    Without PID: the armed jobs of this user on this machine. A job is armed by gpuprof trace --on-demand TARGET, or by
    gpuprof.on_demand() in its code. PID: a process, or the launcher of several: all its ranks on this machine record
    the same steps. RUN: the folder of a run whose processes still run. Afterwards the job is as it was before.
    """
    if not sys.platform.startswith("linux"):
        raise GpuprofError("gpuprof attach runs on Linux only; gpuprof diagnose reads recordings on any system")
    if python_path:
        from gpuprof.record.launcher.target_environment import INJECT

        write(f"{INJECT}\n")
        return 0
    if not disk <= MOST_DISK_GB:
        raise click.UsageError(f"--disk is a number of GB, {MOST_DISK_GB:,.0f} at most")
    if watch and (as_json or out is not None or place is None):
        raise click.UsageError("--watch takes a PID, writes a folder for each recording, and prints text")
    if place is None:
        return _list(as_json)
    from gpuprof.attach.joining import ranks_named

    ranks = ranks_named(place, say)
    chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    if no_report:
        chosen["report"] = False
    if watch:
        return _watch(ranks, chosen, disk)
    from gpuprof.attach.opened import open_recording

    opened = open_recording(ranks, chosen, out)
    say(f"{_whom(ranks)}: recording into {opened.folder}")
    diagnosis = read(opened, as_json)
    return 2 if diagnosis.quality.status == "unusable" else 0


def _whom(ranks: list[ArmedProcess]) -> str:
    first = ranks[0]
    here = f", {len(ranks)} of {first.world_size} ranks" if first.world_size > 1 else ""
    return f"{first.name} (process {first.pid}{here}), step {first.step:,}"


def _watch(ranks: list[ArmedProcess], options: dict[str, Any], disk_gb: float) -> int:
    """Watches until the job ends, or Ctrl-C."""
    from gpuprof.attach.watching import Watcher
    from gpuprof.cli.shared.watch_recordings import Recordings
    from gpuprof.report.numbers import amount

    recordings = Recordings(ranks, options, round(disk_gb * 1e9), lambda opened: read(opened, False, quiet=True))
    watcher = Watcher(ranks[0], recordings, say)
    say(f"{_whom(ranks)}: watching its step time (Ctrl-C ends that)")
    try:
        watcher.run()
        why = "the job has ended"
    except KeyboardInterrupt:
        why = "the watch ends"
    recorded = amount(len(recordings.folders), "recording")
    say(f"{why} after {watcher.steps:,} steps: {amount(watcher.changes, 'change')} of the step time, {recorded}")
    return 0


def read(opened: Opened, as_json: bool, quiet: bool = False) -> Diagnosis:
    """Follows a recording to its end, prints its verdict unless quiet, and leaves the job. Raises GpuprofError if there
    is no recording."""
    status = "failed"
    try:
        opened.follow(say)
        diagnosis = _diagnose(opened.folder, as_json, quiet)
        status = "finished"
    except KeyboardInterrupt:
        status = "interrupted"
        say("the recording is called off")
        raise
    finally:
        left = opened.leave(LEAVING_S) if status == "finished" else opened.call_off()
        opened.close(status)
        if not left:
            say("the job has not yet removed its hooks: it does so at the end of its step")
    _finish(opened.folder, diagnosis)
    return diagnosis


def _diagnose(folder: Path, as_json: bool, quiet: bool) -> Diagnosis:
    from gpuprof.cli.shared.after_recording import keep_verdict
    from gpuprof.cli.shared.printing import OfDiagnosis, put
    from gpuprof.cli.shared.recordings import diagnose_given, given

    diagnosis = diagnose_given(given(str(folder)))
    if not quiet:
        put(OfDiagnosis(), diagnosis, as_json, None)
    keep_verdict(folder, diagnosis)
    return diagnosis


def _finish(folder: Path, diagnosis: Diagnosis) -> None:
    """Finishes the run's folder as `gpuprof trace` does: writes the report, and compresses the traces."""
    from gpuprof.cli.shared.after_recording import finish

    finish(folder, diagnosis)


def _list(as_json: bool) -> int:
    from gpuprof.attach.jobs import armed

    jobs = armed()
    if as_json:
        from gpuprof.attach.jobs_json import dumps

        write(dumps(jobs) + "\n")
        return 0
    if not jobs:
        from gpuprof.attach.attachable import HOW_TO_ARM

        say(f"no armed job of this user trains on this machine; to arm one: {HOW_TO_ARM}")
        return 0
    from gpuprof.report.terminal.jobs_terminal import render

    show(lambda _: render(jobs))
    return 0
