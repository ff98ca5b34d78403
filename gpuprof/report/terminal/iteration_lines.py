"""The iteration of an RL training, as lines for a terminal."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from gpuprof.diagnosis.result.iteration_model import Iteration
from gpuprof.diagnosis.verdict.step_parts import Bar, BarPart
from gpuprof.report.lines import flow
from gpuprof.report.names import escape
from gpuprof.report.stepbar import cells
from gpuprof.report.words import iteration_words as words
from gpuprof.units import Cells, Convention

NUMBER_WIDTH: Convention[Cells] = 3
"""Width of the column with a change's number."""


def budget(iteration: Iteration, width: int) -> list[Text]:
    """The bar, its legend, and a summary."""
    return [*bar_and_legend(iteration, width), Text(words.summary(iteration), "dim")]


def bar_and_legend(iteration: words.Phased, width: int) -> list[Text]:
    """The bar, and its legend."""
    found = words.bar(iteration)
    whole = Bar(0, iteration.mean_ns, tuple(BarPart(one.phase, one.ns, False) for one in found))
    line = Text(no_wrap=True, overflow="crop")
    for one, n in zip(found, cells(whole, width), strict=True):
        line.append(words.PAINTS[one.phase].fill * n, words.PAINTS[one.phase].terminal)
    entries = []
    for phase, part in words.legend(iteration):
        paint = words.PAINTS[phase]
        entries.append(Text.assemble((paint.fill, paint.terminal), f" {phase} ", (part, "bold")))
    return [line, *flow(entries, width)]


def details(iteration: Iteration) -> dict[str, list[Text]]:
    """Name of a line → its text: generation, rewards, and what was not recorded."""
    said = {
        "generation": words.generation(iteration),
        "rewards": words.rewards(iteration),
        "left out": words.unrecorded(iteration),
    }
    return {name: [Text(text)] for name, text in said.items() if text}


def changes(iteration: words.Phased, width: int, most: int = words.MOST_CHANGES) -> list[Text | Table]:
    """What would shorten it: title and gain, what it changes, and how, in a column next to its number. The gain gets
    its own line if both do not fit in one; no time is broken between number and unit."""
    lines: list[Text | Table] = []
    for number, one in enumerate(iteration.changes[:most], 1):
        grid = Table.grid(padding=(0, 2, 0, 0))
        grid.add_column(no_wrap=True)
        grid.add_column(overflow="fold")
        title, gain = Text(escape(one.title), "bold"), words.gain(one, iteration)
        fits = NUMBER_WIDTH + title.cell_len + 3 + len(gain) <= width
        grid.add_row(str(number), title.append(f"   {gain}", "not bold") if fits else title)
        if not fits:
            grid.add_row("", Text(gain))
        if condition := words.condition(one):
            grid.add_row("", Text(condition, "dim"))
        grid.add_row("", Text("\n".join(map(escape, one.fix.splitlines())), "cyan"))
        if one.patch is not None:
            grid.add_row("", Text(escape(one.patch.command()), "dim"))
        lines.append(grid)
    return lines
