"""The diagnosis as text: first the answer (verdict, step, one to three fixes), with `verbose` also everything else.

`render` is a pure function of the Diagnosis and the width. Everything is rich `Text`, never markup, so that a name from
a trace is only a name. Colour repeats what words and fills say, and may be missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpuprof.diagnosis import step_parts
from gpuprof.diagnosis.diagnosis import Diagnosis, Issue
from gpuprof.diagnosis.headline import headline, key
from gpuprof.diagnosis.step_parts import Bar, Part
from gpuprof.report import (
    above_words,
    counters_words,
    fixes,
    host_words,
    labels,
    memory_words,
    rank_lines,
    run_words,
    stepbar,
    words,
)
from gpuprof.report.brevity import Brevity, shorter_and_shorter, summary
from gpuprof.report.drawn import drawn
from gpuprof.report.lines import Column, Prose, flow, prose, table
from gpuprof.report.names import escape, shorten_kernel, shown, shown_kernel
from gpuprof.report.numbers import amount, count, duration, share
from gpuprof.units import Cells, Convention, Lines, Rows, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.comparison.comparison import Note

GUTTER: Convention[Cells] = 13
"""Columns to the left of the content, for the name of the section."""
NARROW_BELOW: Convention[Cells] = 60
"""Width below which sections that hold code begin below their name, INDENT columns in: code breaks less often there."""
INDENT: Convention[Cells] = 4
WIDEST_PAGE: Convention[Cells] = 160
"""Widest output, in columns: longer lines are hard to read."""
ROWS: Convention[Rows] = 5
"""Kernels shown by default."""
MOST_FIXES: Convention[Rows] = 5
ANSWER_LINES: Convention[Lines] = 18
"""Lines of the answer, which fit on any terminal without scrolling. What matters least is left out."""
MOST_GAPS: Convention[Rows] = 3
MOST_NOTES: Convention[Rows] = 5
"""Notes of the run that are shown."""
MOST_PHASES: Convention[Rows] = 4
MOST_CATEGORIES: Convention[Rows] = 6
MOST_DEVICES: Convention[Rows] = 8
SEEN = Brevity().least_part
"""Share below which a line that names several things leaves one out."""
WORTH_A_LINE: Convention[Share] = 0.02
"""Share of the idle time from which on a phase gets its own line."""

_BOUND_STYLES = {
    "compute": "green",
    "memory": "green",
    "latency": "green",
    "host": "yellow",
    "input": "cyan",
    "transfer": "blue",
    "communication": "magenta",
    "balanced": "green",
}
_MARKS = {"error": ("✗", "bold red"), "warning": ("!", "bold yellow"), "info": ("·", "dim")}


def render(
    diagnosis: Diagnosis, width: int = 80, rows: int = ROWS, next_step: str | None = None, *, verbose: bool = False
) -> Group:
    """The answer for a terminal of `width` columns; with `verbose` everything that is known, with `rows` kernels.

    `next_step` replaces the advice in the last lines; an empty one leaves it out.
    """
    width = max(40, min(width, WIDEST_PAGE))
    blocks = _everything(diagnosis, width, rows, next_step) if verbose else _answer(diagnosis, width, next_step)
    return Group(*spaced(block for block in blocks if block))


Block = list[Text | Table]


def _answer(diagnosis: Diagnosis, width: int, next_step: str | None) -> list[Block]:
    """Verdict, step and the fixes that fit ANSWER_LINES; without fixes, what the step depends on."""
    answer, later = _in_brief(diagnosis, width, Brevity())
    for brevity in shorter_and_shorter():
        if _height(answer, width) <= ANSWER_LINES:
            break
        answer, later = _in_brief(diagnosis, width, brevity)
    if _height(answer, width) > ANSWER_LINES:  # long code on a narrow screen: without the lines between the blocks
        answer = [[line for block in answer for line in block]]
    advice = words.next_step(diagnosis) if next_step is None else next_step
    more = words.more(diagnosis) if next_step is None else ""
    if diagnosis.memory is not None and diagnosis.memory.devices and diagnosis.memory.devices[0].failure:
        answer.append(section("memory", paragraph(memory_words.summary(diagnosis.memory.devices[0]))))
    later = [
        *later,
        section(
            "functions",
            host_words.lines(diagnosis, width - GUTTER, host_words.worth_saying(diagnosis)[: host_words.TOP_ROWS]),
        )
        + section("workers", paragraph(host_words.workers(diagnosis))),
    ]
    closing = section("trust", paragraph(fixes.footer(diagnosis), "dim"))
    closing += section("next", paragraph(advice, "bold")) + section("more", paragraph(more, "dim"))
    return [*answer, *later, closing]


def _in_brief(diagnosis: Diagnosis, width: int, brevity: Brevity) -> tuple[list[Block], list[Block]]:
    """The answer, and what also belongs to it but may come further down."""
    inner = width - GUTTER
    head, bad = _top(diagnosis, width, brevity)
    blocks = [
        head,
        *_iteration(diagnosis, inner),
        section(_bar_title(diagnosis), _step(diagnosis, inner, brevity.least_part)),
    ]
    if diagnosis.findings:
        blocks.append(_with_code("fixes", width, lambda room: fixes.fixes(diagnosis, room, brevity)))
    else:
        blocks.append(section("2× as fast", fixes.sensitivities(diagnosis, inner)))
        if not _differs_from_recording(diagnosis):  # else the bar says it, without the cost of recording
            blocks.append(section("GPU waits", _causes(diagnosis, inner)))
    blocks.append(_with_code("try", width, lambda room: fixes.worth_trying(diagnosis, room, brevity.tries)))
    above = section("reach", _above(diagnosis, inner)) + section("ncu", _counted(diagnosis))
    if brevity.warnings_first or diagnosis.quality.status == "unusable":
        return [head, bad, *blocks[1:]], [above]
    return blocks, [bad, above]


def _height(blocks: Iterable[Block], width: int) -> int:
    """Number of lines of some blocks on a terminal of `width` columns."""
    from rich.console import Console

    lines = spaced(block for block in blocks if block)
    return len(Console(width=width, color_system=None).render_lines(Group(*lines)))


def _top(diagnosis: Diagnosis, width: int, brevity: Brevity | None = None) -> tuple[Block, Block]:
    """The verdict, and what is wrong with the recording."""
    bad = [i for i in diagnosis.quality.issues if i.severity != "info"]
    brevity = brevity or Brevity()
    return [*_headline(diagnosis, width), *_summary(diagnosis, brevity)], section("quality", issues(bad))


def _everything(diagnosis: Diagnosis, width: int, rows: int, next_step: str | None) -> list[Block]:
    inner = width - GUTTER
    notes = [i for i in diagnosis.quality.issues if i.severity == "info"]
    if diagnosis.run:
        notes += [Issue("run_note", "info", note) for note in diagnosis.run.notes[:MOST_NOTES]]
    advice = words.next_step(diagnosis) if next_step is None else next_step
    all_fixes = Brevity(fixes=max(len(diagnosis.findings), MOST_FIXES))
    return [
        *_top(diagnosis, width),
        section("run", [Text(line) for line in run_words.lines(diagnosis)]),
        *_iteration(diagnosis, inner),
        section(_bar_title(diagnosis), _step(diagnosis, inner))
        + section("2× as fast", fixes.sensitivities(diagnosis, inner)),
        section("reach", _above(diagnosis, inner, most=max(rows, above_words.MOST_SHOWN), least=SEEN)),
        section("ncu", _counted(diagnosis, max(rows, counters_words.ROWS))),
        section("ranks", rank_lines.lines(diagnosis.ranks, inner, diagnosis.job)),
        _with_code("fixes", width, lambda room: fixes.fixes(diagnosis, room, all_fixes)),
        _with_code("try", width, lambda room: fixes.worth_trying(diagnosis, room)),
        section("ruled out", fixes.considered(diagnosis)),
        section("functions", _functions(diagnosis, inner, rows)),
        section("memory", _memory(diagnosis, inner)),
        section("GPU waits", _causes(diagnosis, inner))
        + section("before", _waits(diagnosis, inner))
        + section("longest", _longest(diagnosis, inner)),
        section("kernels", _kernels(diagnosis, inner, rows))
        + section("phases", _phases(diagnosis, inner))
        + section("counters", _activity(diagnosis, inner)),
        section("profiler", paragraph(words.profiler(diagnosis)))
        + section("notes" if len(notes) > 1 else "note", issues(notes))
        + section("trust", paragraph(fixes.footer(diagnosis), "dim"))
        + section("source", [Text(words.source(diagnosis, inner), "dim")])
        + section("next", paragraph(advice, "bold")),
    ]


def _functions(diagnosis: Diagnosis, width: int, rows: int) -> list[Text]:
    """The Python functions that cost most in unprofiled steps."""
    return [] if diagnosis.host is None else host_words.lines(diagnosis, width, list(diagnosis.host.functions[:rows]))


def _counted(diagnosis: Diagnosis, most: int = counters_words.ROWS) -> list[Text]:
    """Counters of Nsight Compute next to what was predicted for the same kernels."""
    return [Text(text, "" if i else "dim") for i, text in enumerate(counters_words.lines(diagnosis, most))]


def _above(
    diagnosis: Diagnosis, width: int, most: int = above_words.MOST_SHOWN, least: float = above_words.LEAST_NAMED_SHARE
) -> list[Text]:
    """What the step should cost, and the largest costs above that."""
    found = above_words.lines(diagnosis, most, least)
    return [Text(text, "" if i else "dim") for i, text in enumerate(found)]


def _memory(diagnosis: Diagnosis, width: int) -> list[Text]:
    """What occupies the memory at the peak, what failed, and the change that saves most."""
    return [] if diagnosis.memory is None else [Text(line) for line in memory_words.lines(diagnosis.memory)]


def _iteration(diagnosis: Diagnosis, width: int) -> list[Block]:
    """For RL trainings: the iteration by phase, and what would shorten it."""
    found = diagnosis.iteration
    if found is None:
        return []
    from gpuprof.report import iteration_lines

    block = section("iteration", iteration_lines.budget(found, width))
    for name, lines in iteration_lines.details(found).items():
        block += section(name, lines)
    return [block, section("shorter", iteration_lines.changes(found, width))]


def spaced(blocks: Iterable[Sequence[Text | Table]]) -> list[Text | Table]:
    lines: list[Text | Table] = []
    for block in blocks:
        lines += [Text(""), *block] if lines else block
    return lines


def section(title: str, lines: Sequence[Text | Table]) -> list[Text | Table]:
    """Lines next to the name of their section; they wrap within their own column."""
    if not lines:
        return []
    grid = Table.grid(padding=0)
    grid.add_column(width=GUTTER, no_wrap=True)
    grid.add_column(overflow="fold")
    for i, line in enumerate(lines):
        grid.add_row(Text(f"  {title}" if i == 0 else "", "dim"), prose(line) if isinstance(line, Text) else line)
    return [grid]


def _with_code(title: str, width: int, lines_in: Callable[[int], Sequence[Text | Table]]) -> Block:
    """A section that holds code, from its lines in a number of columns; on a narrow screen below its name."""
    if width >= NARROW_BELOW:
        return section(title, lines_in(width - GUTTER))
    lines = lines_in(width - INDENT)
    if not lines:
        return []
    grid = Table.grid(padding=0)
    grid.add_column(width=INDENT)
    grid.add_column(overflow="fold")
    for line in lines:
        grid.add_row("", prose(line) if isinstance(line, Text) else line)
    return [Text(f"  {title}", "dim"), grid]


def paragraph(text: str | None, style: str = "") -> list[Text]:
    return [Prose(escape(text), style)] if text else []


# -- the verdict


def _headline(diagnosis: Diagnosis, width: int) -> list[Text]:
    """What takes most of the step and the step time; below, the verdict's key, the usual step, and what ran where."""
    said, time = headline(diagnosis), words.step_time(diagnosis)
    style = f"bold {_verdict_style(diagnosis)}".strip()
    first: list[Text] = [Prose(said, style)]
    if time and cell_len(said) + 3 + cell_len(time) <= width:
        first[0].append("   ").append(time, "bold")
    elif time:
        first.append(Text(time, "bold"))
    known = (key(diagnosis), words.usual_step(diagnosis), words.gpus(diagnosis), words.versions(diagnosis))
    items = [*known, run_words.tokens(diagnosis)]
    # Left out where the line is full: the versions, then the work of a step, then the GPU.
    for drop in (None, 3, 3, 2):
        if drop is not None:
            del items[drop]
        below = " · ".join(filter(None, items))
        if cell_len(below) <= width:
            break
    return [*first, Text(below, "dim")] if below else first


