"""gpuprof: why a fine-tuning step takes as long as it does, what to change, and how much that will gain.

    import gpuprof

    diagnosis = gpuprof.diagnose("trace.json.gz")
    print(diagnosis.verdict.summary)

Importing this costs nothing: numpy and the rest are loaded by the first call that needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpuprof.diagnosis.comparison.comparison import Comparison
    from gpuprof.diagnosis.iterations.with_arguments import Value, WithArguments
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.diagnosis.written.load_diagnosis import load_diagnosis
    from gpuprof.errors import GpuprofError
    from gpuprof.projection.projection import Projection
    from gpuprof.record.entry.on_demand import on_demand
    from gpuprof.record.entry.recorder import Recorder, TrainerCallback
    from gpuprof.record.phases.phase_marks import phase
    from gpuprof.report import charts
    from gpuprof.report.page.file import write_comparison, write_report
    from gpuprof.tracefile.recording import Given
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
    "load_diagnosis",
    "on_demand",
    "phase",
    "project",
    "with_arguments",
    "write_comparison",
    "write_report",
]

__version__ = "0.2.0"

_HOMES = {
    "Comparison": "gpuprof.diagnosis.comparison.comparison",
    "Diagnosis": "gpuprof.diagnosis.result.diagnosis",
    "GpuprofError": "gpuprof.errors",
    "Projection": "gpuprof.projection.projection",
    "Recorder": "gpuprof.record.entry.recorder",
    "Trace": "gpuprof.tracefile.trace",
    "TrainerCallback": "gpuprof.record.entry.recorder",
    "load_diagnosis": "gpuprof.diagnosis.written.load_diagnosis",
    "on_demand": "gpuprof.record.entry.on_demand",
    "phase": "gpuprof.record.phases.phase_marks",
    "write_comparison": "gpuprof.report.page.file",
    "write_report": "gpuprof.report.page.file",
}


def load(recording: Given, progress: Callable[[int, int], None] | None = None) -> Trace:
    """Reads a recording: a torch.profiler trace, `.json` or `.json.gz`, an Nsight Systems export or report, a URL, or
    the trace in a run's folder (the lowest rank's, if there are several); None: the latest run.

    `progress` is called now and then with the bytes read and the total bytes. Raises GpuprofError, one
    line that says what to do, if the recording cannot be read, and for several ranks that are not a run.
    """
    from gpuprof.errors import UnreadableTrace
    from gpuprof.tracefile.recording import resolve

    _draw_in_notebooks()
    found = resolve(recording)
    contents = found.read(progress)
    if contents.trace is None:
        why = contents.failure or f"{found}: this run has no trace"
        raise UnreadableTrace(f"{why}; gpuprof.diagnose(path) says what is known of the run")
    return contents.trace


def diagnose(
    recording: Given = None,
    *,
    step: str | None = None,
    skip: int = 0,
    step_ms: float | None = None,
    top: int = 10,
    progress: Callable[[int, int], None] | None = None,
) -> Diagnosis:
    """Why a step of this recording, a path, a URL or a loaded Trace, takes as long as it does. Without one, and for
    "latest": the latest run in `gpuprof-runs`, as the command takes it.

    The path may be a trace or the folder of a run made by `gpuprof trace`, which includes the steps timed without the
    profiler. A Trace loaded from such a folder is diagnosed with its run, too.
    Several paths, a folder of traces, a run of several ranks or an export of Nsight Systems with several processes are
    the ranks of one training, diagnosed together: the diagnosis is of the rank that the others wait for, and its
    `ranks` has the whole job. An export and a torch.profiler trace of the same program, as two paths or in one run's
    folder, are combined: times are from the export, ops from the trace.

    step: regular expression on the ranges or ops that are the steps; detected if not given.
    skip: leave out this many steps at the beginning.
    step_ms: a step measured without the profiler, in milliseconds; overrides the run's.
    top: how many kernels and gaps to name.
    progress: as for `load`.

    Raises GpuprofError, one line that says what to do, if there is no such recording or it cannot be read.
    """
    from gpuprof.diagnosis.asked import Asked
    from gpuprof.diagnosis.diagnose_recording import diagnose_recording
    from gpuprof.tracefile.recording import resolve

    _draw_in_notebooks()
    return diagnose_recording(resolve(recording), Asked(step, skip, step_ms, top), progress=progress)


def compare(
    a: Diagnosis | Given,
    b: Diagnosis | Given,
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
    from gpuprof.diagnosis.result.diagnosis import Diagnosis

    one, other = (
        side if isinstance(side, Diagnosis) else diagnose(side, step=step, skip=skip, progress=progress)
        for side in (a, b)
    )
    comparison = comparing.compare(one, other, top)
    _shown_by(type(comparison), "comparison")
    return comparison


def project(
    recording: Diagnosis | Given,
    to: Sequence[str],
    *,
    recorded_on: str | None = None,
    step: str | None = None,
    skip: int = 0,
    step_ms: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    **options: Any,
) -> Projection:
    """The step of a recording, a Diagnosis or what `diagnose` takes, on other GPUs: time, what binds, what fits,
    cost.

    to: names of GPUs, as `gpuprof gpus` lists them or a part that only one has.
    recorded_on: the GPU of the recording, if the recording does not name it.
    step, skip, step_ms, progress: as for `diagnose`.

    options; one that is left out or None keeps what was recorded:

    batch, sample_tokens: samples of a forward pass and their mean length, padding included; as recorded if not given.
    host_factor: CPU time there over CPU time here; `host_measured` says that it was measured on both.
    layers, experts: of the whole model, if fewer were recorded.
    ranks: also for these numbers of such GPUs, each with its own batch.
    prices: dollars per hour by name of GPU; override gpuprof's. epoch_samples: samples of an epoch.
    explain: two GPUs; explains why the first is faster than the second.
    whole_batch: keep the batch even if it does not fit.

    Raises GpuprofError, one line that says what to do, and TypeError for an option that does not exist.
    """
    from gpuprof.diagnosis.asked import Asked
    from gpuprof.diagnosis.diagnose_recording import diagnose_recording
    from gpuprof.diagnosis.projection_input.recorded_subject import subject_of
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.projection import project as projecting
    from gpuprof.projection.gpu_names import gpu_named
    from gpuprof.projection.question import question
    from gpuprof.tracefile.recording import resolve

    asked = question(to, **options)
    source = gpu_named(recorded_on) if recorded_on else None
    if not isinstance(recording, Diagnosis):
        of_recording = Asked(step, skip, step_ms)
        recording = diagnose_recording(resolve(recording), of_recording, progress=progress, advise=False)
    projection = projecting.project(subject_of(recording, source), asked)
    _shown_by(type(projection), "projection")
    return projection


def with_arguments(
    recording: Diagnosis | Given,
    arguments: Mapping[str, Value],
    *,
    progress: Callable[[int, int], None] | None = None,
) -> WithArguments:
    """The iteration of a recorded RL training (GRPO, RLOO, ...) if its trainer's arguments had these values, such as
    {"max_completion_length": 256}: nanoseconds with an interval, by phase, and what that rests on.

    recording, progress: as for `diagnose`. Raises GpuprofError, one line, for a training without iterations, an
    argument whose cost is not known, and one whose recorded value is not.
    """
    from gpuprof.diagnosis.asked import NOTHING_ASKED
    from gpuprof.diagnosis.diagnose_recording import diagnose_recording
    from gpuprof.diagnosis.iterations.section import trainer_of
    from gpuprof.diagnosis.iterations.with_arguments import with_arguments as asking
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.errors import GpuprofError
    from gpuprof.tracefile.recording import resolve

    if not isinstance(recording, Diagnosis):
        recording = diagnose_recording(resolve(recording), NOTHING_ASKED, progress=progress)
    if recording.iteration is None or recording.folder is None:
        raise GpuprofError(
            "this run has no iterations: arguments can be changed for trainings on their own generations"
        )
    return asking(recording.iteration, trainer_of(recording.folder), arguments)


def load_ipython_extension(shell: Any) -> None:
    """`%load_ext gpuprof`: the magics `%%gpuprof` and `%gpuprof`."""
    from gpuprof.cli.notebook import register

    register(shell)


def _draw_in_notebooks() -> None:
    """Gives Diagnosis, Finding and Trace the `_repr_html_` that notebooks use, their text for `print`, and one line.
    They are in layers below report/ and may not import it; this module may.
    """
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.diagnosis.result.finding_model import Finding
    from gpuprof.tracefile.trace import Trace

    _shown_by(Diagnosis, "diagnosis")
    _shown_by(Finding, "finding")
    Trace._repr_html_ = _trace_html  # type: ignore[attr-defined]


def _shown_by(kind: type, name: str) -> None:
    """Makes `print` and notebooks show a class with `report.as_text.<name>_text` and `report.notebook.<name>_html`. Its
    `repr` is one line, as its fields are pages long."""
    if "_repr_html_" in vars(kind):
        return

    def text(self: Any) -> str:
        from gpuprof.report import as_text

        return getattr(as_text, f"{name}_text")(self)

    def html(self: Any) -> str:
        from gpuprof.report import notebook

        return getattr(notebook, f"{name}_html")(self)

    def pretty(self: Any, printer: Any, cycle: bool) -> None:
        printer.text(text(self))

    def short(self: Any) -> str:
        from gpuprof.report import as_text

        return f"<{kind.__name__}: {as_text.line(self)}>"

    shown = {"__str__": text, "__repr__": short, "_repr_html_": html, "_repr_pretty_": pretty}
    for attribute, function in shown.items():
        setattr(kind, attribute, function)


def _trace_html(trace: Trace) -> str:
    from gpuprof.report.notebook import trace_html

    return trace_html(trace)


def __getattr__(name: str) -> Any:
    """Types, the charts and `phase`, on first use."""
    if name in _HOMES:
        from importlib import import_module

        found = getattr(import_module(_HOMES[name]), name)
        if name == "load_diagnosis":
            _draw_in_notebooks()
        return found
    if name == "charts":
        from importlib import import_module

        return import_module("gpuprof.report.charts")
    raise AttributeError(f"module 'gpuprof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
