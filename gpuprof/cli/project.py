"""`gpuprof project`: predicts the recorded step on other GPUs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.shared.option_types import names_in
from gpuprof.cli.shared.output import say, show, write
from gpuprof.cli.shared.recordings import RECORDING, given, reading
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.costs.measured_rates import Measurement


@click.command(short_help="Predict step time and cost on other GPUs.")
@click.argument("path", required=False, type=RECORDING)
@click.option("--to", "to", multiple=True, metavar="GPU", help="A GPU, or several separated by commas. Repeatable.")
@click.option("--explain", nargs=2, metavar="A B", help="Explain why A is faster than B.")
@click.option("--batch", type=int, metavar="N", help="Samples per forward pass (default: as recorded).")
@click.option("--sample-tokens", type=float, metavar="N", help="Mean tokens per sample, padding included.")
@click.option("--whole-batch", is_flag=True, help="Keep the batch even if it does not fit.")
@click.option(
    "--host-factor", type=float, metavar="F", help="CPU time there relative to here: 0.5 is a CPU twice as fast."
)
@click.option(
    "--hosts", nargs=2, type=click.Path(path_type=Path), metavar="HERE THERE",
    help="The same, from two outputs of gpuprof gpus --measure --json: the recorded machine and the other.",
)  # fmt: skip
@click.option("--layers", type=int, metavar="N", help="Layers of the full model, if fewer were recorded.")
@click.option("--experts", type=int, metavar="N", help="Experts of the full model, if fewer were recorded.")
@click.option("--ranks", metavar="N,…", help="Also predict N such GPUs, each with its own batch.")
@click.option("--price", multiple=True, metavar="GPU=USD", help="Price of a GPU in dollars per hour. Repeatable.")
@click.option("--epoch", type=int, metavar="N", help="Samples per epoch, to compute its cost.")
@click.option("--from", "recorded_on", metavar="GPU", help="The recorded GPU, if the recording does not name it.")
@click.option("--step-ms", type=float, metavar="MS", help="Step time measured without a profiler.")
@click.option(
    "--set",
    "arguments",
    multiple=True,
    metavar="NAME=VALUE",
    help="A trainer's argument, for RL training: predict the iteration with it. Repeatable.",
)
@click.option("--json", is_flag=True, help="Print the projection as JSON.")
def command(
    path: str | None, to: tuple[str, ...], hosts: tuple[Path, Path] | None, ranks: str | None, price: tuple[str, ...],
    epoch: int | None, recorded_on: str | None, step_ms: float | None, arguments: tuple[str, ...], json: bool,
    **options: Any,
) -> int:  # fmt: skip
    """Predict the step recorded in PATH on other GPUs: its time with an interval, what limits it there, which batch
    fits, energy and cost.

    PATH is anything that gpuprof diagnose accepts; without it, the latest run. Every projection lists its assumptions.
    With --set, predict the iteration of an RL training (GRPO, RLOO, ...) with other values of its trainer's arguments.
    """
    from gpuprof import project
    from gpuprof.projection.gpu_names import variant_note
    from gpuprof.projection.question import parse_prices, question

    names = names_in(to)
    if arguments:
        if names or options["explain"]:
            raise click.UsageError("--set is about the recorded GPU: leave --to and --explain out")
        return _with_arguments(path, arguments, json)
    if not names and not options["explain"]:
        raise click.UsageError(
            "name a GPU: --to GPU, or --explain A B; or an argument of the trainer: --set NAME=VALUE"
        )
    if options["host_factor"] is not None and hosts:
        raise click.UsageError("--host-factor and --hosts set the same thing: give only one")
    if hosts:
        options |= {"host_factor": _factor(*hosts), "host_measured": True}
    options |= {"ranks": _counts(ranks), "prices": parse_prices(price, names), "epoch_samples": epoch}
    question(names, **options)  # before a large file is read
    for note in filter(None, map(variant_note, [*names, *(options["explain"] or ())])):
        say(note)
    recording = given(path)
    with reading(recording) as progress:
        found = project(recording, names, recorded_on=recorded_on, step_ms=step_ms, progress=progress, **options)
    if json:
        from gpuprof.projection.projection import DOCUMENT

        write(DOCUMENT.dumps(found) + "\n")
    else:
        from gpuprof.report.terminal.projection import render

        show(lambda _: render(found))
    return 0


def _with_arguments(path: str | None, given_arguments: tuple[str, ...], json: bool) -> int:
    """Prints the iteration with other values of the trainer's arguments."""
    from gpuprof import with_arguments
    from gpuprof.diagnosis.iterations.with_arguments import SCHEMA
    from gpuprof.documents import document, dumps
    from gpuprof.record.patches.trainer_arguments import BETWEEN, given_in

    values = given_in(BETWEEN.join(given_arguments))
    if values is None:
        raise click.UsageError(
            f"--set {' '.join(given_arguments)}: write NAME=VALUE, such as max_completion_length=256"
        )
    recording = given(path)
    with reading(recording) as progress:
        found = with_arguments(recording, values, progress=progress)
    if json:
        write(dumps(document(SCHEMA, found)) + "\n")
    else:
        from gpuprof.report.terminal.arguments_terminal import render

        show(lambda _: render(found))
    return 0


def _counts(text: str | None) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        raise GpuprofError(f"--ranks {text}: give counts of GPUs, such as 2,4,8") from None


def _factor(here: Path, there: Path) -> float:
    from gpuprof.projection.changes.other_cpu import measured_factor

    return measured_factor(_measurement(here), _measurement(there))


def _measurement(path: Path) -> Measurement:
    import json

    from gpuprof.costs.measured_rates import measurement_from

    try:
        return measurement_from(json.loads(path.read_text(encoding="utf-8"))["measurement"])
    except OSError as error:
        raise GpuprofError(f"{path}: the measurement cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise GpuprofError(f"{path}: it is not the output of gpuprof gpus --measure --json") from None
