"""The diagnosis as text: first the answer (verdict, step, one to three fixes), with `verbose` also everything else.

`render` is a pure function of the Diagnosis and the width. Everything is rich `Text`, never markup, so that a name from
a trace is only a name. Colour repeats what words and fills say, and may be missing.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len
from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpuprof.diagnosis.result.diagnosis import Diagnosis, Issue
from gpuprof.diagnosis.verdict.headline import headline, key_and_why
from gpuprof.report.lines import GAP_WIDTH, Prose
from gpuprof.report.numbers import duration
from gpuprof.report.terminal import rank_lines
from gpuprof.report.terminal.drawn import drawn
from gpuprof.report.terminal.gpu_lines import activity, causes, kernels, longest_gaps, phases, waits
from gpuprof.report.terminal.sections import GUTTER, WIDEST_PAGE, Block, issues, paragraph, section, spaced, with_code
from gpuprof.report.terminal.step_lines import SEEN, bar_title, differs_from_recording, step_lines
from gpuprof.report.words import (
    above_words,
    compiler_words,
    counters_words,
    fixes,
    host_words,
    memory_words,
    run_words,
    words,
)
from gpuprof.report.words.brevity import Brevity, shorter_and_shorter, summary
from gpuprof.units import Convention, Lines, Rows

ROWS: Convention[Rows] = 5
"""Kernels shown by default."""
MOST_FIXES: Convention[Rows] = 5
ANSWER_LINES: Convention[Lines] = 24
"""Lines of the answer, which fit on any terminal without scrolling. What matters least is left out."""
MOST_LINES: Convention[Lines] = 40
"""Lines of the answer and what follows it, if that takes no more than leaving out reasons of what lies above the
reach; the items themselves always stand there."""
MOST_NOTES: Convention[Rows] = 5
"""Notes of the run that are shown."""
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


def render(
    diagnosis: Diagnosis, width: int = 80, rows: int = ROWS, next_step: str | None = None, *, verbose: bool = False
) -> Group:
    """The answer for a terminal of `width` columns; with `verbose` everything that is known, with `rows` kernels.

    `next_step` replaces the advice in the last lines; an empty one leaves it out.
    """
    width = max(40, min(width, WIDEST_PAGE))
    blocks = _everything(diagnosis, width, rows, next_step) if verbose else _answer(diagnosis, width, next_step)
    return Group(*spaced(block for block in blocks if block))


def render_functions(diagnosis: Diagnosis, width: int) -> Group:
    """The few Python functions that are worth a line, as in `render`; nothing where there are none."""
    return Group(*_named_functions(diagnosis, max(40, min(width, WIDEST_PAGE))))


def _answer(diagnosis: Diagnosis, width: int, next_step: str | None) -> list[Block]:
    """Verdict, step and the fixes that fit ANSWER_LINES; without fixes, what the step depends on. Below that what lies
    above the reach, the functions, and what to do next."""
    answer, warnings = _in_brief(diagnosis, width, Brevity())
    for brevity in shorter_and_shorter():
        if _height(answer, width) <= ANSWER_LINES:
            break
        answer, warnings = _in_brief(diagnosis, width, brevity)
    if _height(answer, width) > ANSWER_LINES:  # long code on a narrow screen: without the lines between the blocks
        answer = [[line for block in answer for line in block]]
    if diagnosis.memory is not None and diagnosis.memory.devices and diagnosis.memory.devices[0].failure:
        answer.append(section("memory", paragraph(memory_words.summary(diagnosis.memory.devices[0]))))
    above, below = [*answer, *warnings], [_named_functions(diagnosis, width), _closing(diagnosis, next_step)]
    reach, counted = _reach(diagnosis, width, above_words.MOST_SHOWN), section("ncu", _counted(diagnosis))
    for reasons in range(above_words.MOST_SHOWN - 1, -1, -1):
        if _height([*above, reach, *below], width) <= MOST_LINES:
            break
        reach = _reach(diagnosis, width, reasons)
    return [*above, reach + counted, *below]


def _named_functions(diagnosis: Diagnosis, width: int) -> Block:
    """The few Python functions that are worth a line, and what the DataLoader's workers do."""
    named = host_words.worth_saying(diagnosis)[: host_words.TOP_ROWS]
    functions = with_code("functions", width, lambda room: host_words.lines(diagnosis, room, named))
    return functions + section("workers", paragraph(host_words.workers(diagnosis)))


def _reach(diagnosis: Diagnosis, width: int, reasons: int) -> Block:
    """What lies above the reach, in brief, the first `reasons` items with why."""
    return with_code("reach", width, lambda _: _above(diagnosis, brief=True, reasons=reasons))


def _closing(diagnosis: Diagnosis, next_step: str | None) -> Block:
    """How sure the answer is, and what to type next."""
    advice = words.next_step(diagnosis) if next_step is None else next_step
    more = words.more(diagnosis) if next_step is None else ""
    closing = section("trust", paragraph(fixes.footer(diagnosis), "dim"))
    return closing + section("next", paragraph(advice, "bold")) + section("more", paragraph(more, "dim"))


