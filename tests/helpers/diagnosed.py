"""Recordings diagnosed once in a test session, however many tests and workers ask for them.

With GPUPROF_DIAGNOSED, a folder, recordings of the repository and shared ones are diagnosed once for all sessions that
name it. Use it for one run of CI only, since the folder does not record which code made its diagnoses.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from isal import igzip

from gpuprof.diagnosis import diagnose_recording
from gpuprof.diagnosis.asked import NOTHING_ASKED, Asked
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.tracefile.recording import Recording, resolve
from helpers.once import once_in, session_folder
from helpers.paths import ROOT, SHARED

KEPT = 12
"""Diagnoses that a worker holds in memory; the others are read back from the session's folder in some 20 ms."""

_diagnose = diagnose_recording.diagnose_recording
_in_place: list[Callable[..., Diagnosis]] = [_diagnose]
"""Stack of diagnosing functions: the usual one, then one for each enclosing block of other folders."""
_folders: list[Path] = []
"""Folder of this session, and that of all sessions that share one; the same if none do."""


def share_with_workers(folders: pytest.TempPathFactory) -> None:
    """From now on diagnoses are kept in the folder that all workers of this session share."""
    session = session_folder(folders)
    _folders[:] = [session, Path(os.environ.get("GPUPROF_DIAGNOSED") or session)]


def diagnosed(path: Path) -> Diagnosis:
    """`gpuprof.diagnose(path)`, made by whichever worker asks first."""
    return _kept(resolve(path).given, NOTHING_ASKED)


@functools.lru_cache(maxsize=KEPT)
def _kept(given: tuple[str, ...], asked: Asked, within: str = "") -> Diagnosis:
    """The diagnosis of a recording. within: the working directory that relative paths are of."""
    if not _folders:
        return _diagnose(Recording(given), asked)

    def make(folder: Path) -> None:
        with igzip.IGzipFile(folder / "diagnosis", "wb", compresslevel=1) as file:
            file.write(pickle.dumps(_diagnose(Recording(given), asked), protocol=5))

    key = repr((given, asked, within)).encode()
    name = f"diagnosed/{Path(given[0]).name.split('.')[0]}-{hashlib.sha256(key).hexdigest()[:16]}"
    lasts = all({ROOT, SHARED} & {*Path(one).parents} for one in given)
    with igzip.IGzipFile(once_in(_folders[lasts], name, make) / "diagnosis", "rb") as file:
        return pickle.loads(file.read())


@contextlib.contextmanager
def each_diagnosed_once(*folders: Path) -> Iterator[None]:
    """A block in which a recording below one of the folders is diagnosed once with the same options, by commands in
    this process and by `gpuprof.diagnose` alike: for tests that only use diagnoses. Nothing there may change meanwhile.

    folders: those of the repository and the shared one if none are given. A URL is of any folder.
    """
    within = diagnose_recording.diagnose_recording
    if within is not _in_place[-1]:  # a test's own stands in for it
        yield
        return
    below = folders or (ROOT, SHARED)

    def is_below(place: str) -> bool:
        return "://" in place or any(one in Path(place).absolute().parents for one in below)

    def diagnose(recording: Recording, asked: Asked = NOTHING_ASKED, **options: Any) -> Diagnosis:
        others = options.keys() - {"progress"}
        if others or recording.loaded is not None or not all(map(is_below, recording.given)):
            return within(recording, asked, **options)
        is_relative = any("://" in one or not Path(one).is_absolute() for one in recording.given)
        return _kept(recording.given, asked, str(Path.cwd()) if is_relative else "")

    _in_place.append(diagnose)
    try:
        with mock.patch.object(diagnose_recording, "diagnose_recording", diagnose):
            yield
    finally:
        _in_place.remove(diagnose)
