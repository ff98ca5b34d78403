"""Expensive files made once in a test session, however many workers run it."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

DONE = ".made"


def once(tmp_path_factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of this session, filled by `make(folder)` in the first worker that asks for it.

    The other workers wait until it is filled. Treat what is in it as read-only. Where `make` fails, its exception is
    raised and the next caller tries again with an empty folder.
    """
    return once_in(session_folder(tmp_path_factory), name, make)


def once_in(shared: Path, name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of a folder that several processes share, filled by the first that asks for it; as `once`."""
    folder = shared / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # released when the file is closed, also when the worker dies
        if not (folder / DONE).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            make(folder)
            (folder / DONE).touch()
    return folder


def session_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The temporary folder that all workers of this session share."""
    own = tmp_path_factory.getbasetemp()
    return (own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own) / "once"
