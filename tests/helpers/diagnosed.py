"""Recordings diagnosed once in a test session, however many tests and workers ask for them."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import inspect
import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from isal import igzip

import gpuprof
from gpuprof.diagnosis.diagnosis import Diagnosis
from helpers.once import once
from helpers.paths import ROOT, SHARED

KEPT = 12
"""Diagnoses that a worker holds in memory; the others are read back from the session's folder in some 20 ms."""

_diagnose = gpuprof.diagnose
_folders: list[pytest.TempPathFactory] = []


def share_with_workers(folders: pytest.TempPathFactory) -> None:
    """From now on diagnoses are kept in the folder that all workers of this session share."""
    _folders[:] = [folders]


@functools.lru_cache(maxsize=KEPT)
def diagnosed(path: Path) -> Diagnosis:
    """`gpuprof.diagnose(path)`, made by whichever worker asks first."""
    if not _folders:
        return _diagnose(path)

    def make(folder: Path) -> None:
        with igzip.IGzipFile(folder / "diagnosis", "wb", compresslevel=1) as file:
            file.write(pickle.dumps(_diagnose(path), protocol=5))

    name = f"diagnosed/{path.name.split('.')[0]}-{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
    with igzip.IGzipFile(once(_folders[0], name, make) / "diagnosis", "rb") as file:
        return pickle.loads(file.read())


@contextlib.contextmanager
def each_diagnosed_once() -> Iterator[None]:
    """A block in which `gpuprof.diagnose` takes what is kept here of the recordings of the repository and of the shared
    folder: for what works with their diagnoses, commands in this process included."""
    usual = {name: one.default for name, one in inspect.signature(_diagnose).parameters.items()}

    def diagnose(recording: Any = None, **options: Any) -> Diagnosis:
        paths = recording if isinstance(recording, (tuple, list)) else [recording]
        asked = {name for name, value in options.items() if name != "progress" and value != usual[name]}
        if asked or len(paths) != 1 or not isinstance(paths[0], (str, os.PathLike)):
            return _diagnose(recording, **options)
        path = Path(paths[0])
        return diagnosed(path) if {ROOT, SHARED} & set(path.parents) else _diagnose(recording, **options)

    with mock.patch.object(gpuprof, "diagnose", diagnose):
        yield
