"""The report as a file, written whole or not at all; and whether a file is a report."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.errors import GpuprofError
from gpuprof.runfile import open_regular, whole_file

if TYPE_CHECKING:
    from gpuprof.diagnosis.comparison.comparison import Comparison
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.diagnosis.roles.model import Roles
    from gpuprof.memory.memory_report import MemoryReport
    from gpuprof.report.page.rank_pages import ReportLink

_MARK = b'<meta name="generator" content="gpuprof">'
"""What every report contains near its top."""


def write_report(diagnosis: Diagnosis, path: str | os.PathLike[str], links: tuple[ReportLink, ...] = ()) -> None:
    """Writes the report of a diagnosis as one HTML file that needs nothing else; replaces an existing file.

    `links`: reports of other ranks, which the timeline's section names. Raises GpuprofError, one line, where it cannot
    be written.
    """
    from gpuprof.report.page.html import render

    _write(render(diagnosis, links=links), path)


def write_comparison(comparison: Comparison, path: str | os.PathLike[str]) -> None:
    """Writes a comparison as one HTML file, as `write_report` does a diagnosis."""
    from gpuprof.report.page.comparison import render

    _write(render(comparison), path)


def write_memory(report: MemoryReport, path: str | os.PathLike[str]) -> None:
    """Writes who holds a GPU's memory as one HTML file, as `write_report` does a diagnosis."""
    from gpuprof.report.page.memory_page import render

    _write(render(report), path)


def write_roles(roles: Roles, path: str | os.PathLike[str]) -> None:
    """Writes the roles of a job as one HTML file, as `write_report` does a diagnosis."""
    from gpuprof.report.page.roles import render

    _write(render(roles), path)


def _write(page: str, path: str | os.PathLike[str]) -> None:
    target = Path(path)
    try:
        if target.exists() and not target.is_file():  # a pipe or a device would be replaced by the page
            raise GpuprofError(f"{target} exists and is not a file")
        with whole_file(target) as file:
            file.write(page.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise GpuprofError(f"{target} cannot be written: {error.strerror}") from error
    except ValueError as error:  # a NUL
        raise GpuprofError(f"{os.fspath(path)!r} is not a file name") from error


def is_report(path: Path) -> bool:
    """Whether a file is a report, or empty: then nothing is lost by overwriting it."""
    try:
        if not path.is_file():  # reading a pipe would wait, and a device looks like an empty file
            return False
        with open_regular(path) as file:
            start = file.read(4096)
    except OSError:
        return False
    return not start.strip() or _MARK in start
