"""A trial as a screen of text: predicted and measured of each fix, and what to write for the best of them."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from gpuprof.report.lines import Column, table
from gpuprof.report.names import escape
from gpuprof.report.numbers import amount, duration, duration_range, percent
from gpuprof.trial.trial import Fix, Interval, Row, Trial

WIDEST = 160
WIDE, NARROW = 120, 78
"""Columns from which a terminal has room for whether the training is the same, and for memory and start."""
STATUS = {
    "confirmed": "confirmed", "slower": "slower", "no_difference": "no difference", "unconfirmed": "unconfirmed",
    "not_applied": "not applied", "failed": "failed", "not_tried": "not tried",
}  # fmt: skip
_STYLES = {"confirmed": "bold green", "slower": "red", "failed": "red", "not_applied": "yellow"}
SAME = {
    "bitwise": "bitwise the same", "within_scatter": "the same within scatter",
    "other_random_numbers": "other random numbers", "different": "different",
}  # fmt: skip


def render(trial: Trial, width: int = 80) -> Group:
    """The trial for a terminal of `width` columns."""
    width = max(60, min(width, WIDEST))
    lines = [_headline(trial), Text(_how(trial), "dim"), Text()]
    lines += _table(trial, width)
    for row in trial.rows:
        lines += _details(row)
    lines += [Text(), *_best(trial)]
    lines += [Text(escape(f"note: {note}"), "dim") for note in trial.notes]
    return Group(*lines)


def _headline(trial: Trial) -> Text:
    where = ", ".join(filter(None, (trial.gpu or "no GPU", f"torch {trial.torch}" if trial.torch else "")))
    ranks = f", {trial.world_size} ranks" if trial.world_size > 1 else ""
    return Text.assemble((f"{duration(trial.baseline.step_ns)} a step as it is", "bold"), f"   {escape(where)}{ranks}")


def _how(trial: Trial) -> str:
    scatter = trial.baseline.scatter
    apart = f"; without a fix its steps differ by {percent(scatter)} from process to process" if scatter else ""
    steps = f"{amount(trial.timed_steps, 'step')} each, after {trial.settle_steps} that settle"
    return f"{len(trial.processes)} fresh processes in turns, no profiler: {steps}{apart}"


def _table(trial: Trial, width: int) -> list[Text]:
    """A row as it is, and one for each fix; narrow terminals go without what the lines below say."""
    base = trial.baseline
    rows = [("fix", "predicted", "measured", "gain", "", "peak", "start", "the training")]
    rows.append(("as it is", "", duration(base.step_ns), "", "", _bytes(base.peak_bytes), _start(base.start_ns), ""))
    rows += [
        (
            escape(row.name),
            _range(row.predicted_step_ns),
            duration(row.step_ns) if row.step_ns else "–",
            gain(row.speedup),
            STATUS[row.status],
            _bytes(row.peak_bytes),
            _start(row.start_ns),
            same(row),
        )
        for row in trial.rows
    ]
    right = Column(right=True)
    columns = [Column("bold", elastic=True), right, right, right, Column(), right, right, Column("dim", elastic=True)]
    kept = 8 if width >= WIDE else 7 if width >= NARROW else 5
    found = table([row[:kept] for row in rows], columns[:kept], width)
    found[0].stylize("dim")
    for line, row in zip(found[2:], trial.rows, strict=True):
        style = _STYLES.get(row.status)
        if style:
            line.highlight_words([STATUS[row.status]], style)
    return found


def _details(row: Row) -> list[Text]:
    """What a table has no room for: why, or what shows that the patch took effect; the gain that was predicted, which
    may be known better than the step; and what it changes."""
    if row.status in ("failed", "not_applied", "not_tried"):
        return [Text(f"  {escape(row.name)}: {STATUS[row.status]}: {escape(row.reason)}", "dim")]
    predicted = f"; predicted gain {gain(row.predicted_speedup)}" if row.predicted_speedup else ""
    changed = f"; {escape(row.sameness.text)}" if row.sameness else ""
    return [Text(f"  {escape(row.name)}: {escape(row.reason)}{predicted}{changed}", "dim")]


def _best(trial: Trial) -> list[Text]:
    row = best_row(trial)
    if row is None:
        return [Text("no fix is worth making here", "bold")]
    sure = "" if row.status == "confirmed" else ", unconfirmed"
    head = f"best: {row.name}   {duration(trial.baseline.step_ns)} → {duration(row.step_ns or 0)}"
    lines = [Text.assemble((escape(head), "bold"), f"   {gain(row.speedup)}{sure}"), Text("write:", "dim")]
    return lines + [Text(f"  {escape(line)}", "cyan") for line in row.lines.splitlines()]


def best_row(trial: Trial) -> Row | None:
    """The row of the best combination."""
    wanted: tuple[Fix, ...] = trial.best
    return next((row for row in trial.rows if wanted and set(row.fixes) == set(wanted)), None)


def gain(found: Interval | None) -> str:
    """`1.8–2.1×`; of one measurement `2.0×`."""
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return f"{found.expected:.2f}×"
    low, high = f"{found.low:.2f}", f"{found.high:.2f}"
    return f"{high}×" if low == high else f"{low}–{high}×"


def same(row: Row) -> str:
    """Whether the training is the same with it, in few words."""
    if row.sameness is None:
        return ""
    return SAME[row.sameness.verdict] if row.sameness.verdict else "not known"


def _range(found: Interval | None) -> str:
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return duration(found.expected)
    return duration_range(found.low, found.high)


def _bytes(value: int | None) -> str:
    if value is None:
        return "–"
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def _start(ns: int | None) -> str:
    return "–" if ns is None else f"{ns / 1e9:.0f} s"
