"""gpuprof: why a fine-tuning step takes as long as it does, what to change, and how much that will gain.

    import gpuprof

    diagnosis = gpuprof.diagnose("trace.json.gz")
    print(diagnosis.verdict.summary)

Importing this costs nothing: numpy and the rest are loaded by the first call that needs them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.diagnosis.comparison.comparison import Comparison
    from gpuprof.diagnosis.diagnosis import Diagnosis, Finding
    from gpuprof.diagnosis.ranks import Gang
    from gpuprof.errors import GpuprofError
    from gpuprof.projection.projection import Projection
    from gpuprof.record.recorder import Recorder, TrainerCallback
    from gpuprof.report import charts
    from gpuprof.report.page.file import write_comparison, write_report
    from gpuprof.tracefile.trace import Trace

__all__ = [
    "Comparison",
    "Diagnosis",
    "GpuprofError",
    "Projection",
    "Recorder",
    "Trace",
    "TrainerCallback",
    "__version__",
    "charts",
    "compare",
    "diagnose",
    "load",
    "project",
    "write_comparison",
    "write_report",
]

__version__ = "0.2.0"

_HOMES = {
    "Comparison": "gpuprof.diagnosis.comparison.comparison",
    "Diagnosis": "gpuprof.diagnosis.diagnosis",
    "GpuprofError": "gpuprof.errors",
    "Projection": "gpuprof.projection.projection",
    "Recorder": "gpuprof.record.recorder",
    "Trace": "gpuprof.tracefile.trace",
    "TrainerCallback": "gpuprof.record.recorder",
    "write_comparison": "gpuprof.report.page.file",
    "write_report": "gpuprof.report.page.file",
}


def load(path: str | os.PathLike[str], progress: Callable[[int, int], None] | None = None) -> Trace:
    """Reads a recording: a trace that torch.profiler exported, `.json` or `.json.gz`, an export of Nsight Systems,
    `.sqlite`, or that of a run's folder.

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
    recording: str | os.PathLike[str] | Trace | Sequence[str | os.PathLike[str]] | None = None,
    *,
    step: str | None = None,
    skip: int = 0,
    step_ms: float | None = None,
    top: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Why a step of this recording, a path or a loaded Trace, takes as long as it does. Without one: the latest run
    in `gpuprof-runs`, as the command takes it.

    The path of a trace, or of the folder of a run that `gpuprof trace` made; a run brings the steps that it timed
    without the profiler. A Trace loaded from such a folder is diagnosed with its run, too.
    Several paths, a folder of traces, a run of several ranks or an export of Nsight Systems with several processes are
    the ranks of one training, diagnosed together: the diagnosis is that of the rank that the others wait for, in the
    step of all, and has `ranks`. An export and a trace of torch.profiler of the same program, as two paths or in one
    run's folder, are read together: the times are the export's, the ops the trace's.

    step: regular expression on the ranges or ops that are the steps; found out if not given.
    skip: leave out this many steps at the beginning.
    step_ms: a step measured without the profiler, in milliseconds; goes before what a run says.
    top: how many kernels and gaps to name.
    progress: as for `load`.

    Raises GpuprofError, one line that says what to do, if there is no such recording or it cannot be read.
    """
    from gpuprof.diagnosis import diagnose as diagnosing
    from gpuprof.tracefile.read import Recording, read_pair, read_recording, run_of
    from gpuprof.tracefile.remote import fetched, traces_at, url_of
    from gpuprof.tracefile.run import latest_run
    from gpuprof.tracefile.trace import Trace

    gang = None
    if recording is None:
        recording = latest_run()
    if isinstance(recording, Trace):
        found = Recording(recording, run_of(recording.reading.path))
    else:
        paths = [recording] if isinstance(recording, (str, os.PathLike)) else list(recording)
        both = None if any(url_of(path) for path in paths) else read_pair(paths, progress)
        gang = None if both else _survey(paths, step, skip, progress)
        chosen = paths[0] if gang is None else gang.ranks[gang.shown].path
        with contextlib.ExitStack() as copies:
            url = url_of(chosen)
            local = copies.enter_context(fetched(traces_at(url)[0])) if url and both is None else chosen
            found = both or read_recording(local, progress)
    _draw_in_notebooks()
    diagnosis = diagnosing.diagnose(
        found.trace, run=found.run, named=found.named, failure=found.failure, step=step, skip=skip, step_ms=step_ms,
        top=top, ranks=1 if gang is None else len(gang.ranks), of_all_ns=gang and gang.known_step_ns,
    )  # fmt: skip
    if gang is None:
        return diagnosis
    from gpuprof.diagnosis.combine_ranks import with_ranks

    return with_ranks(diagnosis, gang)


def compare(
    a: Diagnosis | str | os.PathLike[str] | Trace | Sequence[str | os.PathLike[str]],
    b: Diagnosis | str | os.PathLike[str] | Trace | Sequence[str | os.PathLike[str]],
    *,
    step: str | None = None,
    skip: int = 0,
    top: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Where the step of recording B differs from that of A, and why: each a Diagnosis, or what `diagnose` takes.

    step, skip, progress: as for `diagnose`, of both. top: how many kernels and ops to name.
    Raises GpuprofError, one line that says what to do, for recordings that cannot be compared.
    """
    from gpuprof.diagnosis.comparison import compare as comparing
    from gpuprof.diagnosis.diagnosis import Diagnosis

    one, other = (
        side if isinstance(side, Diagnosis) else diagnose(side, step=step, skip=skip, progress=progress)
        for side in (a, b)
    )
    return comparing.compare(one, other, top)


