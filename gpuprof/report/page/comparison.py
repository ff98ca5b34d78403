"""The comparison as one HTML file: the outcome, the waterfall from A's step to B's, and why.

`render` is a pure function of the Comparison. The page holds no script at all, so that it is the same wherever it is
opened; its content policy allows none.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.comparison.comparison import Comparison, Mechanism, PredictionCheck
from gpuprof.diagnosis.verdict.step_parts import Bar
from gpuprof.report import comparison_bars as bars
from gpuprof.report import labels
from gpuprof.report.names import escape, shown, shown_kernel
from gpuprof.report.numbers import count, duration, gib, share
from gpuprof.report.page.html import palette_css, style, template, theme_button
from gpuprof.report.palette import CAUSE_PAINTS, WORK_PAINTS
from gpuprof.report.words import comparison_words as words
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE
from gpuprof.units import Characters, Convention

_NAME_WIDTH: Convention[Characters] = 140
"""Characters of a name in a table, which wraps it."""


@dataclass(frozen=True, slots=True)
class BarStretch:
    """One stretch of a step's bar; `percent` of the longer step."""

    colour: str
    label: str
    percent: float
    text: str
    idle: bool


@dataclass(frozen=True, slots=True)
class DrawnFall:
    """One row of the waterfall; `left` and `width` in percent of the axis."""

    kind: str
    label: str
    value: str
    left: float
    width: float
    ends: float
    """Where it ends, in percent: the next row begins there."""
    phases: str
    idle: bool


@dataclass(frozen=True, slots=True)
class Guess:
    """A prediction next to the measurement, all in percent of the axis."""

    text: str
    inside: bool
    low: float
    width: float
    expected: float
    measured: float
    now: float


@dataclass(frozen=True, slots=True)
class KernelRow:
    """A kernel of the table."""

    name: str
    origin: str
    """Its category, and the op and module that launch it."""
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MechanismCard:
    """A mechanism, as the page shows it."""

    number: int
    id: str
    title: str
    text: str
    difference: str
    good: bool
    share: str
    guesses: tuple[Guess, ...]


def render(comparison: Comparison) -> str:
    """The page."""
    c = comparison
    different = words.different_programs(c)
    return template("comparison.html").render(
        c=c,
        outcome=c.step.outcome,
        **theme_button(),
        styles=palette_css() + style("report.css") + style("comparison.css"),
        names=words.names(c),
        paths=[escape(side.path) for side in (c.a, c.b)],
        title=_sentence(words.outcome(c)),
        unit=c.unit,
        each=c.unit.a,
        steps=words.steps(c),
        eyebrow=_eyebrow(c),
        summary="" if different else escape(c.summary),  # a note says it already
        test=words.test(c),
        bars=stretches(c),
        legend=legend(c),
        on_gpu=words.has_gpu_work(comparison),
        falls=falls(c),
        cards=cards(c),
        unexplained=words.unexplained(c),
        phases=_phases(c),
        kernels=_kernels(c),
        kernel_words=_kernel_words(c),
        ops=_ops(c) if words.host_matters(c) else [],
        ranks=[words.rank(one) for one in c.ranks or ()],
        sides=_sides(c),
        notes=[(note.severity, escape(note.message)) for note in c.notes],
    )


def _sentence(capitals: str) -> str:
    """`B IS 1.9× AS FAST` as a headline."""
    return capitals[:1] + capitals[1:].lower()


def _eyebrow(c: Comparison) -> str:
    gpus = " → ".join(dict.fromkeys(shown(side.gpu, 60) for side in (c.a, c.b) if side.gpu))
    return " · ".join(filter(None, (gpus, words.work(c), f"{c.unit}s: {words.known(c)}")))


# -- the steps


def stretches(c: Comparison) -> list[tuple[str, str, float, list[BarStretch]]]:
    """(A or B, its step, its length in percent of the longer, its parts) for both."""
    pair = bars.step_bars(c)
    longest = max(bar.total_ns for bar in pair) or 1
    shown = {(label, idle) for _, label, idle, _ in legend(c)}
    return [
        (name, duration(bar.total_ns), 100 * bar.total_ns / longest, _stretches(bar, longest, shown))
        for name, bar in zip("AB", pair, strict=True)
    ]


def _stretches(bar: Bar, longest: int, shown: set[tuple[str, bool]]) -> list[BarStretch]:
    """The stretches that the legend names; the others are too short to be visible."""
    return [
        BarStretch(
            colour=_colour(part.key, part.idle),
            label=_label(part.key, part.idle),
            percent=100 * part.ns / longest,
            text=f"{duration(part.ns)}, {share(part.ns, bar.total_ns)}",
            idle=part.idle,
        )
        for part in bar.parts
        if part.ns and (_label(part.key, part.idle), part.idle) in shown
    ]


def _colour(key: str, idle: bool) -> str:
    known = CAUSE_PAINTS if idle else WORK_PAINTS
    return f"--{'cause' if idle else 'work'}-{key if key in known else ('unknown' if idle else 'idle')}"


def _label(key: str, idle: bool) -> str:
    paint = (CAUSE_PAINTS if idle else WORK_PAINTS).get(key)
    return paint.label if paint else key


def legend(c: Comparison) -> list[tuple[str, str, bool, str]]:
    """(colour, name, whether it is waiting, how it changed) of the visible stretches."""
    one, other = bars.step_bars(c)
    longest = max(one.total_ns, other.total_ns) or 1
    return [
        (_colour(a.key, a.idle), _label(a.key, a.idle), a.idle, words.both_times(a.ns, b.ns))
        for a, b in zip(one.parts, other.parts, strict=True)
        if max(a.ns, b.ns) >= words.WORTH_OF_STEP * longest
    ]


