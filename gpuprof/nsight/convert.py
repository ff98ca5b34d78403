"""Converts Nsight Systems reports (`.nsys-rep`, or `.qdstrm` if its importer did not run) to SQLite."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from gpuprof.nsight.call import Answer, NsysError, call
from gpuprof.nsight.find import Nsys, find
from gpuprof.nsight.strip import strip_environment
from gpuprof.units import Assumed, Seconds

REPORT, STREAM = ".nsys-rep", ".qdstrm"
REPORTS = (REPORT, STREAM)
"""Endings of what can be converted."""
CONVERSION_S: Assumed[Seconds] = 900.0
"""Seconds that a conversion may take: a report of gigabytes takes minutes."""
READ_ONLY = "GPUPROF_READ_ONLY"
"""Environment variable that forbids conversions, which run a program and write a file."""
KEEPS_ENVIRONMENT = (
    "holds the whole environment of the process, tokens included: do not pass it on; the export does not"
)
"""Warning about a report, printed after its name."""


def to_sqlite(path: Path, into: Path) -> Path:
    """Writes the SQLite export of a report to `into`, without environment and arguments, and returns the path.
    The report stays unchanged; `into` appears when it is complete. Raises NsysError: one line that says what is
    missing.
    """
    if path.suffix not in REPORTS:
        raise NsysError(f"{path} is not a report of Nsight Systems ({' or '.join(REPORTS)})")
    if not path.is_file():
        raise NsysError(f"{path}: no such file")
    if os.environ.get(READ_ONLY):
        raise NsysError(f"{path}: reports are not converted here: run nsys export --type=sqlite on it first")
    try:
        nsys = find()
    except NsysError as error:
        raise NsysError(f"{path}: reading it needs {_maker(path)}: {error}") from None
    try:
        with tempfile.TemporaryDirectory(prefix=".nsys-", dir=into.parent) as folder:
            made = Path(folder) / "export.sqlite"
            report = path if path.suffix == REPORT else _import(nsys, path, Path(folder) / f"report{REPORT}")
            answer = call(
                [nsys.path, "export", "--type=sqlite", "--force-overwrite=true", f"--output={made}", str(report)],
                CONVERSION_S, _environment(nsys),
            )  # fmt: skip
            if answer.code or not made.is_file():
                raise NsysError(_refusal(nsys, path, answer))
            strip_environment(made)
            made.chmod(0o600)
            made.replace(into)
    except OSError as error:
        raise NsysError(f"{into}: cannot be written ({error.strerror or error})") from None
    return into


def export_in(folder: Path, name: str) -> Path:
    """The export with this name in a folder, converted now if there is only a report. Raises NsysError."""
    export = folder / f"{name}.sqlite"
    if export.is_file():
        return export
    report = next((path for ending in REPORTS if (path := folder / f"{name}{ending}").is_file()), None)
    if report is None:
        raise NsysError(f"{folder}: Nsight Systems left no report ({name}.log may say why)")
    return to_sqlite(report, export)


def _import(nsys: Nsys, path: Path, report: Path) -> Path:
    """Makes a report of the raw stream that nsys leaves if it could not run its importer."""
    importer = _importer(nsys)
    if importer is None:
        raise NsysError(
            f"{path}: {nsys.path} has no QdstrmImporter next to it: install Nsight Systems with its host part"
        )
    answer = call([str(importer), "-i", str(path), "-o", str(report)], CONVERSION_S, _environment(nsys))
    if answer.code or not report.is_file():
        raise NsysError(_refusal(nsys, path, answer))
    return report


def _importer(nsys: Nsys) -> Path | None:
    """The importer that belongs to an nsys: in the neighbouring folder host-linux-… or linux-desktop-…."""
    own = Path(os.path.realpath(nsys.path)).parent
    for folder in (own, own.parent):
        for pattern in ("QdstrmImporter", "host-linux-*/QdstrmImporter", "linux-desktop-*/QdstrmImporter"):
            found = sorted(folder.glob(pattern), reverse=True)
            if found:
                return found[0]
    return None


def _environment(nsys: Nsys) -> dict[str, str]:
    """Our environment, with the importer's libraries first: it does not find them by itself."""
    variables = dict(os.environ)
    importer = _importer(nsys)
    if importer is not None:
        before = variables.get("LD_LIBRARY_PATH")
        variables["LD_LIBRARY_PATH"] = os.pathsep.join([str(importer.parent), *([before] if before else [])])
    return variables


def _refusal(nsys: Nsys, path: Path, answer: Answer) -> str:
    """Why a conversion failed, and what would help."""
    library = re.search(r"loading shared libraries: ([\w.+-]+)", answer.text)
    if library:
        name = library[1]
        packages = (
            "the packages libdw1 and libelf1 (Debian, Ubuntu) or elfutils-libs (Fedora, RHEL)"
            if name.startswith(("libdw", "libelf"))
            else "the package that has it"
        )
        return f"{path}: Nsight Systems' importer lacks {name}: install {packages}, then gpuprof diagnose {path.name}"
    made_by = _version_in(path)
    if made_by and made_by[: len(nsys.version)] > nsys.version[: len(made_by)]:
        newer = ".".join(map(str, made_by))
        return f"{path} was made by Nsight Systems {newer}, which nsys {nsys.version_text} cannot read: install that"
    words = answer.words() or f"exit code {answer.code}"
    hint = ": a newer one is needed" if re.search(r"newer|version", words, re.I) else ""
    return f"{path}: nsys {nsys.version_text} cannot read it{hint} ({words})"


def _maker(path: Path) -> str:
    """Text for the nsys version that a report needs."""
    version = _version_in(path)
    return f"nsys {'.'.join(map(str, version))} or newer" if version else "nsys as new as the one that made it"


def _version_in(path: Path) -> tuple[int, ...] | None:
    """The version of the nsys that made a report, if its first bytes contain it in plain text."""
    try:
        with path.open("rb") as file:
            head = file.read(1 << 16)
    except OSError:
        return None
    found = re.search(rb"\b(20[2-9]\d\.\d{1,2}\.\d{1,2}(?:\.\d+)?)\b", head)
    return tuple(int(part) for part in found[1].split(b".")) if found else None
