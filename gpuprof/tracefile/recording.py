"""What a user names as a recording, as one object: a file, a run's folder, a folder of runs or of ranks, several files,
a URL, a report of Nsight Systems, a log of a training, `latest`, or nothing, which is the latest run.

`resolve` is the only place that decides what a path means. Nothing is read, fetched or exported before it is needed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from gpuprof import runfile
from gpuprof.errors import GpuprofError, UnreadableTrace
from gpuprof.nsight.convert import REPORTS
from gpuprof.tracefile.nsys.address import split_process
from gpuprof.tracefile.read import Progress, read_trace
from gpuprof.tracefile.remote import local_copy, state_of, traces_at, url_of
from gpuprof.tracefile.run_folder.phase_logs import have_roles, holds_phase_logs
from gpuprof.tracefile.run_folder.run import RunFolder, read_run
from gpuprof.tracefile.run_folder.run_paths import find_run, holds_run, latest_run, runs_in
from gpuprof.tracefile.trace import Trace
from gpuprof.tracefile.traces_in_folder import passes, processes_in, traces_in

if TYPE_CHECKING:
    from typing import TypeAlias

    Given: TypeAlias = "str | os.PathLike[str] | Trace | Recording | Sequence[str | os.PathLike[str]] | None"
    """What a user may pass for a recording."""

Kind = Literal["trace", "run", "ranks", "pair", "logs", "roles"]
"""trace: one recording of a process, a file or a URL. run: the folder of a run, or something in it. ranks: several
recordings of one training. pair: an Nsight Systems export and a torch.profiler trace of the same program. logs: logs of
the iterations of an RL training. roles: runs whose processes train, or only generate."""

_SUFFIXES = (".gz", ".json", ".trace", ".pt")
"""Removed from a trace's name, in this order, for the names of files made from it."""


@dataclass(frozen=True, slots=True)
class Contents:
    """What was read of a recording: a trace, a run, or both; at least one."""

    trace: Trace | None
    run: RunFolder | None
    failure: str = ""
    """Why an existing recording of the run could not be read."""
    named: Trace | None = None
    """The same program recorded by torch.profiler, if `trace` is an Nsight Systems export."""


def resolve(given: Given) -> Recording:
    """The recording that a user means by a path, a URL, a list of them, a loaded Trace, `latest`, or None (latest run).

    Raises GpuprofError, one line, for an empty path, for no paths, and where there is no latest run. Whether a path can
    be read is not decided here: reading it says why not.
    """
    if isinstance(given, Recording):
        return given
    if isinstance(given, Trace):
        return Recording((given.reading.path,), given)
    if given is None:
        try:
            return Recording((str(latest_run()),))
        except UnreadableTrace as error:
            raise GpuprofError(f"no recording given, and {error}") from None
    places = [given] if isinstance(given, (str, os.PathLike)) else list(given)
    if not places:
        raise GpuprofError("there is no recording: the list of paths is empty")
    return Recording(tuple(_place(os.fsdecode(place)) for place in places))


def _place(text: str) -> str:
    """A URL, or a path as pathlib writes it."""
    if not text:
        raise UnreadableTrace("the path is empty: is a variable in it not set? (. is the current folder)")
    if url := url_of(text):
        return url
    path = Path(text)
    if text == runfile.LATEST and not passes(path, Path.exists):
        return str(latest_run())
    if text.startswith("~") and not passes(path, Path.exists):
        path = Path(os.path.expanduser(text))  # noqa: PTH111 (Path.expanduser raises for a user that does not exist)
    return str(path)