def _in_brief(diagnosis: Diagnosis, width: int, brevity: Brevity) -> tuple[list[Block], list[Block]]:
    """The answer, and warnings for which there was no room in it."""
    inner = width - GUTTER
    head, bad = _top(diagnosis, width, brevity)
    blocks = [
        head,
        *_iteration(diagnosis, inner),
        section(bar_title(diagnosis), step_lines(diagnosis, inner, brevity.least_part)),
    ]
    if diagnosis.findings:
        blocks.append(with_code("fixes", width, lambda room: fixes.fixes(diagnosis, room, brevity)))
    else:
        blocks.append(section("2× as fast", fixes.sensitivities(diagnosis, inner)))
        if not differs_from_recording(diagnosis):  # else the bar says it, without the cost of recording
            blocks.append(section("GPU waits", causes(diagnosis, inner)))
    blocks.append(with_code("try", width, lambda room: fixes.worth_trying(diagnosis, room, brevity.tries)))
    if brevity.warnings_first or diagnosis.quality.status == "unusable":
        return [head, bad, *blocks[1:]], []
    return blocks, [bad]


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
        section(bar_title(diagnosis), step_lines(diagnosis, inner))
        + section("2× as fast", fixes.sensitivities(diagnosis, inner)),
        section("reach", _above(diagnosis, most=max(rows, above_words.MOST_SHOWN), least=SEEN)),
        section("ncu", _counted(diagnosis, max(rows, counters_words.ROWS))),
        section("ranks", rank_lines.lines(diagnosis.ranks, inner, diagnosis.job)),
        with_code("fixes", width, lambda room: fixes.fixes(diagnosis, room, all_fixes)),
        with_code("try", width, lambda room: fixes.worth_trying(diagnosis, room)),
        section("ruled out", fixes.considered(diagnosis)),
        section("functions", _functions(diagnosis, inner, rows)),
        section("compile", [Text(line) for line in compiler_words.lines(diagnosis)]),
        section("memory", _memory(diagnosis)),
        section("GPU waits", causes(diagnosis, inner))
        + section("before", waits(diagnosis, inner))
        + section("longest", longest_gaps(diagnosis, inner)),
        section("kernels", kernels(diagnosis, inner, rows))
        + section("phases", phases(diagnosis, inner))
        + section("counters", activity(diagnosis, inner)),
        section("profiler", paragraph(words.profiler(diagnosis)))
        + section("notes" if len(notes) > 1 else "note", issues(notes))
        + section("trust", paragraph(fixes.footer(diagnosis), "dim"))
        + section("source", [Text(words.source(diagnosis, inner), "dim")])
        + section("next", paragraph(advice, "bold")),
    ]


def _functions(diagnosis: Diagnosis, width: int, rows: int) -> list[Text]:
    """The Python functions that cost most in unprofiled steps: those that the answer names, then others."""
    if diagnosis.host is None:
        return []
    named = host_words.worth_saying(diagnosis)[: host_words.TOP_ROWS]
    others = [one for one in diagnosis.host.functions if one not in named]
    return host_words.lines(diagnosis, width, [*named, *others][: max(rows, len(named))])


def _counted(diagnosis: Diagnosis, most: int = counters_words.ROWS) -> list[Text]:
    """Counters of Nsight Compute next to what was predicted for the same kernels."""
    return [Text(text, "" if i else "dim") for i, text in enumerate(counters_words.lines(diagnosis, most))]


def _above(
    diagnosis: Diagnosis,
    most: int = above_words.MOST_SHOWN,
    least: float = above_words.LEAST_NAMED_SHARE,
    *,
    brief: bool = False,
    reasons: int | None = None,
) -> list[Text | Table]:
    """What the step should cost, and the largest costs above that: times in a column. reasons: items that say why; all
    by default."""
    items = above_words.costs(diagnosis, most, least)
    if not items:
        return []
    times = [(duration(item.ns), above_words.gain(item)) for item in items]
    grid = Table.grid(padding=(0, GAP_WIDTH))
    for column in zip(*times, strict=True):
        if any(column):
            grid.add_column(width=max(map(cell_len, column)), justify="right", no_wrap=True)
    grid.add_column(overflow="fold")
    gains = any(gain for _, gain in times)
    for number, ((time, gain), item) in enumerate(zip(times, items, strict=True)):
        numbers = [Text(time, "bold"), *([Text(gain)] if gains else [])]
        says_why = reasons is None or number < reasons
        grid.add_row(*numbers, Prose(above_words.text(item, brief=brief, why=says_why)))
    return [Prose(above_words.heading(diagnosis), "dim"), grid]


def _memory(diagnosis: Diagnosis) -> list[Text]:
    """What occupies the memory at the peak, what failed, and the change that saves most."""
    return [] if diagnosis.memory is None else [Text(line) for line in memory_words.lines(diagnosis.memory)]


def _iteration(diagnosis: Diagnosis, width: int) -> list[Block]:
    """For RL trainings: the iteration by phase, and what would shorten it."""
    found = diagnosis.iteration
    if found is None:
        return []
    from gpuprof.report.terminal import iteration_lines

    block = section("iteration", iteration_lines.budget(found, width))
    for name, lines in iteration_lines.details(found).items():
        block += section(name, lines)
    return [block, section("shorter", iteration_lines.changes(found, width))]


def _headline(diagnosis: Diagnosis, width: int) -> list[Text]:
    """What takes most of the step and the step time; below, the verdict's key, the usual step, and what ran where."""
    said, time = headline(diagnosis), words.step_time(diagnosis)
    style = f"bold {_verdict_style(diagnosis)}".strip()
    first: list[Text] = [Prose(said, style)]
    if time and cell_len(said) + 3 + cell_len(time) <= width:
        first[0].append("   ").append(time, "bold")
    elif time:
        first.append(Text(time, "bold"))
    known = (key_and_why(diagnosis), words.usual_step(diagnosis), words.gpus(diagnosis), words.versions(diagnosis))
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


def plain(diagnosis: Diagnosis, width: int = 80, rows: int = ROWS, *, verbose: bool = True) -> str:
    """The same as text without colours; everything unless `verbose` is false."""
    return f"{drawn(render(diagnosis, width, rows, verbose=verbose), width)}\n"
