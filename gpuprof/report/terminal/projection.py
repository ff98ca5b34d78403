"""A projection as a screen of text: one row per GPU, its assumptions, and why one GPU is faster than another."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from rich.console import Group
from rich.text import Text

from gpuprof.projection.memory.recorded_memory import MOST_BATCH
from gpuprof.projection.projection import MemoryFit, OnGpu, Projection, ProjectionExplanation
from gpuprof.report.lines import Column, table
from gpuprof.report.names import escape
from gpuprof.report.numbers import duration, duration_range, gib, share
from gpuprof.units import Cells, Convention

WIDEST_PAGE: Convention[Cells] = 160
GUTTER: Convention[Cells] = 2
NAME_WIDTH: Convention[Cells] = 16
"""Width that a GPU's name needs, such as `H100 SXM5 80GB`."""
_NAMES = {
    "host_floor": "host floor", "capacity": "memory holds", "host_speed": "host speed", "compute": "compute",
    "bandwidth": "bandwidth", "rest": "the rest",
}  # fmt: skip


def render(projection: Projection, width: int = 80) -> Group:
    """The projection for a terminal of `width` columns."""
    width = max(60, min(width, WIDEST_PAGE))
    blocks: list[Text] = [*_paragraph(projection.summary, width, ""), Text(), *_head(projection), Text()]
    blocks += _steps(projection, width)
    for title, lines in (
        ("what fits, and what it costs", _costs(projection, width)),
        ("with another host", _hosts(projection, width)),
        ("several of them", _ranks(projection, width)),
    ):
        if lines:
            blocks += [Text(), Text(title, style="bold"), *lines]
    if projection.explanation:
        blocks += [Text(), *_explained(projection.explanation, width)]
    blocks += [Text(), Text("assuming", style="bold"), *_assumptions(projection, width)]
    return Group(*blocks)


def _head(projection: Projection) -> list[Text]:
    r, asked = projection.recorded, projection.asked
    mean = f"{duration(r.step_ns.expected)} {projection.unit.a}"
    usual = mean if r.usual_ns is None else f"{duration(r.usual_ns)} a usual {projection.unit}"
    line = Text.assemble((usual, "bold"), f" recorded on {escape(r.device_name or r.gpu)}")
    if r.usual_ns is not None:
        line.append(f" ({duration(r.step_ns.expected)} on average)")
    if r.busy_ns <= (r.usual_ns or r.step_ns.expected):
        line.append(f", of which the GPU works {duration(r.busy_ns)}")
    else:  # streams that overlap
        line.append(f"; the GPU's work in it, overlapping on its streams, adds up to {duration(r.busy_ns)}")
    parts = []
    if r.work.samples:
        parts.append(f"{r.work.samples:,.3g} sample{'' if r.work.samples == 1 else 's'}")
    if r.work.tokens:
        parts.append(f"{r.work.tokens:,.0f} tokens")
    if r.layers:
        parts.append(f"{r.layers} layers")
    second = Text(", ".join(parts), style="dim")
    changed = [
        f"{name} {value:g}"
        for name, value in (
            ("batch", asked.batch), ("tokens a sample", asked.sample_tokens), ("layers", asked.layers),
            ("experts", asked.experts),
        )
        if value
    ]  # fmt: skip
    if changed:
        second.append(f"   requested: {', '.join(changed)}")
    host = Text(f"host factor {asked.host_factor:g}, {asked.host_source}")
    if asked.host_source == "assumed":
        host.append(": the recorded host in front of each GPU", "yellow")
    return [line, *([second] if second.plain else []), host]