def _verdict_style(diagnosis: Diagnosis) -> str:
    if diagnosis.quality.status == "unusable":
        return "red"
    return _BOUND_STYLES.get(diagnosis.verdict.bound or "", "")


def _summary(diagnosis: Diagnosis, brevity: Brevity) -> list[Text]:
    """What the verdict says, without what an issue below says."""
    return paragraph(summary(diagnosis, brevity))


def issues(found: Sequence[Issue | Note]) -> list[Text | Table]:
    """One issue per row after its mark; the worst first."""
    rows: list[Text | Table] = []
    for issue in sorted(found, key=lambda i: list(_MARKS).index(i.severity)):
        mark, style = _MARKS[issue.severity]
        grid = Table.grid(padding=(0, 1))
        grid.add_column(width=1)
        grid.add_column(overflow="fold")
        grid.add_row(Text(mark, style), Prose(escape(issue.message), "dim" if issue.severity == "info" else ""))
        rows.append(grid)
    return rows


# -- the step


def _bar_title(diagnosis: Diagnosis) -> str:
    """Title of the bar of the GPU's time: that of an iteration's phases is called iteration."""
    return "GPU" if diagnosis.iteration is not None and diagnosis.iteration.steps == 1 else diagnosis.unit


def _step(diagnosis: Diagnosis, width: int, least_part: float = SEEN) -> list[Text]:
    """A bar for each device, and the meaning of its fills."""
    bars = step_parts.bars(diagnosis)
    if not bars:
        return []
    several = len(bars) > 1
    lines = []
    for bar in bars[:MOST_DEVICES]:
        name = f"GPU {bar.device}  " if several else ""
        lines.append(Text(f"{name:<7}" if several else "").append_text(_bar(bar, width - 7 * several)))
        lines += _legend(bar, width, least_part)
    if len(bars) > MOST_DEVICES:
        lines.append(Text(f"and {len(bars) - MOST_DEVICES} more devices", "dim"))
    if not step_parts.estimated(diagnosis) and _differs_from_recording(diagnosis):
        lines.append(Text("as recorded, under the profiler", "dim"))
    return lines


