"""`gpuprof fit`: finds which batch and length fit in memory, before the long run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuprof.cli.shared.option_types import names_in
from gpuprof.cli.shared.output import say, show, write
from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.costs.hardware import Gpu
    from gpuprof.trial.fit import FitOnGpu, FitReport, Model, Point
    from gpuprof.trial.starter import Starter

_WITH_VALUE = ("--batch", "--length", "--to", "-m")


class _FitCommand(click.Command):
    """Passes the target's words on unparsed."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from gpuprof.cli.try_ import split

        ours, words = split(args, _WITH_VALUE)
        return super().parse_args(ctx, [*ours, "--", *words] if words else ours)


def _numbers(_: click.Context, __: click.Parameter, text: str | None) -> tuple[int, ...]:
    try:
        found = tuple(int(part) for part in (text or "").split(",") if part.strip())
    except ValueError:
        found = (0,)
    if any(not 1 <= one <= 10_000_000 for one in found):
        raise click.BadParameter(f"{text!r} is not a list of whole numbers, such as 8,16,32")
    return found


@click.command(
    "fit",
    cls=_FitCommand,
    short_help="Say which batch and length fit, before the long run.",
    context_settings={"allow_interspersed_args": False},
    options_metavar="[OPTIONS]",
)
@click.option(
    "--batch", callback=_numbers, metavar="N,…", help="Batches of the table (default: ½ to 8 times the program's)."
)
@click.option(
    "--length", callback=_numbers, metavar="N,…", help="Lengths of the table (default: ½ to 4 times the program's)."
)
@click.option("--to", "to", multiple=True, metavar="GPU", help="Also say what fits on this GPU. Repeatable.")
@click.option("--fake", is_flag=True, help="Without data or a GPU, for a model that does not fit here.")
@click.option(
    "--yes",
    is_flag=True,
    help="Allow connections beyond this machine, and changes of files.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the table as JSON.")
@click.option("-m", "module", metavar="MODULE", help="Run a module, as python -m does.")
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="TARGET…")
def command(
    batch: tuple[int, ...],
    length: tuple[int, ...],
    to: tuple[str, ...],
    fake: bool,
    yes: bool,
    as_json: bool,
    module: str | None,
    words: tuple[str, ...],
) -> int:
    """Run two short steps of TARGET, as it is and with another batch and length, and predict the peaks of others.

    TARGET is what gpuprof trace takes: train.py --lr 1e-4, python …. Nothing is edited or saved: the batch and the
    length are changed from outside, in what the program parsed, its trainer's arguments or its DataLoader. Without a
    GPU the tensors are counted on the CPU, and what a GPU adds to them is said to be unknown. With --fake these tensors
    have a shape and no data, so that a model of any size takes no memory.
    """
    from gpuprof.cli.try_ import target_of
    from gpuprof.projection.gpu_names import gpu_named
    from gpuprof.trial.starter import Starter

    gpus = [gpu_named(name) for name in names_in(to)]
    target = target_of(words, module, "gpuprof fit")
    with Starter(target, yes, None if yes else Path.cwd(), say) as starter:
        report = _report(starter, target.argv, batch, length, gpus, fake)
    if as_json:
        from gpuprof.trial.fit import DOCUMENT

        write(DOCUMENT.dumps(report) + "\n")
    else:
        from gpuprof.report.terminal.fit_terminal import render

        show(lambda width: render(report, width))
    return 0


def _report(
    starter: Starter,
    argv: Sequence[str],
    batch: Sequence[int],
    length: Sequence[int],
    gpus: Sequence[Gpu],
    fake: bool,
) -> FitReport:
    from gpuprof.record.base.redact import redact
    from gpuprof.trial.fit import FitReport, measure, model_of, table

    found = measure(starter, say, fake)
    points, tokens = found.points, found.tokens
    model = model_of(points)
    if length and not tokens:
        raise GpuprofError("--length: the samples of this program are not tokens, so there is no length to change")
    cells = table(model, points, batch, length)
    return FitReport(
        command=tuple(redact(argv)), measured=tuple(points), of=found.of, changed=found.changed, tokens=tokens,
        cells=cells,
        gpus=tuple(
            _on(gpu, memory_bytes, model, sorted({cell.length for cell in cells}))
            for gpu, memory_bytes in _places(found.gpu, gpus)
        ),
        unknown=(*found.notes, *_unknown(model, points, found.of, tokens, fake)), fake=fake,
    )  # fmt: skip


def _places(facts: dict[str, Any] | None, gpus: Sequence[Gpu]) -> list[tuple[Gpu, int | None]]:
    """This machine's GPU with the memory that its driver reports, and the requested GPUs."""
    from gpuprof.costs.hardware import find

    own = find(facts["name"], facts.get("memory_bytes")) if facts and facts.get("name") else None
    here = [(own, facts.get("memory_bytes"))] if facts and own is not None else []
    return [*here, *((gpu, None) for gpu in gpus if gpu != own)]


def _on(gpu: Gpu, memory_bytes: int | None, model: Model, lengths: Sequence[int]) -> FitOnGpu:
    from gpuprof.projection.memory.recorded_memory import usable_bytes
    from gpuprof.trial.fit import FitOnGpu

    room = usable_bytes(gpu, memory_bytes)
    return FitOnGpu(gpu.name, room, tuple((length, *model.largest_batch(room, length)) for length in lengths))


def _unknown(model: Model, points: Sequence[Point], of: str, tokens: bool, fake: bool) -> list[str]:
    """What the measurement cannot determine."""
    found = []
    if tokens and not model.length_known:
        found.append("how memory grows with the length: it could not be changed from outside, or no pass became longer")
    if of == "tensors":
        found.append(
            "what a GPU adds: its kernels' workspaces, the attention that it picks, formats that the CPU computes "
            "in another way, and what the allocator leaves unused; measure on the GPU before a long run"
        )
        found.append("what would stay on the CPU: a data set held in tensors is counted, too")
    if fake:
        found.append("what depends on computed values: every value that the program read was 1")
    found.append(f"passes longer than those of {len(points)} × 4 steps: samples of uneven length may make some")
    return found
