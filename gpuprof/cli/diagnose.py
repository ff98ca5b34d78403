"""`gpuprof diagnose`: says where the steps of a recording spend their time, as text or JSON."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.shared.option_types import WholeNumber
from gpuprof.cli.shared.output import GATE_FAILED, say
from gpuprof.cli.shared.output_paths import check_place
from gpuprof.cli.shared.printing import InBrief, OfDiagnosis, OfIterations, OfRoles, gates, put
from gpuprof.cli.shared.recordings import RECORDING, TOP_IN_JSON, diagnose_given, given
from gpuprof.diagnosis.asked import Asked
from gpuprof.units import Code, Convention

if TYPE_CHECKING:
    from gpuprof.cli.shared.gates import Gate
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.tracefile.nsight_compute import Counted
    from gpuprof.tracefile.recording import Recording

UNUSABLE: Convention[Code] = 2


def _finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter("a step time must be above 0")
    return value


def _gate(text: str) -> Gate:
    from gpuprof.cli.shared.gates import parse

    return parse(text)


@click.command(short_help="Find out why a step takes as long as it does.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=RECORDING)
@click.option("--json", is_flag=True, help="Print the whole diagnosis as JSON.")
@click.option("--brief", is_flag=True, help="With --json: verdict, budget and findings only, in less than 4 kB.")
@click.option("--markdown", is_flag=True, help="Print it as Markdown, for a comment on a pull request.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write the HTML report."
)
@click.option("--roles", is_flag=True, help="Put processes of different roles (trainer, generator) on one timeline.")
@click.option("--top", type=WholeNumber(1), metavar="N", help="As -v, with N kernels (default 5; 10 in JSON).")
@click.option("-v", "--verbose", is_flag=True, help="Everything: run, all fixes, waits, kernels, phases, notes.")
@click.option("--step", metavar="REGEX", help="Name of the range or op that is a step; detected by default.")
@click.option("--skip", type=WholeNumber(0), default=0, metavar="N", help="Skip the first N steps.")
@click.option(
    "--ncu", type=click.Path(path_type=Path, dir_okay=False), metavar="CSV",
    help="Show counters of Nsight Compute (ncu --csv --page raw) next to the same kernels.",
)  # fmt: skip
@click.option("--step-ms", type=float, callback=_finite, metavar="MS", help="Step time measured without a profiler.")
@click.option(
    "--fail-on", multiple=True, callback=gates(_gate), metavar="METRIC:LIMIT",
    help="Exit 1 if METRIC is above LIMIT: idle:40%, cpu_bound:30%, step_time:200ms, unattributed:5%, or a "
    "cause of idle time, such as launch:20%. Repeatable.",
)  # fmt: skip
def command(
    paths: tuple[str, ...],
    json: bool,
    brief: bool,
    markdown: bool,
    html: Path | None,
    roles: bool,
    top: int | None,
    verbose: bool,
    step: str | None,
    skip: int,
    ncu: Path | None,
    step_ms: float | None,
    fail_on: tuple[Gate, ...],
) -> int:
    """Find out why a step of the training recorded in PATH takes as long as it does.

    PATH is a run folder made by gpuprof trace, a torch.profiler trace (.json or .json.gz), or an Nsight Systems
    recording (.sqlite or .nsys-rep). Without PATH: the latest run in gpuprof-runs. A folder of traces, or several
    PATHs, are treated as the ranks of one training; an Nsight Systems recording and a torch.profiler trace of the same
    program are combined. The log of an RL post-training (verl, NeMo-RL, slime, OpenRLHF, SkyRL, prime-rl), or its
    tracker's JSON, CSV or TensorBoard files, gives the phases of its iterations. Runs of its trainer and of its
    generator are put on one timeline.
    """
    if brief and not json:
        raise click.UsageError("--brief needs --json")
    if markdown and json:
        raise click.UsageError("--json and --markdown exclude each other")
    recording = given(paths)
    kind = "roles" if roles else recording.kind
    if kind in ("roles", "logs"):
        if html is not None or markdown or brief or step or skip or ncu or step_ms or fail_on:
            what = "for roles on one timeline" if kind == "roles" else f"{recording} is a log: for one"
            raise click.UsageError(f"{what} there is only --json and --top")
        _put_job(recording, kind, json, top)
        return 0
    if html is not None:
        check_place(html, recording.files, "--html")
    counted = None if ncu is None else _counted(ncu)
    diagnosis = diagnose_given(recording, Asked(step, skip, step_ms, top or TOP_IN_JSON))
    if counted is not None:
        from gpuprof.diagnosis.counters.counters import with_counters

        diagnosis = with_counters(diagnosis, counted)
    renderer = InBrief() if brief else OfDiagnosis()
    put(renderer, diagnosis, json, top, html, markdown, verbose=verbose or top is not None)
    run = recording.run_folder
    if run is not None and not json and recording.has_roles:
        say(f"processes of this run generate and train: gpuprof diagnose --roles {run} puts them on one timeline")
    return exit_code(diagnosis, fail_on, as_json=json)


def _counted(path: Path) -> tuple[Counted, ...]:
    """A table of counters; read before the recording, so that a wrong path is reported at once."""
    from gpuprof.tracefile.nsight_compute import read_counters

    return read_counters(path)


def _put_job(recording: Recording, kind: str, json: bool, top: int | None) -> None:
    """Prints what the runs or logs of a job show about the job as a whole."""
    if kind == "roles":
        from gpuprof.diagnosis.roles.sources import diagnose_roles

        put(OfRoles(), diagnose_roles(recording), json, top)
    else:
        from gpuprof.diagnosis.iterations.logged import diagnose_logs

        put(OfIterations(), diagnose_logs(recording.logs), json, top)


def exit_code(diagnosis: Diagnosis, gates: tuple[Gate, ...], as_json: bool) -> int:
    """The exit code; prints errors and failed gates to stderr."""
    if diagnosis.quality.status == "unusable":
        if as_json:
            worst = [issue.message for issue in diagnosis.quality.issues if issue.severity == "error"]
            say(" ".join(["this recording cannot be diagnosed:", *worst[:1]]))
        return UNUSABLE
    codes = [_check(gate, diagnosis) for gate in gates]
    return max(codes, default=0)


def _check(gate: Gate, diagnosis: Diagnosis) -> int:
    """0 if the gate holds. A gate that cannot be checked must not pass."""
    from gpuprof.cli.shared.gates import TIMES, measure
    from gpuprof.report.numbers import duration, percent

    value = measure(gate, diagnosis)
    if value is None:
        say(f"--fail-on {gate.metric}: not known from this recording")
        return UNUSABLE
    if value <= gate.limit:
        return 0
    shown = duration(value) if gate.metric in TIMES else percent(value)
    say(f"gate failed: {gate.metric} is {shown}, the limit is {gate.text}")
    return GATE_FAILED