def _differs_from_recording(diagnosis: Diagnosis) -> bool:
    """Whether the headline's step time differs from that of the recording."""
    steps = diagnosis.steps
    return steps is not None and (steps.unprofiled_ns is not None or steps.estimated_ns is not None)


def _bar(bar: Bar, width: int) -> Text:
    line = Text(no_wrap=True, overflow="crop")
    for part, n in zip(bar.parts, stepbar.cells(bar, width), strict=True):
        look = stepbar.paint(part)
        line.append(look.fill * n, look.terminal)
    return line


def _legend(bar: Bar, width: int, least_part: float) -> list[Text]:
    """`█ compute 9 %  idle 90 %: ░ launch 72 %  ╱∙ other 3 %`, waiting on its own line where space is short.

    Each symbol of the bar is in it; small parts share an entry.
    """
    working, waiting = ([part for part in bar.parts if getattr(part, kind)] for kind in ("works", "idle"))
    neither = [part for part in bar.parts if not (part.works or part.idle)]
    work, rest, causes = (
        _entries(_drawn(parts, bar) or least, bar, least_part)
        for parts, least in ((working, working[:1]), (neither, []), (waiting, waiting[:1]))
    )
    if len(waiting) == 1 and waiting[0].key == step_parts.IDLE:
        return flow([*work, *causes, *rest], width)
    if causes:
        causes[0] = Text.assemble("idle ", (share(bar.idle_ns(), bar.total_ns), "bold"), ": ", causes[0])
    together = flow([*work, *rest, *causes], width)
    return together if len(together) == 1 else flow([*work, *rest], width) + flow(causes, width)


