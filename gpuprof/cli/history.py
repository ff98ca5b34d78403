"""`gpuprof history`: lists runs over time as a table with a bar for each mean step."""

from __future__ import annotations

from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import say, show, write
from gpuprof.cli.shared.recordings import RECORDING, diagnose_given, given
from gpuprof.errors import GpuprofError
from gpuprof.runfile import MANIFEST, RUNS, read_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuprof.report.history import HistoryEntry
    from gpuprof.tracefile.recording import Recording


@click.command(short_help="Show how the step changed from run to run.")
@click.argument("paths", metavar="[RUNS]...", nargs=-1, type=RECORDING)
@click.option("--json", is_flag=True, help="Print the numbers of every run as JSON.")
@click.option("--markdown", is_flag=True, help="Print a Markdown table.")
@click.option("--last", type=WholeNumber(1), default=20, metavar="N", show_default=True,
              help="Of a folder of runs, show the newest N.")  # fmt: skip
@click.option("--explain", is_flag=True, help="Compare the run at which the step became slower with the one before.")
@click.option("--fresh", is_flag=True, help="Diagnose every run again.")
def command(paths: tuple[str, ...], json: bool, markdown: bool, last: int, explain: bool, fresh: bool) -> int:
    """Show mean step, verdict, GPU busy time and tokens per second of RUNS, in the order given.

    RUNS are recordings as gpuprof diagnose takes them, or a folder of runs, which stands for its runs, oldest first.
    Without RUNS: gpuprof-runs. A recording that cannot be read is named on stderr, and left out. A run is diagnosed
    once; what was found then stays in its folder.
    """
    if json and markdown:
        raise click.UsageError("--json and --markdown exclude each other")
    from gpuprof.report import history

    recordings, newest = _recordings(paths or (RUNS,), last)
    programs = {str(one): _program(one) for one in recordings}
    known = [
        found for one in recordings if (found := _entry(one, fresh, known_only=str(one) not in newest)) is not None
    ]
    entries = [one for one in known if one.path in newest]
    if not entries and len(newest) == 1:
        return 2  # the reason has been printed
    if not entries:
        raise GpuprofError("none of these recordings could be diagnosed")
    if json:
        import json as encoder

        write(encoder.dumps(history.document(entries), indent=2) + "\n")
    elif markdown:
        write(history.as_markdown(entries))
    else:
        show(lambda width: _table(history.shortened(entries), width))
        _slower(known, [programs[one.path] for one in known], explain)
    return 0


def _slower(entries: list[HistoryEntry], programs: list[str | None], explain: bool) -> None:
    """Prints the run at which a program's step became slower, and with `explain` the reason."""
    from gpuprof.report import history
    from gpuprof.report.names import escape
    from gpuprof.report.numbers import duration

    found = history.slower_at(entries, programs)
    if found is None:
        if explain:
            say("the step did not become slower")
        return
    more = 100 * (found.after_ms / found.before_ms - 1)
    times = f"{duration(found.before_ms * 1e6)} → {duration(found.after_ms * 1e6)} (+{more:.0f} %)"
    work = "for the same work" if found.same_work else "a step"
    write(f"\nslower from {escape(Path(entries[found.at].path).name)} on: {times} {work}\n")
    if not explain:
        write("gpuprof history --explain compares it with the run before\n")
    else:
        _explain(entries[found.before], entries[found.at])


def _explain(before: HistoryEntry, after: HistoryEntry) -> None:
    """Prints why the step became slower; where a recording is gone, what the history knows of both."""
    from gpuprof import compare
    from gpuprof.report import history
    from gpuprof.report.terminal.comparison_terminal import render

    try:
        comparison = compare(before.path, after.path)
    except GpuprofError as error:
        say(str(error))
        write("".join(f"  {line}\n" for line in history.differences(before, after)))
        return
    write("\n")
    show(lambda width: render(comparison, width))


def _recordings(paths: tuple[str, ...], last: int) -> tuple[list[Recording], set[str]]:
    """The recordings, and the paths of those to show: of a folder of runs the newest."""
    given_ = [one.runs or (one,) for one in map(given, paths)]
    if [each.given for one in given_ for each in one] == [(RUNS,)]:
        raise GpuprofError(f"{RUNS} holds no run: make one with gpuprof trace train.py, or name recordings")
    return [each for one in given_ for each in one], {str(each) for one in given_ for each in one[-last:]}


def _entry(recording: Recording, fresh: bool, known_only: bool) -> HistoryEntry | None:
    """The entry of a recording. known_only: None if it is not in the run's folder."""
    from gpuprof.report import history

    folder, began = recording.run_folder, _began(recording)
    look = folder is not None and (known_only or not fresh)
    found = history.remembered(folder, str(recording), began) if look and folder is not None else None
    if found is not None or known_only:
        return found
    try:
        diagnosis = diagnose_given(recording)
    except GpuprofError as error:
        say(str(error))
        return None
    found = history.entry(str(recording), began, diagnosis)
    if folder is not None and diagnosis.run is not None and diagnosis.run.status != "running":
        history.remember(folder, found)
    return found


def _program(recording: Recording) -> str | None:
    """The script or module that a run started; None if not known. Runs of different programs are not compared."""
    words = _manifest(recording).get("command")
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    modules = (word for flag, word in pairwise(words) if flag == "-m" and word.split(".")[0] not in _LAUNCHERS)
    scripts = (Path(word).name for word in words if word.endswith(".py"))
    return next(scripts, None) or next(modules, None)


_LAUNCHERS = {"torch", "accelerate", "deepspeed"}
"""Packages whose modules launch the actual program."""


def _manifest(recording: Recording) -> dict[str, Any]:
    folder = recording.run_folder
    return {} if folder is None else read_json(folder / MANIFEST) or {}


def _began(recording: Recording) -> str | None:
    """When a run began; None for a bare trace."""
    started = _manifest(recording).get("started")
    if not isinstance(started, int):
        return None
    try:
        return datetime.fromtimestamp(started / 1e9, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, OSError, ValueError):
        return None


_DROPPED = ("J/token", "J/step", "began", "", "GPU busy", "verdict")
"""Columns that a narrow screen has no room for, the first first."""


def _table(entries: list[HistoryEntry], width: int) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    from gpuprof.report import history
    from gpuprof.report.lines import Column, table
    from gpuprof.report.names import escape

    right = Column(right=True)
    names = [escape(one.path) for one in entries]
    name = Column("bold", elastic=True, shorten=lambda text, room: history.told_apart(text, names, room))
    columns = [name, Column("dim"), right, Column("cyan"), Column(elastic=True), right, right]
    rows = [list(history.head(entries)), *history.rows(entries, width=width)]
    columns += [right] * (len(rows[0]) - len(columns))
    if width < history.NARROW_WIDTH and history.named_by_date(entries):
        columns.pop(1)
        rows = [[*row[:1], *row[2:]] for row in rows]
    lines = table([[escape(cell) for cell in row] for row in rows], columns, width)
    for dropped in _DROPPED:
        if all(line.cell_len <= width for line in lines):
            break
        if dropped in rows[0]:
            i = rows[0].index(dropped)
            columns.pop(i)
            rows = [[*row[:i], *row[i + 1 :]] for row in rows]
            lines = table([[escape(cell) for cell in row] for row in rows], columns, width)
    return Group(Text(lines[0].plain, "dim"), *lines[1:])