# -- the waterfall


def falls(c: Comparison) -> list[DrawnFall]:
    """The rows from A's step to B's; none where the steps do not differ."""
    found = bars.waterfall(c)
    if len(found) < 3:
        return []
    low, high = bars.lowest(found), bars.extent(found)
    scale = 100 / max(high - low, 1)
    rows = []
    for fall in found:
        left, right = sorted((fall.from_ns, fall.to_ns))
        rows.append(
            DrawnFall(
                kind=fall.kind,
                label=fall.label,
                value=duration(fall.to_ns) if fall.kind == "total" else words.signed(fall.difference_ns),
                left=(left - low) * scale,
                width=(right - left) * scale,
                ends=(fall.to_ns - low) * scale,
                phases=words.phases_of(fall.term) if fall.term else "",
                idle=fall.term is not None and fall.term.kind == "idle",
            )
        )
    return rows


# -- why


def cards(c: Comparison) -> list[MechanismCard]:
    """One for each mechanism that is worth one."""
    return [_card(number, one, c) for number, one in enumerate(words.shown_mechanisms(c), 1)]


def _card(number: int, one: Mechanism, c: Comparison) -> MechanismCard:
    each = words.each(one, c)
    return MechanismCard(
        number=number,
        id=one.id,
        title=escape(one.title),
        text=escape(words.sentence(one)),
        difference=each or f"{words.signed(one.difference_ns)} {c.unit.a}",
        good=c.step.outcome == "faster" if each else one.difference_ns < 0,
        share="" if each else words.part(one, "the difference"),
        guesses=tuple(_guess(prediction, c) for prediction in one.predictions),
    )


def _guess(one: PredictionCheck, c: Comparison) -> Guess:
    now = c.step.a_ns if one.by == "a" else c.step.b_ns
    end = max(one.step_ns.high, one.measured_ns, now) * 1.02
    return Guess(
        text=escape(words.prediction(one)),
        inside=one.inside,
        low=100 * one.step_ns.low / end,
        width=100 * (one.step_ns.high - one.step_ns.low) / end,
        expected=100 * one.step_ns.expected / end,
        measured=100 * one.measured_ns / end,
        now=100 * now / end,
    )


# -- tables


def _phases(c: Comparison) -> list[tuple[str, ...]]:
    return [
        (
            p.phase,
            duration(p.a_ns),
            duration(p.b_ns),
            words.signed(p.difference_ns),
            duration(p.a_busy_ns),
            duration(p.b_busy_ns),
        )
        for p in c.phases
    ]


def _kernel_words(c: Comparison) -> str:
    return f"{words.kernel_changes(c)}. Times are summed over streams."


def _kernels(c: Comparison) -> list[KernelRow]:
    return [
        KernelRow(
            # Names of one family differ only in their middles and ends.
            name=shown_kernel(row.name, _NAME_WIDTH),
            origin=" · ".join(filter(None, (labels.category(row.category), words.launched(row)))),
            numbers=(
                words.signed(row.difference_ns),
                count(round(row.a_count, 1)),
                count(round(row.b_count, 1)),
                words.signed(row.count_ns),
                words.signed(row.duration_ns),
            ),
        )
        for row in c.kernels.rows
    ]


def _ops(c: Comparison) -> list[tuple[str, ...]]:
    return [
        (
            shown(op.name.removeprefix(AUTOGRAD_ENGINE), _NAME_WIDTH),
            op.phase,
            count(round(op.a_count, 1)),
            count(round(op.b_count, 1)),
            words.signed(op.difference_ns),
        )
        for op in c.ops
    ]


def _sides(c: Comparison) -> list[tuple[str, str, str]]:
    """What is known of each, row by row, without rows that neither has."""
    pair, on_gpu = (c.a, c.b), words.has_gpu_work(c)
    rows = [
        ("recording", *(shown(s.path, 100) for s in pair)),
        ("verdict", *(words.bound(s) for s in pair)),
        (c.unit, *(f"{duration(s.step_ns)}, {words.KNOWN[s.known]}" for s in pair)),
        ("as recorded", *(duration(s.recorded_ns) for s in pair)),
        (f"recorded {c.unit}s", *(count(s.steps) for s in pair)),
        ("GPU", *(f"{shown(s.gpu, 60)} ({s.device})" if s.gpu else "" for s in pair)),
        ("rank", *(f"{s.rank} of {s.world_size}" if s.rank is not None and s.world_size != 1 else "" for s in pair)),
        (f"kernels and copies {c.unit.a}", *(count(round(s.kernels, 1)) if on_gpu else "" for s in pair)),
        (f"launches {c.unit.a}", *(count(round(s.launches, 1)) if on_gpu else "" for s in pair)),
        (f"waits for the GPU {c.unit.a}", *(count(round(s.syncs, 1)) if on_gpu else "" for s in pair)),
        (f"tokens {c.unit.a}", *(count(round(s.tokens)) if s.tokens else "" for s in pair)),
        ("without padding", *(count(round(s.real_tokens)) if s.real_tokens else "" for s in pair)),
        (f"samples {c.unit.a}", *(count(round(s.samples, 1)) if s.samples else "" for s in pair)),
        ("peak memory", *(f"{gib(s.peak_bytes)} GiB" if s.peak_bytes else "" for s in pair)),
    ]
    return [row for row in rows if row[1] or row[2]]
