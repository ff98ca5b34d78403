"""The report as a file: written whole or not at all, and known again."""

from __future__ import annotations

import os
from pathlib import Path

from gpuprof.diagnosis.model import Diagnosis
from gpuprof.errors import GpuprofError

_MARK = b'<meta name="generator" content="gpuprof">'
"""What every report has near its top."""


def write_report(diagnosis: Diagnosis, path: str | os.PathLike[str]) -> None:
    """Writes the report of a diagnosis as one HTML file that needs nothing else; a file that is there is replaced.

    Raises GpuprofError, one line, where it cannot be written.
    """
    from gpuprof.report.page.html import render

    target = Path(path)
    page = render(diagnosis)
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        try:
            partial.write_text(page, encoding="utf-8", errors="backslashreplace", newline="\n")
            partial.replace(target)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise GpuprofError(f"{target} cannot be written: {error.strerror}") from error


def is_report(path: Path) -> bool:
    """Whether a file is a report, or empty: then nothing is lost by writing over it."""
    try:
        with path.open("rb") as file:
            start = file.read(4096)
    except OSError:
        return False
    return not start.strip() or _MARK in start
