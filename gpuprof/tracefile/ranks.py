"""Which files are the recordings of the ranks of one training."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.run import find_run

_ENDINGS = (".json", ".json.gz")
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
    return found if len(found) > 1 else ()


def traces_in(folder: Path) -> tuple[Path, ...]:
    """The traces in a folder: of a run one per rank, else every .json and .json.gz; in order of rank, then of name."""
    if not _is(folder, Path.is_dir):
        return ()
    run = find_run(folder)
    if run is not None:
        return _of_run(run[0]) if run[1] is None else ()
    try:
        files = [path for path in folder.iterdir() if path.name.endswith(_ENDINGS) and path.is_file()]
    except OSError:
        return ()
    return tuple(sorted(files, key=lambda path: (rank_in_name(path) or 0, path.name)))


def _is(path: Path, test: Callable[[Path], bool]) -> bool:
    """A test of a path that may be none: too long a name, a NUL in it."""
    try:
        return test(path)
    except (OSError, ValueError):
        return False


def _of_run(folder: Path) -> tuple[Path, ...]:
    """One trace per rank."""
    found: dict[int, Path] = {}
    try:
        for path in sorted(folder.iterdir()):
            match = _OF_RUN.fullmatch(path.name)
            if match and path.is_file():
                found.setdefault(int(match[1]), path)
    except OSError:
        return ()
    return tuple(found[rank] for rank in sorted(found))


def rank_in_name(path: Path) -> int | None:
    """The rank that a file is named for: trace.rank3.json.gz, worker3_step_12.json; None where it is not."""
    match = _IN_NAME.search(path.name)
    return int(match[1]) if match else None
