"""Recordings diagnosed once in a test session, however many tests and workers ask for them."""

from __future__ import annotations

import functools
import hashlib
import pickle
from pathlib import Path

import pytest
from isal import igzip

import gpuprof
from gpuprof.diagnosis.diagnosis import Diagnosis
from helpers.once import once

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
