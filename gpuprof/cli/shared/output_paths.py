"""Checks where a command may write a page."""

from __future__ import annotations

from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.runfile import REPORT


def check_place(target: Path, recordings: tuple[Path, ...], option: str = "-o") -> None:
    """Raises GpuprofError if writing would destroy something or cannot succeed; `option`: the flag that sets the
    path."""
    try:
        _check_place(target, recordings, option)
    except OSError as error:  # such as a name that is too long
        raise GpuprofError(f"{target} cannot be written: {error.strerror}") from error


def _check_place(target: Path, recordings: tuple[Path, ...], option: str) -> None:
    if str(target) == "-":
        raise GpuprofError("the page cannot be written to stdout here: name a file")
    if target.is_dir():
        raise GpuprofError(f"{target} is a folder: name a file, such as {target / REPORT}")
    if not target.parent.is_dir():
        raise GpuprofError(f"{target.parent} does not exist: create the folder first, or name another with {option}")
    if not target.exists():
        return
    if any(target.samefile(recording) for recording in recordings if recording.exists()):
        raise GpuprofError(f"{target} is the recording itself: name another file with {option}")
    from gpuprof.report.page.file import is_report

    if not is_report(target):
        raise GpuprofError(f"{target} exists and is not a report: name another file with {option}")
