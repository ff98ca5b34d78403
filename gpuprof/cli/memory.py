"""`gpuprof memory`: says who holds GPU memory in a snapshot or a run, and what would reduce it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.shared.option_types import WholeNumber, names_in
from gpuprof.cli.shared.output_paths import check_place
from gpuprof.cli.shared.printing import OfMemory, put
from gpuprof.cli.shared.recordings import RECORDING, diagnose_given, given

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuprof.costs.hardware import Gpu
    from gpuprof.memory.memory_report import MemoryReport
    from gpuprof.tracefile.recording import Recording


@click.command(short_help="Say who holds the GPU's memory at its peak.")
@click.argument("path", metavar="[PATH]", type=RECORDING, required=False)
@click.argument("after", metavar="[AFTER]", type=RECORDING, required=False)
@click.option("--to", "to", multiple=True, metavar="GPU", help="Also say what fits on this GPU. Repeatable.")
@click.option("--with", "fixes", metavar="FIX,…", help="Say what these changes do together, by their ids in the JSON.")
@click.option("--json", is_flag=True, help="Print the whole report as JSON.")
@click.option(
    "--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write an HTML page."
)
@click.option("--top", type=WholeNumber(1), metavar="N", help="Name N lines of Python (default 4; 50 in JSON).")
def command(
    path: str | None,
    after: str | None,
    to: tuple[str, ...],
    fixes: str | None,
    json: bool,
    html: Path | None,
    top: int | None,
) -> int:
    """Say who holds the GPU's memory at its peak: weights, activations, logits, …, and which line of Python.

    PATH is a run folder, a file written by torch.cuda.memory._dump_snapshot, a torch.profiler trace made with
    profile_memory=True, or the URL of such a file. Without PATH: the latest run. For a run it also says how much memory
    each change would save, what it would cost in time, and the largest batch that then fits. With AFTER, a second
    recording: how its peak differs.
    """
    from gpuprof.memory.load_memory import load_memory
    from gpuprof.projection.gpu_names import gpu_named

    gpus = [gpu_named(name) for name in names_in(to)]
    first, second = given(path), None if after is None else given(after)
    if html is not None:
        check_place(html, (*first.files, *(second.files if second else ())), "--html")
    if second is not None or first.folder is None or first.run_folder is None:
        report = load_memory(first, second, lines=top)
    else:
        report = _of_run(first, gpus, top, fixes)
    if (gpus or fixes) and report.advice is None:
        raise click.UsageError("--to and --with need the folder of a run that could be replayed")
    put(OfMemory(), report, json, top, html)
    return 0


def _of_run(run: Recording, gpus: Sequence[Gpu], top: int | None, fixes: str | None) -> MemoryReport:
    """Everything known about a run's memory. Raises UnreadableTrace if nothing is known."""
    from dataclasses import replace

    from gpuprof.diagnosis.memory.memory_section import memory_of
    from gpuprof.errors import UnreadableTrace
    from gpuprof.memory.load_memory import load_memory
    from gpuprof.memory.memory_file import memory_file

    together = names_in([fixes or ""])
    diagnosis = diagnose_given(run)
    found = memory_of(diagnosis, gpus, together)
    if run.folder is not None and memory_file(run.folder) is not None:
        return replace(load_memory(run, lines=top), advice=found and found.advice)
    if found is None and diagnosis.cpu_step is not None:
        raise UnreadableTrace(f"{run} ran on the CPU: no GPU memory to show; gpuprof fit counts what a batch takes")
    if found is None:
        raise UnreadableTrace(
            f"{run} holds no memory snapshot, and its recording does not show what its peak consists of (that takes a "
            "step of one GPU that can be replayed, and the tokens of a pass): gpuprof trace --memory records one"
        )
    return found
