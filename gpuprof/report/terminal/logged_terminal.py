"""Iterations that a framework logged, as a screen of text."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Group
from rich.table import Table
from rich.text import Text

from gpuprof.diagnosis.iterations.logged_model import LoggedIterations, LoggedQuantity, LoggedRole
from gpuprof.report.names import escape
from gpuprof.report.numbers import amount, count, duration, duration_range, share
from gpuprof.report.terminal import iteration_lines
from gpuprof.report.terminal.sections import GUTTER, WIDEST_PAGE, paragraph, section
from gpuprof.report.words.iteration_words import MOST_CHANGES

ROWS = MOST_CHANGES
"""Changes shown by default."""
_QUANTITIES: dict[str, tuple[str, Callable[[float], str]]] = {
    "completion_mean": ("lengths", lambda mean: f"{count(mean)} tokens a completion"),
    "completion_longest": ("lengths", lambda mean: f"the longest of an iteration {count(mean)}"),
    "cut_share": ("lengths", lambda mean: f"{share(mean, 1)} cut at the limit"),
    "request_mean_s": ("lengths", lambda mean: f"{duration(round(1e9 * mean))} a completion"),
    "request_longest_s": ("lengths", lambda mean: f"the longest {duration(round(1e9 * mean))}"),
    "queue": ("queue", lambda mean: f"{mean:,.1f} wait to be trained on"),
    "staleness": ("queue", lambda mean: f"their policy is {mean:,.1f} updates old"),
}
"""Kind → (its line, the text for its mean)."""


def render(found: LoggedIterations, width: int = 80, rows: int = ROWS) -> Group:
    """The iterations for a terminal of `width` columns, with `rows` changes."""
    width = max(40, min(width, WIDEST_PAGE))
    inner = width - GUTTER
    kind = "generates while it trains" if found.asynchronous else "generates and trains in turns"
    between = duration_range(found.low_ns, found.high_ns)
    spread = f" ({between})" if between != duration(found.mean_ns) else ""
    head = Text.assemble(
        (f"{duration(found.mean_ns)} an iteration", "bold"),
        f"{spread}   ",
        (f"{escape(found.framework)}, {kind}", "dim"),
    )
    lines: list[Text | Table] = [head, *paragraph(found.limit), Text()]
    lines += section("iteration", [*iteration_lines.bar_and_legend(found, inner), Text(_summary(found), "dim")])
    lines += section("roles", [Text(_role(one)) for one in found.roles])
    for name in dict.fromkeys(line for line, _ in _QUANTITIES.values()):
        said = [quantity(one) for one in found.quantities if one.kind in _QUANTITIES and _line(one) == name]
        if name == "queue" and found.lag_ns is not None:
            said.append(f"a batch is trained {duration(found.lag_ns)} after it was generated")
        lines += section(name, [Text("; ".join(said))] if said else [])
    if found.changes:
        lines.append(Text())
    lines += section("shorter", iteration_lines.changes(found, inner, rows))
    notes = [Text(one.message, "yellow" if one.severity == "warning" else "dim") for one in found.issues]
    return Group(*lines, *section("note", notes))


def _summary(found: LoggedIterations) -> str:
    left_out = (
        f", without the first {found.skipped}" if found.skipped > 1 else ", without the first" if found.skipped else ""
    )
    return f"mean of {amount(found.count, 'iteration')}{left_out}; times as {escape(found.framework)} logged them"


def _role(one: LoggedRole) -> str:
    if one.wait_ns is None or one.wait_share is None or one.busy_ns is None:
        return f"{one.role}: not known ({escape(one.source)})"
    waits = f", waits {duration(one.wait_ns)} ({share(one.wait_share, 1)})" + (
        f" for {one.waits_for}" if one.waits_for else ""
    )
    return f"{one.role} works {duration(one.busy_ns)}{waits}   [{escape(one.source)}]"


def _line(one: LoggedQuantity) -> str:
    return _QUANTITIES[one.kind][0]


def quantity(one: LoggedQuantity) -> str:
    """Text for a quantity's mean."""
    return _QUANTITIES[one.kind][1](one.mean)
