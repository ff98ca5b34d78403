"""`gpuprof export`: writes a recording with its findings as files for other viewers and for data frames."""

from __future__ import annotations

import contextlib
import gzip
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from gpuprof import runfile
from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import discard, say
from gpuprof.cli.shared.recordings import RECORDING, diagnose_given, given
from gpuprof.diagnosis.asked import Asked
from gpuprof.errors import GpuprofError
from gpuprof.runfile import open_regular

if TYPE_CHECKING:
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.ranks.summary import RankSummary
    from gpuprof.tracefile.recording import Recording

SUFFIXES = {"perfetto": ".perfetto.json.gz", "speedscope": ".speedscope.json", "parquet": ".parquet"}
"""Suffix of the file name for each format; for Parquet, of the folder."""
_OURS = b'{"exporter":"gpuprof'
"""First bytes of a trace written by gpuprof."""


@click.command(short_help="Export a recording for Perfetto, speedscope or pandas.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=RECORDING)
@click.option("--perfetto", is_flag=True, help="Chrome trace for ui.perfetto.dev and chrome://tracing.")
@click.option("--speedscope", is_flag=True, help="Flame graphs for speedscope.app.")
@click.option("--parquet", is_flag=True, help="Folder of tables: gaps, kernels, steps, ops, findings.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), metavar="OUT",
    help="Output file (a folder for --parquet or several formats); - for stdout.",
)  # fmt: skip
@click.option("--ranks", metavar="0,1", help="With --perfetto: these ranks of several, or all, on one clock.")
@click.option("--roles", is_flag=True, help="With --perfetto: processes of different roles on one timeline.")
@click.option("--force", is_flag=True, help="Overwrite a file that gpuprof did not write.")
@click.option("--step", metavar="REGEX", help="Name of the range or op that is a step; detected by default.")
@click.option("--skip", type=WholeNumber(0), default=0, metavar="N", help="Skip the first N steps.")
def command(
    paths: tuple[str, ...],
    perfetto: bool,
    speedscope: bool,
    parquet: bool,
    output: Path | None,
    ranks: str | None,
    roles: bool,
    force: bool,
    step: str | None,
    skip: int,
) -> int:
    """Export the training recorded in PATH, with its findings, for other tools.

    PATH is anything that gpuprof diagnose accepts; without it: the latest run in gpuprof-runs. The files are named
    after the recording and written into the working directory, unless --output names another place.
    """
    wanted = {"perfetto": perfetto, "speedscope": speedscope, "parquet": parquet}
    formats = [name for name, is_wanted in wanted.items() if is_wanted]
    if not formats:
        raise click.UsageError("choose a format: --perfetto, --speedscope or --parquet")
    if ranks is not None and formats != ["perfetto"]:
        raise click.UsageError("--ranks is for --perfetto: the other formats are of one rank")
    wanted_ranks = None if ranks is None else parsed(ranks)
    recording = given(paths)
    if roles or recording.kind == "roles":
        if formats != ["perfetto"] or ranks is not None or step or skip:
            raise click.UsageError("for roles on one timeline there is only --perfetto and --output")
        return _export_roles(recording, output, force)
    targets = plan(recording, formats, output)
    for name, target in targets.items():
        check(name, target, recording, force)
    diagnosis = diagnose_given(recording, Asked(step, skip))
    if ranks is not None:
        chosen = choose(diagnosis, wanted_ranks, recording)
        say(write_ranks(chosen, targets["perfetto"], step, skip))
        return 0
    diagnosis.tables  # noqa: B018 (raises if nothing was recorded, before a file is begun)
    for name, target in targets.items():
        say(write_one(name, diagnosis, target))
    remark(diagnosis)
    return 0


def _export_roles(recording: Recording, output: Path | None, force: bool) -> int:
    target = output or Path(f"roles{SUFFIXES['perfetto']}")
    if target.is_dir():
        target = target / f"roles{SUFFIXES['perfetto']}"
    if str(target) != "-" and target.exists() and not force and not _begins(target, _OURS):
        raise GpuprofError(
            f"{target} exists and was not written by gpuprof: choose another place with -o, or use --force"
        )
    events, roles = draw_roles(recording, target)
    said = "written to stdout" if str(target) == "-" else f"{target}: {events:,} events"
    say(f"{said} of {roles} roles on one clock, for https://ui.perfetto.dev")
    return 0


def draw_roles(recording: Recording, target: Path) -> tuple[int, int]:
    """Writes the roles of a job; returns how many events and roles there are."""
    from gpuprof.diagnosis.roles.sources import diagnose_roles
    from gpuprof.interop.perfetto_roles import write_perfetto_roles

    found = diagnose_roles(recording)
    with _stdout() if str(target) == "-" else whole_file(target) as file:
        return write_perfetto_roles(found, file), len(found.roles)


def remark(diagnosis: Diagnosis) -> None:
    """Prints what the reader of an export must know: its rank, and what is wrong with the recording."""
    if diagnosis.ranks is not None:
        shown = Path(diagnosis.source.path).name
        say(
            f"exported {shown}, one of {len(diagnosis.ranks)} ranks: the one that gpuprof diagnose shows"
            " (--perfetto --ranks all: all of them on one clock)"
        )
    for severity in ("error", "warning"):
        worst = [issue.message for issue in diagnosis.quality.issues if issue.severity == severity]
        if worst:
            say(f"the recording: {worst[0]}")
            break


def plan(recording: Recording, formats: list[str], output: Path | None) -> dict[str, Path]:
    """Where each format is written."""
    names = {name: f"{recording.name}{SUFFIXES[name]}" for name in formats}
    if output is None:
        return {name: Path(file) for name, file in names.items()}
    if str(output) == "-":
        if formats not in (["perfetto"], ["speedscope"]):
            raise click.UsageError("only one file can go to stdout: --perfetto or --speedscope")
        return {formats[0]: output}
    into_folder = len(formats) > 1 or (output.is_dir() and formats != ["parquet"])
    return {name: output / file if into_folder else output for name, file in names.items()}


def check(name: str, target: Path, recording: Recording, force: bool) -> None:
    """Raises GpuprofError unless the target may be written: it is new or an earlier export, and not a recording."""
    if str(target) == "-":
        if sys.stdout is None or sys.stdout.isatty():
            raise GpuprofError("stdout is a terminal and the output is not text: redirect it, or name a file with -o")
        return
    inside = recording.folder is not None and _same(target.parent, recording.folder)
    if inside and name != "parquet" and recording.run_folder is None:
        raise GpuprofError(f"{target} would look like one of the traces in {recording}: choose another place with -o")
    if not os.path.lexists(target):
        return
    if any(_same(target, file) for file in recording.files):
        raise GpuprofError(f"{target} is the recording itself: choose another place with -o")
    if name == "parquet":
        if not target.is_dir():
            raise GpuprofError(f"{target} is not a folder: choose another one with -o")
        ours = (target / "diagnosis.json").is_file() or not any(target.iterdir())
    elif not target.is_file():
        raise GpuprofError(f"{target} exists and is not a file: choose another one with -o")
    else:
        ours = _begins(target, _OURS)
    if inside and not ours:
        raise GpuprofError(f"{target} is a file of the recording: choose another place with -o")
    if not (ours or force):
        raise GpuprofError(
            f"{target} exists and was not written by gpuprof: choose another place with -o, or use --force"
        )


def _same(one: Path, other: Path) -> bool:
    with contextlib.suppress(OSError):
        return one.samefile(other)
    return False


def _begins(path: Path, mark: bytes) -> bool:
    """Whether the file, unpacked if necessary, begins with `mark`."""
    try:
        with open_regular(path) as file:
            packed = file.read(2) == b"\x1f\x8b"
        with gzip.open(path) if packed else open_regular(path) as file:
            return file.read(len(mark)) == mark
    except (OSError, EOFError, zlib.error):
        return False


def write_one(name: str, diagnosis: Diagnosis, target: Path) -> str:
    """Writes one format; returns what was written, in words."""
    from gpuprof.interop.parquet import needs_pyarrow, write_parquet
    from gpuprof.interop.perfetto import write_perfetto
    from gpuprof.interop.speedscope import write_speedscope

    if name == "parquet":
        needs_pyarrow()
        try:
            target.mkdir(parents=True, exist_ok=True)
            rows = write_parquet(diagnosis, target)
        except OSError as error:
            raise _unwritable(target, error) from error
        return f"{target}: " + ", ".join(f"{count:,} {table}" for table, count in rows.items())
    write: Callable[[Diagnosis, BinaryIO], int] = write_perfetto if name == "perfetto" else write_speedscope
    if str(target) == "-":
        with _stdout() as file:
            write(diagnosis, file)
        return "written to stdout"
    with whole_file(target) as file:
        count = write(diagnosis, file)
    if name == "perfetto":
        return f"{target}: {count:,} events, for https://ui.perfetto.dev (gpuprof view opens it there)"
    return f"{target}: {count} profiles, for https://www.speedscope.app"


def parsed(text: str) -> list[int] | None:
    """Numbers of ranks such as 0,1, in order; None for `all`. Raises UsageError."""
    from gpuprof.cli.trace_without_click import ranks

    if text == "all":
        return None
    found = ranks(text)
    if found is None:
        raise click.UsageError(f"{text!r} is neither a list of ranks, such as 0,1, nor all")
    return found


def choose(diagnosis: Diagnosis, wanted: list[int] | None, recording: Recording) -> list[RankSummary]:
    """The ranks with these numbers, or all. Raises GpuprofError if one does not exist."""
    from gpuprof.tracefile.traces_in_folder import is_digest

    there = {rank.rank: rank for rank in diagnosis.ranks or ()}
    if not there:
        raise GpuprofError(f"{recording} is not of several ranks: leave --ranks out")
    missing = [str(rank) for rank in wanted or () if rank not in there]
    if missing:
        raise GpuprofError(
            f"{recording} has no rank {', '.join(missing)}: its ranks are {', '.join(map(str, sorted(there)))}"
        )
    away = [rank for rank in sorted(there) if is_digest(there[rank].path)]
    if named := [str(rank) for rank in away if rank in (wanted or ())]:
        raise GpuprofError(f"rank {', '.join(named)} of {recording} was recorded on another node: run this there")
    return [there[rank] for rank in sorted(there if wanted is None else wanted) if rank not in away]


def write_ranks(ranks: list[RankSummary], target: Path, step: str | None, skip: int) -> str:
    """Writes one file of several ranks; returns what was written, in words."""
    with _stdout() if str(target) == "-" else whole_file(target) as file:
        count = draw_ranks(ranks, file, step, skip)
    if str(target) == "-":
        return "written to stdout"
    names = ", ".join(str(rank.rank) for rank in ranks[:8]) + (", …" if len(ranks) > 8 else "")
    which = f"rank {names}" if len(ranks) == 1 else f"ranks {names} on one clock"
    return f"{target}: {count:,} events of {which}, for https://ui.perfetto.dev"


def draw_ranks(ranks: list[RankSummary], file: BinaryIO, step: str | None, skip: int) -> int:
    """Reads each rank twice, one at a time: first for its start time, then completely. Returns the number of events."""
    import gpuprof
    from gpuprof.interop.perfetto_ranks import clock_of, write_perfetto_ranks
    from gpuprof.timeline.timeline import build_timeline

    clocks = []
    for rank in ranks:
        timeline = build_timeline(gpuprof.load(rank.path), step, skip)
        if timeline is None:
            raise GpuprofError(f"{rank.path} holds no steps to export")
        clocks.append(clock_of(timeline))
    return write_perfetto_ranks(ranks, clocks, lambda path: gpuprof.diagnose(path, step=step, skip=skip), file)


@contextmanager
def whole_file(target: Path) -> Iterator[BinaryIO]:
    """A file that gets its name when it is complete; a reader sees the old one or the new one."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with runfile.whole_file(target) as file:
            yield file
    except OSError as error:
        raise _unwritable(target, error) from error


@contextmanager
def _stdout() -> Iterator[BinaryIO]:
    """Stdout for bytes. If a reader closes the pipe (`| head`), the command line ends quietly."""
    stdout = sys.stdout
    try:
        yield stdout.buffer
        stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        discard(stdout)
        raise GpuprofError(f"the output cannot be written: {error.strerror}") from error


def _unwritable(target: Path, error: OSError) -> GpuprofError:
    return GpuprofError(f"{target}: cannot be written ({error.strerror or error})")
