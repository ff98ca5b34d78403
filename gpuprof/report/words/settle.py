"""The command that settles whether a fix gains, as text."""

from __future__ import annotations

from rich.cells import cell_len

from gpuprof.diagnosis.result.finding_model import BEFORE_COMMAND, Finding
from gpuprof.report.names import escape


def settle(finding: Finding) -> str:
    """The command to run; without the user's command if the recording does not say how the training was started."""
    if not finding.settle:
        return "make the change, record again, then gpuprof compare"
    known = BEFORE_COMMAND in finding.settle
    return escape(finding.settle) if known else f"{finding.settle} and your command"


def commands(finding: Finding) -> tuple[str, ...]:
    """The same in shorter and shorter forms: without the training's command if gpuprof knows it from the run."""
    if not finding.settle:
        return ("by hand",)
    head, known, _ = finding.settle.partition(BEFORE_COMMAND)
    rest = "" if known else " …"
    return settle(finding), f"{head}{rest}", f"{head.removeprefix('gpuprof try ')}{rest}"


def fitting(finding: Finding, width: int) -> str:
    """The command with that of the training if it fits `width` cells, else without it: it can be pasted as it is."""
    whole = commands(finding)[:2]
    return next((text for text in whole if cell_len(text) <= width), whole[-1])
