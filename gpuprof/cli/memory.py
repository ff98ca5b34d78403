"""`gpuprof memory`: a memory snapshot in, who holds the GPU's memory out."""

from __future__ import annotations

from pathlib import Path

import click

from gpuprof.cli.output_paths import check_place
from gpuprof.cli.printing import Printed

MEMORY = Printed("memory", "gpuprof.memory.json", "gpuprof.report.memory_terminal", "write_memory", "")


@click.command(short_help="Say who holds the GPU's memory at its peak.")
@click.argument("path", metavar="[SNAPSHOT]", type=click.Path(path_type=Path), required=False)
@click.argument("after", metavar="[AFTER]", type=click.Path(path_type=Path), required=False)
@click.option("--json", is_flag=True, help="Print the whole report as JSON.")
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write a page, too.")
@click.option("--top", type=click.IntRange(min=1), metavar="N", help="Name N lines of Python (4; as JSON 50).")
def command(path: Path | None, after: Path | None, json: bool, html: Path | None, top: int | None) -> int:
    """Say who holds the GPU's memory at its peak: weights, activations, logits, …, and which line of Python.

    SNAPSHOT is a file of torch.cuda.memory._dump_snapshot, the folder of a run that has one, or a trace of
    torch.profiler with profile_memory=True. Without it: the latest run. With a second one, AFTER: what its peak holds
    more of.
    """
    from gpuprof.cli.recordings import latest
    from gpuprof.memory.load import load_memory

    first = path or latest()
    if html is not None:
        check_place(html, tuple(one for one in (first, after) if one is not None), "--html")
    report = load_memory(first, after, lines=top)
    MEMORY.put(report, json, top, html)
    return 0