def _drawn(parts: Sequence[Part], bar: Bar) -> list[Part]:
    return [part for part in parts if part.ns >= stepbar.LEAST_LISTED * bar.total_ns]


def _entries(parts: Sequence[Part], bar: Bar, least_part: float) -> list[Text]:
    """An entry for each part, and one for all parts below a share of the step, if there are several."""
    small = [part for part in parts if part.ns < least_part * bar.total_ns]
    named = [part for part in parts if part not in small] if 1 < len(small) < len(parts) else list(parts)
    found = [_entry(part, bar) for part in named]
    if len(named) < len(parts):
        symbols = [(look.fill, look.terminal) for look in map(stepbar.paint, small)]
        ns = sum(part.ns for part in small)
        found.append(Text.assemble(*symbols, " other ", (share(ns, bar.total_ns), "bold")))
    return found


def _entry(part: Part, bar: Bar) -> Text:
    look = stepbar.paint(part)
    return Text.assemble((look.fill, look.terminal), f" {labels.part(part)} ", (share(part.ns, bar.total_ns), "bold"))


# -- waiting


def _per_step(diagnosis: Diagnosis) -> int:
    return diagnosis.steps.count if diagnosis.steps else 1


def _a_step(diagnosis: Diagnosis) -> str:
    """Empty where the whole recording is the window."""
    return f" {diagnosis.unit.a}" if diagnosis.steps and diagnosis.steps.source != "none" else ""