def project(
    recording: str | os.PathLike[str] | Trace | Diagnosis,
    to: Sequence[str],
    *,
    recorded_on: str | None = None,
    step: str | None = None,
    skip: int = 0,
    step_ms: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Projection:
    """The step of this recording, a path, a Trace or its Diagnosis, on other GPUs: time, what binds, what fits, cost.

    to: names of GPUs, as `gpuprof gpus` lists them or a part that only one has.
    recorded_on: the GPU of the recording, where that does not name it.
    step, skip, step_ms, progress: as for `diagnose`.

    options, each left out or None for a step as it was recorded:

    batch, sample_tokens: samples of a forward pass and their mean length, padding included; as recorded if not given.
    host_factor: host time there over host time here; `host_measured` says that it was measured on both.
    layers, experts: of the whole model, where fewer were recorded.
    ranks: also on these numbers of such GPUs, each with a batch of its own.
    prices: dollars per hour by name of GPU, before those that come with gpuprof. epoch_samples: of an epoch.
    explain: two GPUs; says in words why the first beats the second.
    whole_batch: keep the batch even where it does not fit.

    Raises GpuprofError, one line that says what to do, and TypeError for an option that does not exist.
    """
    from gpuprof.diagnosis import diagnose as diagnosing
    from gpuprof.diagnosis.diagnosis import Diagnosis
    from gpuprof.diagnosis.projection_input.subject import subject_of
    from gpuprof.projection import project as projecting
    from gpuprof.projection.gpu_names import gpu_named
    from gpuprof.projection.question import question
    from gpuprof.tracefile.read import Recording, read_recording, run_of
    from gpuprof.tracefile.trace import Trace

    asked = question(to, **options)
    source = gpu_named(recorded_on) if recorded_on else None
    if not isinstance(recording, Diagnosis):
        if isinstance(recording, Trace):
            found = Recording(recording, run_of(recording.reading.path))
        else:
            found = read_recording(recording, progress)
        recording = diagnosing.diagnose(
            found.trace, run=found.run, named=found.named, failure=found.failure, step=step, skip=skip, step_ms=step_ms,
            advise=False,
        )  # fmt: skip
    return projecting.project(subject_of(recording, source), asked)


def _survey(
    paths: Sequence[str | os.PathLike[str]], step: str | None, skip: int, progress: Callable[[int, int], None] | None
) -> Gang | None:
    """What several ranks show together; None where the paths mean one recording."""
    from pathlib import Path

    from gpuprof.errors import GpuprofError, UnreadableTrace
    from gpuprof.tracefile.ranks import rank_traces
    from gpuprof.tracefile.read import read_trace, run_of
    from gpuprof.tracefile.remote import traces_at, url_of

    if not paths:
        raise GpuprofError("there is no recording to diagnose")
    urls = [url_of(path) for path in paths]
    traces: Sequence[str | Path]
    if any(urls):
        traces = [
            one for url, path in zip(urls, paths, strict=True) for one in (traces_at(url) if url else [str(path)])
        ]
        if len(traces) == 1:
            return None
    else:
        traces = rank_traces([Path(path) for path in paths])
    if not traces:
        return None
    from gpuprof.diagnosis.ranks import survey

    try:
        return survey(traces, lambda path: read_trace(path, progress), step, skip)
    except UnreadableTrace:
        # Of a run or an export whose ranks cannot be compared, such as one on CPUs, the first still tells something.
        if len(paths) == 1 and (run_of(paths[0]) is not None or Path(paths[0]).is_file()):
            return None
        raise


def _draw_in_notebooks() -> None:
    """Gives Diagnosis, Finding and Trace the `_repr_html_` that notebooks look for.

    They live on floors below report/ and may not import it; this, the roof, may.
    """
    from gpuprof.diagnosis.diagnosis import Diagnosis, Finding
    from gpuprof.tracefile.trace import Trace

    Diagnosis._repr_html_ = _diagnosis_html  # type: ignore[attr-defined]
    Finding._repr_html_ = _finding_html  # type: ignore[attr-defined]
    Trace._repr_html_ = _trace_html  # type: ignore[attr-defined]


def _diagnosis_html(diagnosis: Diagnosis) -> str:
    from gpuprof.report.notebook import diagnosis_html

    return diagnosis_html(diagnosis)


def _finding_html(finding: Finding) -> str:
    from gpuprof.report.notebook import finding_html

    return finding_html(finding)


def _trace_html(trace: Trace) -> str:
    from gpuprof.report.notebook import trace_html

    return trace_html(trace)


def __getattr__(name: str) -> Any:
    """Types and the charts, on first use."""
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    if name == "charts":
        from importlib import import_module

        return import_module("gpuprof.report.charts")
    raise AttributeError(f"module 'gpuprof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
