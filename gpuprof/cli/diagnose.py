"""`gpuprof diagnose`: a recording in, on the terminal or as JSON what its steps spend their time on."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.output import say
from gpuprof.cli.printing import DIAGNOSIS, gates
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.cli.gates import Gate
    from gpuprof.diagnosis.model import Diagnosis

GATE_FAILED = 1
UNUSABLE = 2
TOP_IN_JSON = 10


def _finite(_: click.Context, __: click.Parameter, value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value > 0):
        raise click.BadParameter("a step takes a time above 0")
    return value


@click.command(short_help="Say why a step takes as long as it does.")
@click.argument("paths", metavar="[PATH]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--json", is_flag=True, help="Print the whole diagnosis as JSON.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write the report, too.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Name N kernels and gaps (5; as JSON 10).")
@click.option("--step", metavar="REGEX", help="Ranges or ops that are the steps; found out if not given.")
@click.option("--skip", type=click.IntRange(min=0), default=0, metavar="N", help="Leave out the first N steps.")
@click.option("--step-ms", type=float, callback=_finite, metavar="MS", help="A step measured without profiler.")
@click.option(
    "--fail-on", multiple=True, callback=gates("gpuprof.cli.gates"), metavar="METRIC:LIMIT",
    help="Exit 1 if METRIC is above LIMIT: idle:40%, cpu_bound:30%, step_time:200ms, unattributed:5%, or a "
    "cause of idle time, such as launch:20%. May be repeated.",
)  # fmt: skip
def command(
    paths: tuple[Path, ...],
    json: bool,
    html: Path | None,
    top: int | None,
    step: str | None,
    skip: int,
    step_ms: float | None,
    fail_on: tuple[Gate, ...],
) -> int:
    """Say why a step of the training recorded in PATH takes as long as it does.

    PATH is the folder of a run that gpuprof trace made, a trace that torch.profiler exported, .json or .json.gz, or a
    recording of Nsight Systems, .sqlite or .nsys-rep. Without PATH: the latest run in gpuprof-runs. A folder of traces,
    or several PATHs, are the ranks of one training; one of each kind are taken together.
    """
    paths = paths or (latest(),)
    if html is not None:
        from gpuprof.cli.report import check_place

        check_place(html, paths, "--html")
    diagnosis = diagnose_file(*paths, step=step, skip=skip, step_ms=step_ms, top=top or TOP_IN_JSON)
    DIAGNOSIS.put(diagnosis, json, top, html)
    return exit_code(diagnosis, fail_on, as_json=json)


def latest() -> Path:
    """The newest run. Raises GpuprofError where there is none."""
    from gpuprof.tracefile.run import latest_run

    try:
        return latest_run()
    except GpuprofError as error:
        raise GpuprofError(f"which recording? {error}") from None


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


def exit_code(diagnosis: Diagnosis, gates: tuple[Gate, ...], as_json: bool) -> int:
    """What the shell is told; says on stderr what stdout does not."""
    if diagnosis.quality.status == "unusable":
        if as_json:
            worst = [issue.message for issue in diagnosis.quality.issues if issue.severity == "error"]
            say(" ".join(["this recording cannot be diagnosed:", *worst[:1]]))
        return UNUSABLE
    codes = [_check(gate, diagnosis) for gate in gates]
    return max(codes, default=0)


def _check(gate: Gate, diagnosis: Diagnosis) -> int:
    """0 if the gate holds. One that cannot be checked must not pass for one that does."""
    from gpuprof.cli.gates import TIMES, measure
    from gpuprof.report.numbers import duration, percent

    value = measure(gate, diagnosis)
    if value is None:
        say(f"--fail-on {gate.metric}: this recording does not tell")
        return UNUSABLE
    if value <= gate.limit:
        return 0
    shown = duration(value) if gate.metric in TIMES else percent(value)
    say(f"gate failed: {gate.metric} is {shown}, the limit is {gate.text}")
    return GATE_FAILED