def _causes(diagnosis: Diagnosis, width: int) -> list[Text]:
    """Idle time of all devices by cause."""
    gaps, steps = diagnosis.gaps, _per_step(diagnosis)
    if gaps is None or not gaps.total_ns:
        return []
    items = [
        Text.assemble((f"{labels.cause(cause.cause)} ", "bold"), duration(cause.ns / steps))
        for cause in sorted(gaps.by_cause, key=lambda c: -c.ns)
        if cause.ns >= SEEN * gaps.total_ns
    ]
    recorded = " as recorded" if _differs_from_recording(diagnosis) else ""
    of = f" of {diagnosis.unit.a}" if _a_step(diagnosis) else ""
    total = Text(f"{duration(gaps.total_ns / steps)}{of}{recorded}:")
    return flow([total, *items], width)


def _waits(diagnosis: Diagnosis, width: int) -> list[Text]:
    """Idle time by the phase of the work that follows it."""
    gaps, steps = diagnosis.gaps, _per_step(diagnosis)
    if gaps is None or not gaps.total_ns:
        return []
    rows = [
        (
            shown(phase.phase, 20),
            duration(phase.ns / steps),
            amount(phase.count / steps, "gap"),
            words.waits_for(phase),
        )
        for phase in gaps.by_phase[:MOST_PHASES]
        if phase.ns >= WORTH_A_LINE * gaps.total_ns
    ]
    columns = (Column("bold"), Column(right=True), Column("dim", right=True), Column(elastic=True))
    return table(rows, columns, width)


def _longest(diagnosis: Diagnosis, width: int) -> list[Text]:
    """The longest gaps: when, why, and before what."""
    gaps = diagnosis.gaps
    if gaps is None:
        return []
    several = len(diagnosis.devices) > 1
    rows = [
        (
            duration(gap.ns),
            f"at {duration(gap.start_ns)}",
            f"GPU {gap.device}" if several else "",
            labels.cause(gap.cause),
            words.waits_for(gap),
            shown(gap.frame, 120) if gap.frame else "",
        )
        for gap in gaps.largest[:MOST_GAPS]
    ]
    columns = (
        Column(right=True),
        Column("dim", right=True),
        Column("dim"),
        Column(),
        Column(elastic=True),
        Column("dim", elastic=True),
    )
    return table(rows, columns, width)


