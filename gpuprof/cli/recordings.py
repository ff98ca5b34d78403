"""The recording that a command is about: which one, diagnosed, and what files made of it are named after."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.cli.output import say
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.diagnosis.diagnosis import Diagnosis

TOP_IN_JSON = 10
_RECORDING_SUFFIXES = (".gz", ".json", ".trace", ".pt")


def latest() -> Path:
    """The newest run. Raises GpuprofError where there is none."""
    from gpuprof.tracefile.run import latest_run

    try:
        return latest_run()
    except GpuprofError as error:
        raise GpuprofError(f"no recording given: {error}") from None


def diagnose_file(
    *paths: Path,
    step: str | None = None,
    skip: int = 0,
    step_ms: float | None = None,
    top: int = TOP_IN_JSON,
) -> Diagnosis:
    """The diagnosis of a trace, a run or several ranks, with a progress bar while they are read."""
    from gpuprof import diagnose
    from gpuprof.cli.progress import reading

    with reading(paths[0].name) as progress:
        diagnosis = diagnose(paths, step=step, skip=skip, step_ms=step_ms, top=top, progress=progress)
    warn_of_environment(paths)
    return diagnosis


def warn_of_environment(paths: tuple[Path, ...]) -> None:
    """Says of reports of Nsight Systems what is in them: who analyses one may be about to pass it on."""
    from gpuprof.nsight.convert import KEEPS_ENVIRONMENT, REPORTS

    for path in paths:
        if path.name.endswith(REPORTS):
            say(f"{path.name} {KEEPS_ENVIRONMENT}")


def recording_name(recording: Path) -> str:
    """What files made of it are named after: the run's folder, or the trace without its suffixes."""
    with contextlib.suppress(OSError):  # of a name that no file can have; reading it says so
        if recording.is_dir():
            return recording.resolve().name or "recording"
    name = recording.name
    for suffix in _RECORDING_SUFFIXES:
        name = name.removesuffix(suffix)
    return name or "recording"
