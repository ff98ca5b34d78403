"""The comparison as a screen of text: the outcome, its reasons, the waterfall from A's step to B's, and details.
`render` is a pure function of the Comparison and the width.
"""

from __future__ import annotations

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpuprof.diagnosis.comparison.comparison import Comparison, KernelDifference, Mechanism
from gpuprof.report import comparison_bars as bars
from gpuprof.report import labels, stepbar
from gpuprof.report.lines import Column, flow, prose, table
from gpuprof.report.names import escape, shorten, shorten_kernel, shown, shown_kernel
from gpuprof.report.numbers import count, duration
from gpuprof.report.terminal.rank_lines import MOST_RANKS
from gpuprof.report.terminal.sections import GUTTER, WIDEST_PAGE, issues, paragraph, section, spaced
from gpuprof.report.words import comparison_words as words
from gpuprof.units import Cells, Convention, Rows

ROWS: Convention[Rows] = 5
"""Kernels and ops shown by default."""
MOST_MECHANISMS: Convention[Rows] = 5
WIDEST_BAR: Convention[Cells] = 60
LEAST_BAR: Convention[Cells] = 6
"""Room below which the waterfall has no bars."""
NAMED_FROM_WIDTH: Convention[Cells] = 90
"""From this width on there is room for the phases next to a bar."""

_STYLES = {"faster": "green", "slower": "red", "same": "", "other": ""}
_FILLS = {"total": ("█", "dim"), "less": ("░", "green"), "more": ("▓", "red")}


def render(comparison: Comparison, width: int = 80, rows: int = ROWS) -> Group:
    """The comparison for a terminal of `width` columns, with `rows` kernels and as many ops."""
    width = max(40, min(width, WIDEST_PAGE))
    inner = width - GUTTER
    warnings = [note for note in comparison.notes if note.severity != "info"]
    others = [note for note in comparison.notes if note.severity == "info"]
    blocks = [
        [*_headline(comparison, width), *paragraph(comparison.summary)],
        section("quality", issues(warnings)),
        section("A", _side(comparison, "a", inner)) + section("B", _side(comparison, "b", inner)),
        section(comparison.unit, _steps(comparison, inner)),
        section("why", _mechanisms(comparison)),
        section("waterfall", _waterfall(comparison, inner)),
        section("phases", _phases(comparison, inner)) + section("counts", _counts(comparison, inner)),
        section("ranks", _ranks(comparison, inner)),
        section("kernels", _kernels(comparison, inner, rows)),
        section("CPU ops", _ops(comparison, inner, rows) if words.host_matters(comparison) else []),
        section("test", paragraph(words.test(comparison)))
        + section("notes" if len(others) > 1 else "note", issues(others)),
    ]
    return Group(*spaced(block for block in blocks if block))


def _headline(comparison: Comparison, width: int) -> list[Text]:
    left = Text(no_wrap=True, overflow="ellipsis")
    left.append(words.outcome(comparison), f"bold {_STYLES[comparison.step.outcome]}".strip())
    steps = Text(words.steps(comparison), "bold")
    below = [] if left.cell_len + 3 + steps.cell_len <= width else [prose(steps)]
    if not below:
        left.append("   ").append_text(steps)
    gpus = dict.fromkeys(shown(side.gpu, 40) for side in (comparison.a, comparison.b) if side.gpu)
    right = Text(" → ".join(gpus), "dim", no_wrap=True, overflow="ellipsis")
    room = width - left.cell_len - right.cell_len
    if room >= 3 and not below:
        return [left.append(" " * room).append_text(right)]
    return [left, *below, right] if right else [left, *below]


def _side(comparison: Comparison, name: str, width: int) -> list[Text]:
    one = comparison.a if name == "a" else comparison.b
    about = f" · {words.bound(one)}"
    return [Text.assemble(shown(one.path, max(width - len(about), 24)), (about, "dim"))]


def _steps(comparison: Comparison, width: int) -> list[Text]:
    """Both steps as bars on one scale, and the legend."""
    pair = bars.step_bars(comparison)
    longest = max(bar.total_ns for bar in pair) or 1
    lines, drawn = [], []
    for name, bar in zip("AB", pair, strict=True):
        line = Text(f"{name}  ", no_wrap=True, overflow="crop")
        drawn.append(stepbar.cells(bar, max(round((width - 3) * bar.total_ns / longest), 1)))
        for part, n in zip(bar.parts, drawn[-1], strict=True):
            look = stepbar.paint(part)
            line.append(look.fill * n, look.terminal)
        lines.append(line)
    items = []
    for before, after, *seen in zip(pair[0].parts, pair[1].parts, *drawn, strict=True):
        if not any(seen):
            continue
        look = stepbar.paint(before)
        name = labels.part(before)
        items.append(
            Text.assemble((look.fill, look.terminal), f" {name} ", (words.both_times(before.ns, after.ns), "bold"))
        )
    lines += flow(items, width)
    extra = "   ".join(filter(None, (words.work(comparison), words.memory(comparison))))
    return [*lines, *([Text(extra)] if extra else [])]


def _mechanisms(comparison: Comparison) -> list[Text | Table]:
    """What changed, largest difference first, each with its prediction."""
    lines: list[Text | Table] = []
    for number, one in enumerate(words.shown_mechanisms(comparison)[:MOST_MECHANISMS], 1):
        grid = Table.grid(padding=0)
        grid.add_column(width=3)
        grid.add_column(overflow="fold")
        grid.add_row(Text(str(number), "bold"), _mechanism(one, comparison))
        grid.add_row(Text(""), Text(escape(words.sentence(one))))
        for prediction in one.predictions:
            style = "green" if prediction.inside else "yellow"
            grid.add_row(Text(""), Text(escape(words.prediction(prediction)), style))
        lines.append(grid)
    rest = words.unexplained(comparison)
    return [*lines, Text(f"   {rest}", "dim")] if rest else lines


