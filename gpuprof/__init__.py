"""gpuprof: why a fine-tuning step takes as long as it does, what to change, and how much that will gain.

    import gpuprof

    diagnosis = gpuprof.diagnose("trace.json.gz")
    print(diagnosis.verdict.summary)

Importing this costs nothing: numpy and the rest are loaded by the first call that needs them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.diagnosis.model import Diagnosis
    from gpuprof.errors import GpuprofError
    from gpuprof.record.recorder import Recorder, TrainerCallback
    from gpuprof.tracefile.model import Trace

__all__ = [
    "Diagnosis",
    "GpuprofError",
    "Recorder",
    "Trace",
    "TrainerCallback",
    "__version__",
    "diagnose",
    "load",
]

__version__: str

_HOMES = {
    "Diagnosis": "gpuprof.diagnosis.model",
    "GpuprofError": "gpuprof.errors",
    "Recorder": "gpuprof.record.recorder",
    "Trace": "gpuprof.tracefile.model",
    "TrainerCallback": "gpuprof.record.recorder",
}


def load(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Trace:
    """Reads a recording: a trace that torch.profiler exported, `.json` or `.json.gz`, or that of a run's folder.

    `progress` is called now and then with the bytes read and the bytes there are. Raises GpuprofError, one
    line that says what to do, if the file cannot be read.
    """
    from gpuprof.errors import UnreadableTrace
    from gpuprof.tracefile.read import read_recording

    _draw_in_notebooks()
    recording = read_recording(path, progress)
    if recording.trace is None:
        why = recording.failure or f"{os.fspath(path)}: this run has no trace"
        raise UnreadableTrace(f"{why}; gpuprof.diagnose(path) says what is known of the run")
    return recording.trace


def diagnose(
    recording: str | os.PathLike[str] | Trace,
    *,
    step: str | None = None,
    skip: int = 0,
    step_ms: float | None = None,
    top: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Why a step of this recording, a path or a loaded Trace, takes as long as it does.

    The path of a trace, or of the folder of a run that `gpuprof trace` made; a run brings the steps that it timed
    without the profiler. A Trace loaded from such a folder is taken together with its run, too.

    step: regular expression on the ranges or ops that are the steps; found out if not given.
    skip: leave out so many steps at the beginning.
    step_ms: a step measured without the profiler, in milliseconds; goes before what a run says.
    top: how many kernels and gaps to name.
    progress: as for `load`.
    """
    from gpuprof.diagnosis import diagnose as diagnosing
    from gpuprof.tracefile.model import Trace
    from gpuprof.tracefile.read import Recording, read_recording, run_of

    if isinstance(recording, Trace):
        found = Recording(recording, run_of(recording.reading.path))
    else:
        found = read_recording(recording, progress)
    _draw_in_notebooks()
    return diagnosing.diagnose(
        found.trace, run=found.run, failure=found.failure, step=step, skip=skip, step_ms=step_ms, top=top
    )


def _draw_in_notebooks() -> None:
    """Gives Diagnosis and Trace the `_repr_html_` that notebooks look for.

    Both live on floors below report/ and may not import it; this, the roof, may.
    """
    from gpuprof.diagnosis.model import Diagnosis
    from gpuprof.tracefile.model import Trace

    Diagnosis._repr_html_ = _diagnosis_html  # type: ignore[attr-defined]
    Trace._repr_html_ = _trace_html  # type: ignore[attr-defined]


def _diagnosis_html(diagnosis: Diagnosis) -> str:
    from gpuprof.report.notebook import diagnosis_html

    return diagnosis_html(diagnosis)


def _trace_html(trace: Trace) -> str:
    from gpuprof.report.notebook import trace_html

    return trace_html(trace)


def __getattr__(name: str) -> Any:
    """Types and the version, on first use."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("gpuprof-toolkit")
        except PackageNotFoundError:  # a checkout on the path, never installed
            return "0+unknown"
    raise AttributeError(f"module 'gpuprof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
