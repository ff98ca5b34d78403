"""Which files are the recordings of the ranks of one training."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import open_regular
from gpuprof.tracefile.nsys.address import with_process
from gpuprof.tracefile.nsys.database import is_sqlite
from gpuprof.tracefile.nsys.report import EXPORTS, exported, is_report
from gpuprof.tracefile.run import find_run

_ENDINGS = ((".json", ".json.gz"), (".sqlite", ".sqlite.gz"))
"""Of torch.profiler, else of Nsight Systems: the same steps recorded by both are not two ranks."""
_OF_RUN = re.compile(r"trace\.rank(\d{1,6})\.json(\.gz)?")
"""Complete traces in a run's folder; those that a killed run left behind are read only where they are all there is."""
_IN_NAME = re.compile(r"(?:rank|worker)[_.\-]?(\d{1,6})(?!\d)", re.IGNORECASE)


def rank_traces(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The traces of several ranks that the paths mean: several files, a folder of traces, or a run with several.

    Empty where a path means one recording, or none: reading that one says what is wrong with it. Raises
    UnreadableTrace, one line, for a folder among several paths.
    """
    if len(paths) > 1:
        for path in paths:
            if not _is(path, Path.exists):
                raise UnreadableTrace(f"{path}: no such file")
            if _is(path, Path.is_dir):
                raise UnreadableTrace(
                    f"{path} is a folder: give the traces of all ranks, or one folder that holds them"
                )
        return tuple(paths)
    found = traces_in(paths[0]) if paths else ()
    if len(found) == 1 or not found:
        found = processes_in(found[0] if found else paths[0]) if paths else ()
    return found if len(found) > 1 else ()


def traces_in(folder: Path) -> tuple[Path, ...]:
    """The traces in a folder: of a run one per rank, else every .json and .json.gz, or where there are none every
    .sqlite; in order of rank, then of name."""
    if not _is(folder, Path.is_dir):
        return ()
    run = find_run(folder)
    if run is not None:
        return _of_run(run[0]) if run[1] is None else ()
    try:
        there = [path for path in folder.iterdir() if path.is_file()]
    except OSError:
        return ()
    files = next((found for ends in _ENDINGS if (found := [p for p in there if p.name.endswith(ends)])), [])
    return tuple(sorted(files, key=lambda path: (rank_in_name(path) or 0, path.name)))


def processes_in(path: Path) -> tuple[Path, ...]:
    """The processes of an export of Nsight Systems, as `read_trace` takes them; none where the path is no such file."""
    from gpuprof.tracefile.nsys.reader import pids_in

    if not _is(path, Path.is_file):
        return ()
    try:
        with open_regular(path) as file:
            head = file.read(512)
        if is_report(path, head):
            path, _ = exported(path)
        elif not is_sqlite(head):
            return ()
        return tuple(Path(with_process(path, pid)) for pid in pids_in(path))
    except (OSError, UnreadableTrace):  # who reads it will say why it cannot be read
        return ()


def _is(path: Path, test: Callable[[Path], bool]) -> bool:
    """A test of a path that may be none: too long a name, a NUL in it."""
    try:
        return test(path)
    except (OSError, ValueError):
        return False


def _of_run(folder: Path) -> tuple[Path, ...]:
    """One trace per rank: of torch.profiler, else the processes of the export of Nsight Systems."""
    found: dict[int, Path] = {}
    try:
        names = sorted(folder.iterdir())
    except OSError:
        return ()
    for path in names:
        match = _OF_RUN.fullmatch(path.name)
        if match and path.is_file():
            found.setdefault(int(match[1]), path)
    if found:
        return tuple(found[rank] for rank in sorted(found))
    export = next((path for path in names if path.name.endswith(EXPORTS)), None)
    return () if export is None else processes_in(export)


def rank_in_name(path: Path) -> int | None:
    """The rank that a file is named for: trace.rank3.json.gz, worker3_step_12.json; None where it is not."""
    match = _IN_NAME.search(path.name)
    return int(match[1]) if match else None