@dataclass(frozen=True)
class Recording:
    """A recording that a user has named. `str()` of it is what messages call it."""

    given: tuple[str, ...]
    """Paths and URLs, at least one."""
    loaded: Trace | None = None
    """The trace, if it was loaded before."""

    def __str__(self) -> str:
        return self.given[0] if len(self.given) == 1 else f"{self.given[0]}, …"

    @cached_property
    def kind(self) -> Kind:
        """What it is. A report of Nsight Systems is exported to find that out.

        Raises GpuprofError, one line, for logs among other things.
        """
        if self.loaded is not None:
            return "trace"
        if self._of_job is not None:
            return self._of_job
        if self._pair:
            return "pair"
        if len(self.traces) > 1:
            return "ranks"
        return "run" if self._run else "trace"

    @cached_property
    def traces(self) -> tuple[str, ...]:
        """The recordings of single processes: several for several ranks, in order of rank if known, else at most one.
        Empty for a run without several ranks: `read` finds its recording.

        Raises UnreadableTrace, one line, for a URL where nothing is, and for a folder or no file among several paths.
        """
        if any(map(url_of, self.given)):
            return tuple(one for place in self.given for one in (traces_at(place) if url_of(place) else [place]))
        if len(self.given) > 1:
            for path in map(Path, self.given):
                if not passes(path, Path.exists):
                    raise UnreadableTrace(f"{path}: no such file")
                if passes(path, Path.is_dir):
                    raise UnreadableTrace(
                        f"{path} is a folder: give the traces of all ranks, or one folder that holds them"
                    )
            return self.given
        there = traces_in(self._path)
        if len(there) < 2:
            there = processes_in(there[0] if there else self._path)
        return tuple(map(str, there)) if len(there) > 1 else ()

    @property
    def stands_alone(self) -> bool:
        """Whether one of its ranks can be diagnosed alone if the ranks cannot be compared: true for a run or an
        export."""
        return len(self.given) == 1 and (self._run is not None or passes(self._path, Path.is_file))

    @cached_property
    def _of_job(self) -> Literal["logs", "roles"] | None:
        """`logs` or `roles` if it describes a job as a whole, not its steps; else None."""
        if len(self.given) > 1 and self.has_roles:
            return "roles"
        if not self.logs:
            return None
        if others := [place for place in self.given if place not in self.logs]:
            raise GpuprofError(f"{self.logs[0]} is a log, {others[0]} is not: give logs only")
        return "logs"

    @cached_property
    def logs(self) -> tuple[str, ...]:
        """The logs, or tracker files, of an RL training among the given paths."""
        from gpuprof.tracefile.training_logs.read import is_training_log

        return tuple(place for place in self.given if not url_of(place) and passes(Path(place), is_training_log))

    @property
    def has_roles(self) -> bool:
        """Whether some processes of the given run or runs train, and others only generate."""
        runs = self.files if self.run_folder is None else (self.run_folder,)
        return len(runs) > 0 and all(map(holds_phase_logs, runs)) and have_roles(runs)

    # -- where it is

    @property
    def files(self) -> tuple[Path, ...]:
        """The local paths among those given."""
        return tuple(Path(place) for place in self.given if not url_of(place))

    @property
    def folder(self) -> Path | None:
        """The given folder: of the run, or of ranks. None for files and URLs."""
        if len(self.given) > 1 or self._is_url or not passes(self._path, Path.is_dir):
            return None
        return self._path if self._run is None else self._run[0]

    @property
    def run_folder(self) -> Path | None:
        """The folder of its run, also if one of the run's files was given."""
        return None if self._run is None else self._run[0]

    @property
    def runs(self) -> tuple[Recording, ...]:
        """Each run of a folder of runs, oldest first; else empty."""
        if self.folder is None or holds_run(self._path):
            return ()
        return tuple(Recording((str(run),)) for run in runs_in(self._path))

    @property
    def name(self) -> str:
        """Base name for files made from it: the folder's name, or the trace's without its suffixes."""
        if passes(self._path, Path.is_dir):
            return self._path.resolve().name or "recording"
        name = self.file_name
        for suffix in _SUFFIXES:
            name = name.removesuffix(suffix)
        return name or "recording"

    @property
    def file_name(self) -> str:
        """The last part of the first path or URL."""
        return self._path.name

    @property
    def reports(self) -> tuple[str, ...]:
        """Names of the Nsight Systems reports among the given paths."""
        return tuple(path.name for path in self.files if path.name.endswith(REPORTS))

    @property
    def state(self) -> tuple[tuple[str, str], ...]:
        """(name, size and modification time) of each file that is read, to see whether anything has changed."""
        found = []
        for place in self.given:
            if url_of(place):
                found.append((place, state_of(place)))
                continue
            path = self.folder or split_process(Path(place))[0]
            try:
                files = sorted(path.iterdir()) if path.is_dir() else [path]
                stats = [(file, file.stat()) for file in files if file.exists()]
            except (OSError, ValueError):  # reading it says why
                continue
            found += [(str(file), f"{stat.st_size} {stat.st_mtime_ns}") for file, stat in stats]
        return tuple(found)

    # -- what is in it

    @property
    def run(self) -> RunFolder | None:
        """Its run, with the rank that was named."""
        return None if self._run is None else read_run(*self._run)

    def read(self, progress: Progress | None = None) -> Contents:
        """The trace of one process, and its run; for a run, the trace of its lowest rank, for a pair, both traces.
        Raises UnreadableTrace, one line, if it cannot be read, and for several ranks that are not a run. A run may
        have no trace, because it was too short or was killed.
        """
        if self.loaded is not None:
            return Contents(self.loaded, self.run)
        if self._of_job is not None:
            what = "a log of iterations" if self._of_job == "logs" else "one of several runs of a job"
            raise UnreadableTrace(f"{self.given[0]} is {what}, not a recording of steps: gpuprof diagnose reads it")
        if self._pair:
            return _both(self._pair, progress)
        place = self.one
        if url_of(place):
            with local_copy(place) as path:
                trace = read_trace(path, progress)
            return Contents(replace(trace, reading=replace(trace.reading, path=place)), None)
        run = self.run
        return Contents(read_trace(self._path, progress), None) if run is None else _of_run(run, progress)

    @property
    def one(self) -> str:
        """The given path or URL. Raises UnreadableTrace, one line, if there are several."""
        places = self.traces if any(map(url_of, self.given)) else self.given
        first, *others = places
        if others:
            raise UnreadableTrace(f"{self} is {len(places)} recordings: name that of one rank, such as {first}")
        return first

    @property
    def _is_url(self) -> bool:
        return url_of(self.given[0]) is not None

    @property
    def _path(self) -> Path:
        return Path(self.given[0])

    @cached_property
    def _run(self) -> tuple[Path, int | None] | None:
        return find_run(self._path) if len(self.given) == 1 and not self._is_url else None

    @cached_property
    def _pair(self) -> tuple[_Side, _Side] | None:
        """(Nsight Systems export, torch.profiler trace), if the two paths are these."""
        if len(self.given) != 2 or any(map(url_of, self.given)):
            return None
        sides = [_side(Recording((place,))) for place in self.given]
        found = {side.kind: side for side in sides if side is not None}
        return (found["nsys"], found["kineto"]) if len(found) == 2 else None


