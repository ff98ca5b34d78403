"""Reports of Nsight Systems (`.nsys-rep`, `.qdstrm`), which only its own tools can open: they are exported first."""

from __future__ import annotations

from pathlib import Path

from gpuprof.errors import UnreadableTrace
from gpuprof.nsight.convert import REPORTS, NsysError, to_sqlite

EXPORTS = (".sqlite", ".sqlite.gz")


def is_report(path: Path, head: bytes) -> bool:
    """Whether a file, beginning with `head`, is a report that has to be exported first."""
    return path.name.endswith(REPORTS) or head.startswith(b"QDSTRM")


def exported(report: Path) -> tuple[Path, int]:
    """The SQLite export of a report, and its size: the one next to it if it is up to date, else a new one.
    Raises UnreadableTrace, one line, if no installed Nsight Systems can make one.
    """
    export = report.with_suffix(".sqlite")
    if export.exists() and not _is_fresh(export, report):
        export = report.with_suffix(".gpuprof.sqlite")  # an existing export is the user's: do not overwrite it
    try:
        if not _is_fresh(export, report):
            to_sqlite(report, export)
        return export, export.stat().st_size
    except NsysError as error:
        raise UnreadableTrace(str(error)) from None
    except OSError as error:
        raise UnreadableTrace(f"{export}: cannot be read ({error.strerror})") from None


def _is_fresh(export: Path, report: Path) -> bool:
    try:
        return export.is_file() and export.stat().st_mtime >= report.stat().st_mtime
    except OSError:
        return False