def _mechanism(one: Mechanism, comparison: Comparison) -> Text:
    part = words.part(one, "it")
    unit = comparison.unit.a
    gain = words.each(one, comparison) or f"{words.signed(one.difference_ns)} {unit}{f', {part}' if part else ''}"
    return Text.assemble((escape(one.title), "bold"), f"   {gain}")


def _waterfall(comparison: Comparison, width: int) -> list[Text]:
    """From A's step to B's, each bar from where the one above it ended."""
    falls = bars.waterfall(comparison)
    if len(falls) < 3:
        return []
    labels = max(len(fall.label) for fall in falls)
    named = width >= NAMED_FROM_WIDTH
    room = min(width - labels - (46 if named else 12), WIDEST_BAR)
    if room < LEAST_BAR:  # numbers rather than bars
        room, labels = 0, max(min(labels, width - 10), 1)
    low, high = bars.lowest(falls), bars.extent(falls)
    lines = []
    for fall in falls:
        fill, style = _FILLS[fall.kind]
        first, last = (round((ns - low) / max(high - low, 1) * room) for ns in sorted((fall.from_ns, fall.to_ns)))
        line = Text(no_wrap=True, overflow="ellipsis")
        value = duration(fall.to_ns) if fall.kind == "total" else words.signed(fall.difference_ns)
        label = shorten(fall.label, labels)
        line.append(f"{label:<{labels}}", "bold" if fall.kind == "total" else "").append(f"  {value:>8}", "bold")
        lines.append(line)
        if not room:
            continue
        line.append("  ")
        first = min(first, room - 1)  # a part too short to see still gets a cell
        line.append(" " * first).append(fill * max(last - first, 1), style)
        line.append(" " * max(room - max(last, first + 1), 0)).append(
            f"  {words.phases_of(fall.term) if named and fall.term else ''}", "dim"
        )
        line.rstrip()
    return lines


def _phases(comparison: Comparison, width: int) -> list[Text]:
    """Each phase of both steps, and the GPU's work in it."""
    rows = []
    for phase in comparison.phases:
        rows.append(
            (
                phase.phase,
                duration(phase.a_ns),
                "→",
                duration(phase.b_ns),
                words.signed(phase.difference_ns),
                f"GPU {words.both_times(phase.a_busy_ns, phase.b_busy_ns)}"
                if phase.a_busy_ns or phase.b_busy_ns
                else "",
            )
        )
    right, bold = Column(right=True), Column("bold", right=True)
    columns = (Column("bold"), right, Column("dim"), right, bold, Column("dim"))
    lines: list[Text] = []
    for kept in (slice(None), slice(5), slice(0, 5, 4)):  # without the GPU's work; only the phase and its difference
        lines = table([row[kept] for row in rows], columns[kept], width)
        if all(line.cell_len <= width for line in lines):
            break
    return lines


def _ranks(comparison: Comparison, width: int) -> list[Text]:
    """How long each rank needs by itself and waits for the others, in both; of many ranks only the first ones."""
    ranks = comparison.ranks or ()
    rows = [
        (name, f"{pace} by itself" if pace else "", f"waits {waits}" if waits else "")
        for name, pace, waits in map(words.rank, ranks[:MOST_RANKS])
    ]
    more = [Text(f"and {len(ranks) - MOST_RANKS} more ranks", "dim")] if len(ranks) > MOST_RANKS else []
    return [*table(rows, (Column("bold"), Column(right=True), Column(right=True)), width), *more]


def _counts(comparison: Comparison, width: int) -> list[Text]:
    if not words.has_gpu_work(comparison):
        return []
    return flow([Text(item) for item in words.counts(comparison).split("   ")], width)


def _kernels(comparison: Comparison, width: int, rows: int) -> list[Text]:
    """How the GPU's work changed, and the kernels that changed most."""
    found = comparison.kernels
    if not words.has_gpu_work(comparison):
        return []
    head = Text(words.kernel_changes(comparison))
    lines = [
        (
            words.signed(row.difference_ns),
            _times(row),
            shown_kernel(row.name, 160),
            words.launched(row),
        )
        for row in found.rows[:rows]
    ]
    columns = (
        Column("bold", right=True),
        Column("dim", right=True),
        Column(elastic=True, shorten=shorten_kernel),
        Column("dim", elastic=True),
    )
    return [head, *table(lines, columns, width)]


def _times(row: KernelDifference) -> str:
    """`766× → 20×`, `48× 12 → 31 µs`, `new 122×`."""
    before, after = (f"{count(round(n, 1))}×" for n in (row.a_count, row.b_count))
    if row.change == "new":
        return f"new {after}"
    if row.change == "gone":
        return f"gone {before}"
    if row.change == "count":
        return f"{before} → {after}"
    each = words.both_times(row.a_ns / row.a_count, row.b_ns / row.b_count)
    often = before if row.change != "both" else f"{before} → {after}"
    return f"{often} {each}"


def _ops(comparison: Comparison, width: int, rows: int) -> list[Text]:
    """CPU ops whose own time changed most, as recorded."""
    lines = [
        (
            words.signed(op.difference_ns),
            f"{count(round(op.a_count, 1))}× → {count(round(op.b_count, 1))}×",
            shown(op.name, 120),
            op.phase,
        )
        for op in comparison.ops[:rows]
    ]
    columns = (Column("bold", right=True), Column("dim", right=True), Column(elastic=True), Column("dim"))
    return table(lines, columns, width)