@dataclass(frozen=True, slots=True)
class _Side:
    """One of two recordings of a program."""

    kind: Literal["nsys", "kineto"]
    path: Path
    run: RunFolder | None


def _side(one: Recording) -> _Side | None:
    """Which of the two a path is; a run counts by its only recording. None if neither or both."""
    run = one.run
    (path,) = one.files
    if passes(file := split_process(path)[0], Path.is_file):
        return _Side("nsys" if processes_in(file) else "kineto", path, run)
    if run is None or (run.nsys is None) == (run.trace is None):
        return None
    if run.nsys is not None:
        return _Side("nsys", run.nsys, run)
    return None if run.trace is None else _Side("kineto", run.trace, run)


def _both(pair: tuple[_Side, _Side], progress: Progress | None) -> Contents:
    export, text = pair
    # With two runs, the step time is taken from the one whose process had no profiler while it was timed.
    run = text.run or export.run
    return Contents(read_trace(export.path, progress), run, named=read_trace(text.path, progress))


def _of_run(run: RunFolder, progress: Progress | None) -> Contents:
    traces, failure = [], ""
    for source in (run.nsys, run.trace):
        if source is None:
            continue
        try:
            traces.append(read_trace(source, progress))
        except UnreadableTrace as error:
            leftover = source.name.endswith(runfile.PARTIAL)  # expected to be incomplete
            failure = failure or ("" if leftover else str(error))
    if not traces:
        return Contents(None, run, failure)
    return Contents(traces[0], run, failure, named=traces[1] if len(traces) > 1 else None)
