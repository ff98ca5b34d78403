"""Makes the folder of a run, never overwriting anything, and points `latest` to it."""

from __future__ import annotations

import os
import time
from pathlib import Path

from ... import runfile
from .command import CannotStart


def make_folder(stem: str, out: str | None) -> Path:
    """A new folder for a run, absolute. Raises CannotStart if `--out` cannot be used, OSError for the default
    folder."""
    if out is None:
        return _new_folder(Path(runfile.RUNS).absolute(), time.strftime("%Y-%m-%d_%H%M%S") + f"_{stem}")
    folder = Path(out).absolute()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=0o700)
    except FileExistsError:
        try:
            taken = next(folder.iterdir(), None) is not None
        except OSError:
            raise CannotStart(f"--out {out}: already exists, and is not a folder") from None
        if taken:
            raise CannotStart(f"--out {out}: is not empty, and gpuprof overwrites nothing: name a new folder") from None
    except (OSError, ValueError) as error:
        raise CannotStart(f"--out {out}: cannot be created ({getattr(error, 'strerror', None) or error})") from None
    if not os.access(folder, os.W_OK | os.X_OK):
        raise CannotStart(f"--out {out}: is not writable")
    return folder


def _new_folder(runs: Path, name: str) -> Path:
    try:
        runs.mkdir(mode=0o700)
    except FileExistsError:
        pass
    number = 1
    while True:
        folder = runs / (name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir(mode=0o700)
        except FileExistsError:
            if not os.path.lexists(folder) or number > 10_000:  # `runs` is a file
                raise
            number += 1
        else:
            return folder


def point_latest(folder: Path) -> bool:
    """Makes `gpuprof-runs/latest` point to this run; False if that cannot be done."""
    runs = Path(runfile.RUNS).absolute()
    link = runs / runfile.LATEST
    partial = runs / f".{runfile.LATEST}.{os.getpid()}"
    try:
        runs.mkdir(mode=0o700, exist_ok=True)
        partial.symlink_to(os.path.relpath(os.path.realpath(folder), os.path.realpath(runs)))
        try:
            partial.replace(link)
        except OSError:
            partial.unlink()
            raise
    except OSError as error:
        runfile.log(folder, f"{link} does not point to this run: {error}")
        return False
    return True
