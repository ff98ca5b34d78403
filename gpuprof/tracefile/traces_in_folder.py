"""Finds the recordings of one training's ranks in a folder."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import NODES, open_regular
from gpuprof.tracefile.nsys.address import with_process
from gpuprof.tracefile.nsys.database import is_sqlite
from gpuprof.tracefile.nsys.report import EXPORTS, exported, is_report
from gpuprof.tracefile.run_folder.run_paths import find_run

_ENDINGS = ((".json", ".json.gz"), EXPORTS)
"""Suffixes of torch.profiler, else of Nsight Systems: the same steps recorded by both are not two ranks."""
_OF_RUN = re.compile(r"trace\.rank(\d{1,6})\.json(\.gz)?")
"""Complete traces in a run's folder, which also holds other documents; incomplete ones of a killed run are read only if
there are no others."""
_IN_NAME = re.compile(r"(?:rank|worker)[_.\-]?(\d{1,6})(?!\d)", re.IGNORECASE)


def traces_among(names: Iterable[str]) -> list[str]:
    """The recordings among the file names of a folder, one per rank: a run's traces, else every .json and .json.gz,
    else every .sqlite; in order of rank, then of name."""
    there = sorted(names)
    run = _of_run(there)
    if run:
        return run
    found = next((some for ends in _ENDINGS if (some := [name for name in there if name.endswith(ends)])), [])
    return sorted(found, key=lambda name: (rank_in_name(name) or 0, name))


def traces_in(folder: Path) -> tuple[Path, ...]:
    """The recordings in a local folder; for a job on several nodes also the digests that other nodes sent; for a run
    without torch.profiler traces, the processes of its Nsight Systems export."""
    if not passes(folder, Path.is_dir):
        return ()
    run = find_run(folder)
    if run is not None:
        folder, rank = run
        if rank is not None:
            return ()
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file())
    except OSError:
        return ()
    if run is None:
        return tuple(folder / name for name in traces_among(names))
    if found := _of_run(names):
        return _with_other_nodes(folder, found)
    export = next((folder / name for name in names if name.endswith(EXPORTS)), None)
    return () if export is None else processes_in(export)


def is_digest(place: str | Path) -> bool:
    """Whether it represents a rank whose recording is on another node."""
    return str(place).endswith(".digest.npz")


def _with_other_nodes(run: Path, names: list[str]) -> tuple[Path, ...]:
    """The traces of a run and the digests of ranks that are not among them, in order of rank."""
    paths = [run / name for name in names]
    here = {rank_in_name(name) for name in names}
    try:
        sent = [path for path in (run / NODES).iterdir() if is_digest(path) and path.is_file()]
    except OSError:
        sent = []
    paths += [path for path in sent if rank_in_name(path.name) not in here]
    return tuple(sorted(paths, key=lambda path: rank_in_name(path.name) or 0))


def processes_in(path: Path) -> tuple[Path, ...]:
    """The processes of an Nsight Systems export, as paths for `read_trace`; empty if the path is not an export."""
    from gpuprof.tracefile.nsys.reader import pids_in

    if not passes(path, Path.is_file):
        return ()
    try:
        with open_regular(path) as file:
            head = file.read(512)
        if is_report(path, head):
            path, _ = exported(path)
        elif not is_sqlite(head):
            return ()
        return tuple(Path(with_process(path, pid)) for pid in pids_in(path))
    except (OSError, UnreadableTrace):  # reading it will report the error
        return ()


def rank_in_name(name: str) -> int | None:
    """The rank in a file's name: trace.rank3.json.gz, worker3_step_12.json; None if there is none."""
    match = _IN_NAME.search(name)
    return int(match[1]) if match else None


def passes(path: Path, test: Callable[[Path], bool]) -> bool:
    """Whether a path passes a test such as `Path.is_file`; False for invalid paths: too long, or with a NUL."""
    try:
        return test(path)
    except (OSError, ValueError):
        return False


def _of_run(names: Iterable[str]) -> list[str]:
    """One trace per rank of a run."""
    found: dict[int, str] = {}
    for name in names:
        if match := _OF_RUN.fullmatch(name):
            found.setdefault(int(match[1]), name)
    return [found[rank] for rank in sorted(found)]