def _steps(projection: Projection, width: int) -> list[Text]:
    samples = any(one.samples_per_hour for one in projection.gpus)
    tokens = any(one.tokens_per_hour for one in projection.gpus)
    batched = any(one.batch_share < 1 for one in projection.gpus)
    titles = ["GPU", projection.unit.a, "80 %", "× recorded", "limited by"]
    titles += ["batch"] if batched else []
    titles += ["samples/h"] if samples else []
    titles += ["tokens/h"] if tokens else []
    rows = [titles]
    for one in projection.gpus:
        row = [
            escape(one.gpu),
            duration(one.step_ns.expected),
            duration_range(one.step_ns.low, one.step_ns.high),
            f"{_times(one.speedup.expected)}× ({_times(one.speedup.low)}–{_times(one.speedup.high)})",
            one.bound or "–",
        ]
        row += [_batch(one)] if batched else []
        row += [_count(one.samples_per_hour)] if samples else []
        row += [_count(one.tokens_per_hour)] if tokens else []
        rows.append(row)
    columns = [Column("bold", elastic=True), Column("bold", right=True), Column("dim", right=True), Column(right=True),
               Column(), *([Column()] if batched else []), *[Column(right=True)] * (samples + tokens)]  # fmt: skip
    return _titled(*_narrowed(rows, columns, width, ("tokens/h", "80 %", "samples/h")), width)


def _narrowed(
    rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int, spared: Sequence[str]
) -> tuple[list[list[str]], list[Column]]:
    """The table without the first columns of `spared`; only those are dropped that must be for the GPUs' names to stay
    readable."""
    kept = list(range(len(columns)))
    for title in spared:
        wide = [max(len(row[i]) for row in rows) for i in kept]
        if min(wide[0], NAME_WIDTH) + sum(wide[1:]) + GUTTER * (len(kept) - 1) <= width:
            break
        kept = [i for i in kept if rows[0][i] != title]
    return [[row[i] for i in kept] for row in rows], [columns[i] for i in kept]


def _titled(rows: Sequence[Sequence[str]], columns: Sequence[Column], width: int) -> list[Text]:
    lines = table(rows, columns, width)
    lines[0] = Text(lines[0].plain, style="dim")
    return lines


def _batch(one: OnGpu) -> str:
    if one.batch is None:
        return f"{one.batch_share:g} of it"
    whole = one.batch / one.batch_share
    return f"{one.batch:,.3g}" if one.batch_share == 1 else f"{one.batch:,.3g} of {whole:,.3g}"


def _times(factor: float) -> str:
    """A factor with two decimals, or two digits below 0.1."""
    return f"{factor:.2g}" if 0 < factor < 0.1 else f"{factor:.2f}"


def _count(value: float | None) -> str:
    if value is None:
        return "–"
    for scale, unit in ((1e9, " B"), (1e6, " M")):
        if value >= scale:
            return f"{value / scale:,.1f}{unit}"
    return f"{value:,.0f}"


def _costs(projection: Projection, width: int) -> list[Text]:
    rows = [["GPU", "memory", "fits", "largest batch", "power", "kWh/M tok", "$/h", "$/M tok", "$/epoch"]]
    for one in projection.gpus:
        m, c = one.memory, one.cost
        need = "–" if m is None else f"{gib(m.static_bytes + m.activation_bytes)} of {gib(m.usable_bytes)} GiB"
        price = c.price
        rows.append(
            [
                escape(one.gpu),
                need,
                _fits(one),
                _largest(m),
                "–" if c.power_w is None else f"{c.power_w:,.0f} W",
                _small(c.kwh_per_million_tokens),
                "–" if price is None else f"{price.usd_per_hour:.2f}",
                _small(c.usd_per_million_tokens),
                _small(c.usd_per_epoch),
            ]
        )
    kept = [i for i in range(len(rows[0])) if i == 0 or any(row[i] not in ("–", "?") for row in rows[1:])]
    columns = [Column("bold", elastic=True), Column(), Column(), *[Column(right=True)] * 6]
    rows, columns = [[row[i] for i in kept] for row in rows], [columns[i] for i in kept]
    lines = _titled(*_narrowed(rows, columns, width, ("kWh/M tok", "power", "$/h")), width)
    priced = sorted({f"{p.date}, {p.source}" for one in projection.gpus if (p := one.cost.price) and p.date})
    lines += _with_fixes(projection)
    return lines + [Text(f"prices of {escape(text)}", style="dim") for text in priced]


def _fits(one: OnGpu) -> str:
    """Whether it fits, in a word; `likely` or `perhaps` if the range of the largest batch leaves it open."""
    m = one.memory
    if m is None:
        return "?"
    wanted = None if one.batch is None else one.batch / one.batch_share
    low, high = m.largest_batch_low, m.largest_batch_high
    if m.fits:
        return "likely" if wanted and low is not None and low < wanted else "yes"
    return "perhaps" if wanted and high is not None and high >= wanted else "no"


