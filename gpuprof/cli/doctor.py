"""`gpuprof doctor`: lists what would stop or spoil a recording on this machine, with remedies."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuprof.cli.shared.output import show, write
from gpuprof.cli.target_python import target_python
from gpuprof.runfile import RUNS
from gpuprof.units import Code, Convention

if TYPE_CHECKING:
    from rich.console import RenderableType

    from gpuprof.doctor.machine_facts import Check

SCHEMA = "gpuprof.doctor/1"
CANNOT_RECORD: Convention[Code] = 1
_MARKS = {"ok": ("ok", "green"), "note": ("note", "cyan"), "warning": ("warning", "yellow"),
          "blocker": ("blocker", "bold red"), "unknown": ("unknown", "dim")}  # fmt: skip


@click.command(short_help="Say what would stop or spoil a recording here.")
@click.option("--json", is_flag=True, help="Print every check as JSON.")
@click.option(
    "--data", multiple=True, type=click.Path(path_type=Path, exists=True), metavar="DIR",
    help="A folder that the training reads data from; the working directory and Hugging Face's cache if not given.",
)  # fmt: skip
@click.option(
    "--out", type=click.Path(path_type=Path), default=RUNS, metavar="DIR", help=f"Where runs will go (default: {RUNS})."
)
@click.option("-v", "--verbose", is_flag=True, help="Also list what is in order.")
def command(json: bool, data: tuple[Path, ...], out: Path, verbose: bool) -> int:
    """Check this machine before recording: torch, driver and CUPTI, other work on the GPU, power and clocks, CPUs,
    disks and the storage of the data.

    It records one matrix multiplication with torch.profiler to see whether that works. Exit code 1: recording cannot
    work here.
    """
    from gpuprof.doctor.examine import can_record, examine
    from gpuprof.doctor.facts import collect

    checks = examine(collect(target_python(), out, data or _usual_data()))
    if json:
        _write_json(checks)
    else:
        show(lambda width: _listed(checks, verbose, width))
    return 0 if can_record(checks) else CANNOT_RECORD


def _usual_data() -> tuple[Path, ...]:
    """The working directory, and Hugging Face's cache of datasets and models."""
    cache = Path(os.environ.get("HF_HOME") or Path("~/.cache/huggingface").expanduser())
    return (Path.cwd(), *([cache] if cache.is_dir() else []))


def _write_json(checks: tuple[Check, ...]) -> None:
    import msgspec

    from gpuprof.doctor.examine import can_record

    found = {"schema": SCHEMA, "can_record": can_record(checks), "checks": checks}
    write(msgspec.json.format(msgspec.json.encode(found), indent=2).decode() + "\n")


def _listed(checks: tuple[Check, ...], verbose: bool, width: int) -> RenderableType:
    """One block per check that is not in order: its status, what is wrong, and the remedy below."""
    from rich.text import Text

    from gpuprof.report.names import escape

    shown = [check for check in checks if verbose or check.status not in ("ok", "unknown")]
    gutter = max((len(check.status) for check in shown), default=0) + 2
    page = Text()
    for check in shown:
        mark, style = _MARKS[check.status]
        lines = _wrapped(escape(check.message), width - gutter)
        page.append(f"{mark:<{gutter}}", style).append(f"\n{' ' * gutter}".join(lines) + "\n")
        for line in _wrapped(f"→ {escape(check.remedy)}", width - gutter) if check.remedy else ():
            page.append(f"{' ' * gutter}{line}\n", "dim")
    page.append(_sum(checks))
    return page


def _wrapped(text: str, width: int) -> list[str]:
    import textwrap

    return textwrap.wrap(text, max(width, 20), break_long_words=False, break_on_hyphens=False)


def _sum(checks: tuple[Check, ...]) -> str:
    from gpuprof.doctor.examine import can_record

    counts = {status: sum(check.status == status for check in checks) for status in _MARKS}
    blockers = counts["blocker"]
    head = "recordings work here" if can_record(checks) else "recording cannot work here"
    parts = [f"{blockers} blocker{'s' if blockers != 1 else ''}"] if blockers else []
    if counts["warning"]:
        parts.append(f"{counts['warning']} warning{'s' if counts['warning'] != 1 else ''}")
    parts += [f"{counts['ok']} in order", *([f"{counts['unknown']} unknown"] if counts["unknown"] else [])]
    return f"{head}: {', '.join(parts)}"
