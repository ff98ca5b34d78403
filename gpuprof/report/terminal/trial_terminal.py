"""A trial as a screen of text: first what was confirmed and what to paste, then the measurements of each fix, which
predictions were right, and what to try next."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from gpuprof.report.lines import Column, table
from gpuprof.report.names import escape
from gpuprof.report.numbers import amount, duration, duration_range, long_duration, percent
from gpuprof.trial.trial import MeasuredGain, Next, Row, Trial, TriedFix
from gpuprof.units import Cells, Convention
from gpuprof.value_range import Range

WIDEST_PAGE: Convention[Cells] = 160
WIDE_FROM: Convention[Cells] = 120
NARROW_FROM: Convention[Cells] = 78
"""From these widths on there is room for whether the training is the same, and for memory and start."""
STATUS = {
    "confirmed": "confirmed", "slower": "slower", "no_difference": "no gain", "unconfirmed": "unconfirmed",
    "not_applied": "not applied", "failed": "failed", "not_tried": "not tried",
}  # fmt: skip
_STYLES = {"confirmed": "bold green", "slower": "red", "failed": "red", "not_applied": "yellow"}
SAME = {
    "bitwise": "bitwise the same", "within_scatter": "the same within scatter",
    "other_random_numbers": "other random numbers", "different": "different",
}  # fmt: skip
PREDICTED = {
    "right": "as predicted", "gained_more": "more than predicted", "gained_less": "less than predicted",
    "failed": "failed",
}  # fmt: skip
PASTE = "paste   "


def render(trial: Trial, width: int = 80) -> Group:
    """The trial for a terminal of `width` columns."""
    width = max(60, min(width, WIDEST_PAGE))
    lines = [*_best(trial), Text(), *_table(trial, width)]
    for row in trial.rows:
        lines += _details(row)
    lines += [Text(), *_predictions(trial), *_next(trial), Text(escape(_how(trial)), "dim")]
    lines += [Text(escape(f"note: {note}"), "dim") for note in trial.notes]
    return Group(*lines)


def _best(trial: Trial) -> list[Text]:
    """What was confirmed, and what to paste for it."""
    base, row = duration(trial.baseline.step_ns), best_row(trial)
    until = (
        "" if trial.until is None else f"{trial.until:g}× is {'' if trial.stop.reason == 'until' else 'not '}reached"
    )
    if row is None:
        full = 2 * sum(one.is_disturbed for one in trial.processes) > len(trial.processes)
        why = "other programs kept the CPUs full: try again on a quiet machine" if full else ""
        head = Text.assemble(("NOTHING CONFIRMED", "bold"), f"   {base} a step as it is")
        return [head, *(Text(f"{line[0].upper()}{line[1:]}") for line in (why, until) if line)]
    head = f"{escape(row.name)}   {base} → {duration(row.step_ns or 0)} a step   {gain(row.speedup)}"
    lines = [Text.assemble(("CONFIRMED", "bold green"), "   ", (head, "bold"))]
    for number, line in enumerate(row.lines.splitlines()):
        lines.append(Text.assemble((PASTE if number == 0 else " " * len(PASTE), "dim"), (escape(line), "cyan")))
    same_or_not = f"the training: {same(row)}" if row.sameness else ""
    said = "; ".join(filter(None, (until, same_or_not)))
    return [*lines, Text(said)] if said else lines


def _how(trial: Trial) -> str:
    scatter = trial.baseline.scatter
    apart = f"; without a fix its steps differ by {percent(scatter)} from process to process" if scatter else ""
    steps = f"{amount(trial.timed_steps, 'step')} each, after {trial.settle_steps} that settle"
    where = ", ".join(filter(None, (trial.gpu or "no GPU", f"torch {trial.torch}" if trial.torch else "")))
    ranks = f", {trial.world_size} ranks" if trial.world_size > 1 else ""
    over = f"; {trial.stop.text}" if trial.stop.text else ""
    return f"{where}{ranks}: {len(trial.processes)} fresh processes in turns, no profiler, {steps}{apart}{over}"


def _table(trial: Trial, width: int) -> list[Text]:
    """A row for the unchanged training, and one for each fix; narrow terminals leave out what the lines below
    repeat."""
    base = trial.baseline
    rows = [("fix", "predicted", "measured", "gain", "", "peak", "start", "the training")]
    rows.append(("as it is", "", duration(base.step_ns), "", "", _bytes(base.peak_bytes), _start(base.start_ns), ""))
    rows += [
        (
            escape(row.name),
            gain(row.predicted_speedup),
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
    kept = 8 if width >= WIDE_FROM else 7 if width >= NARROW_FROM else 5
    found = table([row[:kept] for row in rows], columns[:kept], width)
    found[0].stylize("dim")
    for line, row in zip(found[2:], trial.rows, strict=True):
        style = _STYLES.get(row.status)
        if style:
            line.highlight_words([STATUS[row.status]], style)
    return found


def _details(row: Row) -> list[Text]:
    """What the table has no room for: the reason, or the proof that the patch took effect; the predicted step; and what
    it changes."""
    if row.status in ("failed", "not_applied", "not_tried"):
        return [Text(f"  {escape(row.name)}: {STATUS[row.status]}: {escape(row.reason)}", "dim")]
    predicted = f"; predicted step {_range(row.predicted_step_ns)}" if row.predicted_step_ns else ""
    changed = f"; {escape(row.sameness.text)}" if row.sameness else ""
    return [Text(f"  {escape(row.name)}: {escape(row.reason)}{predicted}{changed}", "dim")]


def _predictions(trial: Trial) -> list[Text]:
    """What was right and wrong of the predicted gains."""
    checked = [row for row in trial.rows if row.prediction]
    if not checked:
        return []
    right = sum(row.prediction == "right" for row in checked)
    each = "; ".join(
        f"{escape(row.name)} {PREDICTED[row.prediction or '']}"
        + ("" if row.prediction == "failed" else f" ({gain(row.predicted_speedup)}, measured {gain(row.speedup)})")
        for row in checked
    )
    return [Text(f"predictions: {right} of {len(checked)} right: {each}")]


def _next(trial: Trial) -> list[Text]:
    """What to try next, as a command; it uses the training command of the latest run."""
    if not trial.next:
        return []
    first = trial.next[0]
    seconds = sum(one.seconds for one in trial.next)
    lines = [Text.assemble("next: ", (f"gpuprof try --fix {fixes_of(first)} --budget {budget_of(first)}", "cyan"))]
    lines[0].append(f"   {escape(_expected(first))}", "dim")
    if len(trial.next) > 1:
        others = ", ".join(escape(one.name) for one in trial.next[1:])
        lines.append(Text(f"      then {others}: all in about {long_duration(seconds * 1e9)}", "dim"))
    return lines


def fixes_of(one: Next) -> str:
    """The fixes in the syntax of --fix."""
    return ",".join(map(str, one.fixes))


def budget_of(one: Next) -> str:
    """A sufficient budget in whole minutes, including the process that fills caches."""
    return f"{max(1, -(-int(one.seconds * 1.25) // 60))}m"


def _expected(one: Next) -> str:
    so_far = {"not decided": "so far", "not tried": "expected", "together": "expected"}[one.why]
    found = f"{one.speedup:.2f}× {so_far}" if one.speedup else "nothing is predicted"
    likely = "" if one.probability is None else f", {_chance(one.probability)} likely to gain"
    return f"{one.why}: {found}{likely}"


def _chance(probability: float) -> str:
    """`78 %`; what was not measured is never certain."""
    return "more than 99 %" if probability > 0.99 else f"{100 * probability:.0f} %"


def best_row(trial: Trial) -> Row | None:
    """The row of the best combination."""
    wanted: tuple[TriedFix, ...] = trial.best
    return next((row for row in trial.rows if wanted and set(row.fixes) == set(wanted)), None)


def gain(found: Range | MeasuredGain | None) -> str:
    """`1.8–2.1×`; `2.0×` for one measurement."""
    if found is None:
        return "–"
    if found.low is None or found.high is None:
        return f"{found.expected:.2f}×"
    low, high = f"{found.low:.2f}", f"{found.high:.2f}"
    return f"{high}×" if low == high else f"{low}–{high}×"


def same(row: Row) -> str:
    """Whether the training stays the same, in few words."""
    if row.sameness is None:
        return ""
    return SAME[row.sameness.verdict] if row.sameness.verdict else "not known"


def _range(found: Range | None) -> str:
    return "–" if found is None else duration_range(found.low, found.high)


def _bytes(value: int | None) -> str:
    if value is None:
        return "–"
    return f"{value / 2**30:.1f} GiB" if value >= 2**30 else f"{value / 2**20:.0f} MiB"


def _start(ns: int | None) -> str:
    return "–" if ns is None else f"{ns / 1e9:.0f} s"