def _largest(m: MemoryFit | None) -> str:
    """The largest batch, and its range."""
    if m is None or m.largest_batch is None:
        return "–"
    low, high = (_batch_size(value) for value in (m.largest_batch_low, m.largest_batch_high))
    likely = _batch_size(m.largest_batch)
    return likely if low == high else f"{likely} ({low}–{high})"


def _with_fixes(projection: Projection) -> list[Text]:
    """For GPUs on which the batch does not fit: the changes with which it does."""
    lines = []
    for one in projection.gpus:
        found = one.memory.with_fixes if one.memory is not None and not one.memory.fits else ()
        enough = [f"{fix.title} (up to {_batch_size(fix.largest_batch)})" for fix in found if fix.fits]
        if enough:
            lines.append(Text(f"{escape(one.gpu)}: the whole batch fits with {', or with '.join(enough)}"))
    return lines


def _batch_size(value: int | None) -> str:
    return "–" if value is None else "any" if value >= MOST_BATCH else f"{value:,}"


def _small(value: float | None) -> str:
    return (
        "–" if value is None else f"{value:,.0f}" if value >= 100 else f"{value:.2g}" if value < 1 else f"{value:.1f}"
    )


def _hosts(projection: Projection, width: int) -> list[Text]:
    """The step with other speeds of the CPU, where that speed is not measured."""
    if not projection.gpus:
        return []
    factors = [step.host_factor for step in projection.gpus[0].host_steps]
    rows = [["GPU", *(f"host × {factor:g}" for factor in factors), "host alone"]]
    for one in projection.gpus:
        floor = f"{duration(one.host_floor_ns)} ({share(one.host_floor_ns, one.step_ns.expected)})"
        rows.append([escape(one.gpu), *(duration(step.step_ns) for step in one.host_steps), floor])
    columns = [Column("bold", elastic=True), *[Column(right=True)] * (len(factors) + 1)]
    return _titled(rows, columns, width)


def _ranks(projection: Projection, width: int) -> list[Text]:
    if not projection.asked.ranks or not any(one.scaling for one in projection.gpus):
        return []
    rows = [["GPU", "GPUs", projection.unit.a, "exchange", "waited for", "efficiency", "over"]]
    for one in projection.gpus:
        for scaling in one.scaling:
            rows.append([
                escape(one.gpu), str(scaling.gpus), duration(scaling.step_ns), duration(scaling.collective_ns),
                duration(scaling.exposed_ns), f"{100 * scaling.efficiency:.0f} %", escape(scaling.link),
            ])  # fmt: skip
    return _titled(rows, [Column("bold", elastic=True), *[Column(right=True)] * 5, Column()], width)


def _explained(explanation: ProjectionExplanation, width: int) -> list[Text]:
    factor = explanation.factor
    lines = [
        Text.assemble(
            (f"{escape(explanation.first)} against {escape(explanation.second)}: {_times(factor.expected)}×", "bold"),
            f" ({_times(factor.low)}–{_times(factor.high)}×)",
        ),
        *_paragraph(explanation.summary, width, ""),
    ]
    for number, reason in enumerate(explanation.reasons, 1):
        name = _NAMES.get(reason.id, reason.id)
        found = "" if reason.factor is None else f"{reason.factor:.2f}×"
        head = f"  {number}  {name:<13}{found:>6}  "
        lines += _paragraph(reason.text, width, head)
    return lines


def _assumptions(projection: Projection, width: int) -> list[Text]:
    own = [text for one in projection.gpus for text in one.assumptions]
    return [line for text in (*projection.assumptions, *own) for line in _paragraph(text, width, "  · ")]


def _paragraph(text: str, width: int, head: str) -> list[Text]:
    wrapped = textwrap.wrap(escape(text), max(width - len(head), 20)) or [""]
    return [Text(f"{head if i == 0 else ' ' * len(head)}{line}") for i, line in enumerate(wrapped)]