# -- working


def _kernels(diagnosis: Diagnosis, width: int, rows: int) -> list[Text]:
    """GPU work per step, by category, and the kernels that take longest."""
    kernels, steps = diagnosis.kernels, _per_step(diagnosis)
    if kernels is None or not kernels.count:
        return []
    total = Text(f"{duration(kernels.total_ns / steps)}{_a_step(diagnosis)} in ")
    total.append(
        "one kernel or copy" if kernels.count == steps else f"{count(kernels.count / steps)} kernels and copies"
    )
    if kernels.after_ns > SEEN * kernels.total_ns:
        total.append(f", {share(kernels.after_ns, kernels.total_ns)} of it after the last step ended on the CPU")
    if kernels.median_ns is not None and kernels.count > 1:
        total.append(f", half under {duration(kernels.median_ns)}")
    without_ops = any(issue.id == "no_ops" for issue in diagnosis.quality.issues)  # already said of all kernels
    if kernels.unattributed_ns > SEEN * kernels.total_ns and not without_ops:
        total.append(f", {share(kernels.unattributed_ns, kernels.total_ns)} unattributed")
    categories = sorted(kernels.by_category, key=lambda c: -c.ns)
    named = [c for c in categories[:MOST_CATEGORIES] if c.ns >= SEEN * kernels.total_ns]
    items = [_category(labels.category(c.category), c.ns, kernels.total_ns) for c in named]
    rest = sum(c.ns for c in categories[len(named) :])
    if rest >= SEEN * kernels.total_ns:
        items.append(_category("the rest", rest, kernels.total_ns))
    top = [
        (
            duration(kernel.ns / steps),
            share(kernel.ns, kernels.total_ns),
            f"{count(round(kernel.count / steps, 1))}×",
            shown_kernel(kernel.name, 160),
            shown(kernel.op, 120) if kernel.op else "",
        )
        for kernel in kernels.top[:rows]
    ]
    columns = (
        Column(right=True),
        Column("dim", right=True),
        Column("dim", right=True),
        Column(elastic=True, shorten=shorten_kernel),
        Column("dim", elastic=True),
    )
    return [total, *flow(items, width), *table(top, columns, width)]


def _category(name: str, ns: int, total_ns: int) -> Text:
    return Text.assemble((f"{name} ", "bold"), share(ns, total_ns))


def _phases(diagnosis: Diagnosis, width: int) -> list[Text]:
    """Host time by phase, and how long the GPU works in it."""
    steps = _per_step(diagnosis)
    window = sum(phase.ns for phase in diagnosis.phases)
    items = [
        Text.assemble(
            (f"{phase.phase} ", "bold"),
            duration(phase.ns / steps),
            (f" (GPU {duration(phase.busy_ns / steps) if phase.busy_ns else 'idle'})", "dim"),
        )
        for phase in diagnosis.phases
        if phase.ns >= SEEN * window
    ]
    return flow(items, width)


def _activity(diagnosis: Diagnosis, width: int) -> list[Text]:
    """The GPU's counters while it worked."""
    items = []
    for phase in diagnosis.activity or ():
        parts = (("SMs", phase.sm_percent), ("tensor cores", phase.tensor_percent), ("DRAM", phase.dram_percent))
        activity = ", ".join(f"{name} {value:.0f} %" for name, value in parts if value is not None)
        items.append(Text.assemble((f"{phase.phase} ", "bold"), activity, (" of the time the GPU works", "dim")))
    return flow(items, width)


def plain(diagnosis: Diagnosis, width: int = 80, rows: int = ROWS, *, verbose: bool = True) -> str:
    """The same as text without colours; everything unless `verbose` is false."""
    return f"{drawn(render(diagnosis, width, rows, verbose=verbose), width)}\n"
