"""`gpuprof memory`: a memory snapshot or a run in, who holds the GPU's memory and what would make it less out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.output_paths import check_place
from gpuprof.cli.printing import Printed

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpuprof.costs.hardware import Gpu
    from gpuprof.memory.memory_report import MemoryReport

MEMORY = Printed("memory", "gpuprof.memory.json", "gpuprof.report.memory_terminal", "write_memory", "")


@click.command(short_help="Say who holds the GPU's memory at its peak.")
@click.argument("path", metavar="[PATH]", type=click.Path(path_type=Path), required=False)
@click.argument("after", metavar="[AFTER]", type=click.Path(path_type=Path), required=False)
@click.option("--to", "to", multiple=True, metavar="GPU", help="Say what fits on this GPU, too. Repeatable.")
@click.option("--with", "fixes", metavar="FIX,…", help="Say what these changes do together, by their ids in the JSON.")
@click.option("--json", is_flag=True, help="Print the whole report as JSON.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page, too.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Name N lines of Python (4; as JSON 50).")
def command(
    path: Path | None,
    after: Path | None,
    to: tuple[str, ...],
    fixes: str | None,
    json: bool,
    html: Path | None,
    top: int | None,
) -> int:
    """Say who holds the GPU's memory at its peak: weights, activations, logits, …, and which line of Python.

    PATH is the folder of a run, a file of torch.cuda.memory._dump_snapshot, or a trace of torch.profiler with
    profile_memory=True. Without it: the latest run. Of a run it also says what each change would save, in memory and
    in time, and the largest batch that fits with it. With a second one, AFTER: what its peak holds more of.
    """
    from gpuprof.cli.recordings import latest
    from gpuprof.memory.load import load_memory
    from gpuprof.projection.gpu_names import gpu_named

    gpus = [gpu_named(name.strip()) for text in to for name in text.split(",") if name.strip()]
    first = path or latest()
    if html is not None:
        check_place(html, tuple(one for one in (first, after) if one is not None), "--html")
    report = load_memory(first, after, lines=top) if after or not first.is_dir() else _of_run(first, gpus, top, fixes)
    if (gpus or fixes) and report.advice is None:
        raise click.UsageError("--to and --with need the folder of a run that could be replayed")
    MEMORY.put(report, json, top, html)
    return 0


def _of_run(path: Path, gpus: Sequence[Gpu], top: int | None, fixes: str | None) -> MemoryReport:
    """All that a run knows of its memory. Raises UnreadableTrace where that is nothing."""
    from dataclasses import replace

    from gpuprof.cli.recordings import diagnose_file
    from gpuprof.diagnosis.memory_section import memory_of
    from gpuprof.errors import UnreadableTrace
    from gpuprof.memory.load import has_snapshot, load_memory
    from gpuprof.tracefile.run import holds_run

    together = [name.strip() for name in (fixes or "").split(",") if name.strip()]
    found = memory_of(diagnose_file(path), gpus, together) if holds_run(path) else None
    if found is None and not has_snapshot(path) and holds_run(path):
        raise UnreadableTrace(
            f"{path} holds no memory snapshot, and its recording does not show what its peak is made of (that takes a "
            "step of one GPU that can be replayed, and the tokens of a pass): gpuprof trace --memory records one"
        )
    if has_snapshot(path) or found is None:
        return replace(load_memory(path, lines=top), advice=found and found.advice)
    return found
