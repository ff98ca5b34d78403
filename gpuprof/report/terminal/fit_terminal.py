"""What fits in memory, as a table of batch × length."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from gpuprof.report.lines import Column, table
from gpuprof.report.terminal.sections import GUTTER, WIDEST_PAGE, section
from gpuprof.report.words.memory_words import size
from gpuprof.trial.fit import FitCell, FitReport

OF = {
    "gpu": "peak of the allocator, measured on this GPU",
    "tensors": "bytes of the tensors that are alive, counted on the CPU",
    "fake": "bytes of the tensors that are alive, counted without their data",
}


def render(report: FitReport, width: int = 80) -> Group:
    """The table, what fits, and what is not known."""
    inner = max(40, min(width, WIDEST_PAGE)) - GUTTER
    changed = ", ".join(f"{kind} by {how}" for kind, how in report.changed.items())
    measured = [
        Text(f"batch {one.batch}{_of_length(report, one.length)}: {size(one.peak_bytes)}") for one in report.measured
    ]
    fits = [Text(line) for line in fitting(report)] or [
        Text("--to GPU shows what fits on another GPU, such as --to H200", "dim")
    ]
    of = OF["fake" if report.fake else report.of]
    return Group(
        Text(f"Peak by batch and length: {of}", "bold"),
        *section("measured", measured),
        *section("peaks" if _wide(report, inner) else "at most", _grid(report, inner)),
        *section("fits", fits),
        *section("changed", [Text(changed, "dim")]),
        *section("not known", [Text(line, "yellow") for line in report.unknown]),
    )


def _of_length(report: FitReport, length: int) -> str:
    return f" × {length:,} tokens" if report.tokens else ""


def _grid(report: FitReport, width: int) -> list[Text]:
    """A row for each length, a column for each batch; many columns show only the upper end of the interval."""
    batches = sorted({cell.batch for cell in report.cells})
    lengths = sorted({cell.length for cell in report.cells})
    known = {(cell.batch, cell.length): cell for cell in report.cells}
    head = ("length" if report.tokens else "", *(f"batch {batch}" for batch in batches))
    wide = _wide(report, width)
    rows = [
        (f"{length:,}" if report.tokens else "", *(_cell(known[batch, length], wide) for batch in batches))
        for length in lengths
    ]
    return table([head, *rows], (Column("dim", right=True), *(Column(right=True) for _ in batches)), width)


def _wide(report: FitReport, width: int) -> bool:
    """Whether there is room for both ends of each interval."""
    return width >= 16 + 20 * len({cell.batch for cell in report.cells})


def _cell(cell: FitCell, wide: bool) -> str:
    if not wide:
        return size(cell.high_bytes)
    low, high = size(cell.low_bytes), size(cell.high_bytes)
    if low == high:
        return low
    return f"{low.split()[0]}–{high}" if low.split()[1] == high.split()[1] else f"{low}–{high}"


def fitting(report: FitReport) -> list[str]:
    """`H200 SXM, length 1,024: batch 40 (38–43)`."""
    found = []
    for gpu in report.gpus:
        for length, surely, likely, most in gpu.largest:
            of = f", length {length:,}" if report.tokens else ""
            found.append(f"{gpu.gpu}{of}: batch up to {likely:,} ({surely:,}–{most:,})")
    return found
