"""What the page says in words: the texts and numbers of the diagnosis, for its templates.

Texts are made printable here; the templates escape them as HTML.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from markdown_it import MarkdownIt

from gpuprof.diagnosis import step_parts
from gpuprof.diagnosis.budget_model import NAMES, Budget, Excess
from gpuprof.diagnosis.cpu_step import CpuStep, prepares_batches
from gpuprof.diagnosis.diagnosis import Diagnosis, Evidence, Finding, Range
from gpuprof.diagnosis.plug_ins import declarations
from gpuprof.diagnosis.sentences import capital, gpu_named
from gpuprof.diagnosis.step_parts import Bar
from gpuprof.report import fixes, host_words, labels, run_words, words
from gpuprof.report.charts.groups import known_roofline
from gpuprof.report.charts.timed_steps import alike as steps_are_alike
from gpuprof.report.code_lines import blocks, parts
from gpuprof.report.names import escape, shown, shown_kernel
from gpuprof.report.numbers import amount, count, duration, duration_range, gib, rate, share
from gpuprof.report.palette import BOUND_PAINTS, BUDGET_PAINTS
from gpuprof.report.settle import settle
from gpuprof.tracefile.trace import AUTOGRAD_ENGINE
from gpuprof.units import Convention, Rows, Share

KERNEL_ROWS: Convention[Rows] = 12
RANGE_ROWS: Convention[Rows] = 12
FUNCTION_ROWS: Convention[Rows] = 8
"""Rows of the table that replaces the interactive one."""
LEAST_IN_LEGEND: Convention[Share] = 0.005
"""Share of a bar below which a part has no entry in its legend."""


@dataclass(frozen=True, slots=True)
class Tile:
    """One number to be read at a glance."""

    value: str
    label: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class BarPart:
    key: str
    """Of its colour."""
    label: str
    percent: float
    text: str
    idle: bool
    named: bool
    """Whether the legend has it."""


@dataclass(frozen=True, slots=True)
class StepBar:
    title: str
    parts: tuple[BarPart, ...]
    summary: str
    note: str = ""
    lines: tuple[str, ...] = ()
    """Its largest parts in words."""


@dataclass(frozen=True, slots=True)
class BudgetRow:
    """A part of the mean step."""

    key: str
    """Of its colour; empty for the sum."""
    label: str
    time: str
    share: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Place:
    """A link into the timeline: the longest place of a part of the program, or a single place."""

    name: str
    """Where the link leads: a module and phase, or the same as `text`."""
    text: str
    """The name in the timeline of the event that begins there."""
    and_on: bool
    """Whether the name is only that of the event with which it begins."""
    start_ns: int
    ns: int
    where: str
    at: str


@dataclass(frozen=True, slots=True)
class FixBlock:
    """A part of a fix: prose, or code that can be pasted."""

    code: bool
    parts: tuple[str, ...]
    """Parts between which lines of code may break; prose is a single part."""


@dataclass(frozen=True, slots=True)
class Card:
    """A finding."""

    number: int
    id: str
    title: str
    severity: str
    gain: str
    measured: str
    """What `gpuprof try` measured; empty where it was not tried."""
    now: str
    low: float
    """In percent of the axis from zero to the longest step shown; likewise the next three."""
    expected: float
    high: float
    present: float
    how: tuple[FixBlock, ...]
    """The fix: prose, and blocks of code."""
    conditions: tuple[str, ...]
    """What it changes about the training, and what it costs."""
    lines: tuple[str, ...]
    """Lines of the user's code that it is about, such as `train.py:42 step`."""
    facts: tuple[str, ...]
    """Its evidence, and the conditions."""
    places: tuple[Place, ...]
    why: str
    """HTML of our own text."""
    chance: str = ""
    """How likely something that is worth trying gains; empty for a fix."""
    settle: str = ""
    """Likewise: what settles it."""
    by_hand: bool = False
    """Whether no command settles it."""


def headline(diagnosis: Diagnosis) -> str:
    """What runs where: GPU, versions, work per step."""
    found = (words.gpus(diagnosis), words.versions(diagnosis), run_words.tokens(diagnosis), _seen_from(diagnosis))
    return " · ".join(filter(None, found))


def _seen_from(diagnosis: Diagnosis) -> str:
    """Whose timeline and kernels these are, where several ranks were diagnosed together."""
    ranks, own = diagnosis.ranks or (), diagnosis.environment.rank
    if len(ranks) < 2 or own is None:
        return ""
    return f"{len(ranks)} ranks, shown: rank {own}"


def tiles(diagnosis: Diagnosis) -> list[Tile]:
    """The few numbers next to the verdict by which people compare runs, if they are known."""
    steps, run, roof = diagnosis.steps, diagnosis.run, diagnosis.roofline
    found: list[Tile] = []
    if steps:
        found.append(_step_tile(diagnosis))
    bars = step_parts.bars(diagnosis)
    if bars:
        busiest = max(bars, key=lambda bar: bar.busy_ns() / max(bar.total_ns, 1))
        found.append(Tile(share(busiest.busy_ns(), busiest.total_ns), "GPU busy", _busy_note(diagnosis)))
    if roof and roof.mfu is not None:
        note = f"HFU {100 * roof.hfu:.1f} %" if roof.hfu and roof.hfu > 1.05 * roof.mfu else "of the dense peak"
        found.append(Tile(f"{100 * roof.mfu:.1f} %", "MFU", note))
    if run and run.throughput.tokens_per_s:
        samples = run.throughput.samples_per_s
        found.append(
            Tile(rate(run.throughput.tokens_per_s), "tokens/s", f"{rate(samples)} samples/s" if samples else "")
        )
    if run and run.memory.peak_bytes:
        size = next((gpu.memory_bytes for gpu in diagnosis.environment.gpus if gpu.memory_bytes), None)
        found.append(Tile(f"{gib(run.memory.peak_bytes)} GiB", "peak memory", f"of {gib(size)} GiB" if size else ""))
    if diagnosis.verdict.confidence is not None:
        trust = f"{diagnosis.verdict.confidence:.2f}"
        found.append(Tile(trust, "confidence in the verdict", fixes.replay_error(diagnosis)))
    return found


def _step_tile(diagnosis: Diagnosis) -> Tile:
    steps = diagnosis.steps
    assert steps is not None
    recorded, each = duration(steps.recorded_ns), diagnosis.unit.a
    if steps.source == "none":
        return Tile(recorded, "recorded", f"no {diagnosis.unit}s were found")
    budget = diagnosis.budget
    if words.of_iteration(diagnosis) and diagnosis.iteration is not None:
        return Tile(duration(diagnosis.iteration.mean_ns), "an iteration, mean", words.usual_step(diagnosis))
    if budget is not None and budget.source == "free":
        return Tile(duration(budget.mean_ns), f"{each}, mean", words.usual_step(diagnosis))
    if steps.unprofiled_ns is not None:
        return Tile(duration(steps.unprofiled_ns), f"{each}, measured", words.usual_step(diagnosis))
    if steps.estimated_ns is not None:
        return Tile(f"≈ {duration(steps.estimated_ns)}", f"{each}, estimated", words.usual_step(diagnosis))
    return Tile(recorded, each, "as recorded")


def _busy_note(diagnosis: Diagnosis) -> str:
    return "without the profiler" if step_parts.estimated(diagnosis) else "as recorded"


def of_mean_step(diagnosis: Diagnosis) -> bool:
    """Whether the bars include what some steps take beyond the usual one."""
    found = diagnosis.budget
    measured = found is not None and found.source == "free" and step_parts.differs(found)
    return measured and step_parts.estimated(diagnosis)


def step_bars(diagnosis: Diagnosis) -> list[StepBar]:
    """One bar per device; its compute is split by what limits the kernels, where that is known."""
    bars = step_parts.bars(diagnosis)
    note = _of_variation(diagnosis)
    limits = roof.bound_shares if (roof := diagnosis.roofline and diagnosis.tables.roofline) else {}
    of, how = _of_bars(diagnosis), "without the profiler" if diagnosis.devices_estimated else "as recorded"
    titles = [f"GPU {bar.device}: {of}, {how}" if len(bars) > 1 else f"{capital(of)} of the GPU, {how}" for bar in bars]
    found = [_step_bar(bar, title, limits) for bar, title in zip(bars, titles, strict=True)]
    return [*found[:-1], *(replace(last, note=note) for last in found[-1:])]


def _of_variation(diagnosis: Diagnosis) -> str:
    """Explains pauses and variation, for readers who see them in the bars for the first time."""
    budget = diagnosis.budget
    if budget is None or not of_mean_step(diagnosis):
        return ""
    beyond = step_parts.beyond_usual(budget)
    steps, said = f"{diagnosis.unit}s", []
    if beyond.pauses_ns:
        often = f"{count(budget.pauses)} of {amount(budget.steps, f'timed {diagnosis.unit}')}"
        said.append(f"Pauses: {often} took more than twice as long as usual.")
        steps = f"the other {steps}"
    if beyond.variation_ns >= LEAST_IN_LEGEND * budget.mean_ns:
        said.append(f"Variation: what {steps} take beyond the usual {diagnosis.unit} on average.")
    if said:
        said.append(f"No measured cause explains {'either' if len(said) > 1 else 'it'}.")
    return " ".join(said)


def _of_bars(diagnosis: Diagnosis) -> str:
    """What the bars show: the mean step, one step, or the whole recording where there are no steps."""
    if diagnosis.steps is None or diagnosis.steps.source == "none":
        return "the whole recording"
    return f"{'the mean' if of_mean_step(diagnosis) else 'one'} {diagnosis.unit}"


def _step_bar(bar: Bar, title: str, limits: dict[str, float]) -> StepBar:
    total = max(bar.total_ns, 1)

    def part(key: str, label: str, ns: float, idle: bool) -> BarPart:
        return BarPart(
            key, label, 100 * ns / total, f"{duration(ns)}, {share(ns, total)}", idle, ns >= LEAST_IN_LEGEND * total
        )

    parts: list[BarPart] = []
    for one in bar.parts:
        if not one.works:
            parts.append(part(f"cause-{one.key}", labels.part(one), one.ns, one.idle))
            continue
        rest = float(one.ns)
        if one.key == "compute":
            for key, of in limits.items():
                parts.append(part(f"bound-{key}", f"{BOUND_PAINTS[key].label} kernels", of * one.ns, False))
                rest -= of * one.ns
        if rest >= 0.5:
            parts.append(part(f"work-{one.key}", "other kernels" if rest < one.ns else labels.part(one), rest, False))
    return stepbar_of(title, parts)


def stepbar_of(title: str, parts: Sequence[BarPart], note: str = "", lines: tuple[str, ...] = ()) -> StepBar:
    """A bar that draws exactly the parts that its legend names, scaled to fill it: smaller ones are left out."""
    named = [part for part in parts if part.named] or list(parts)
    whole = sum(part.percent for part in named) or 1.0
    drawn = tuple(replace(part, percent=100 * part.percent / whole) for part in named)
    said = ", ".join(f"{'waits: ' if part.idle else ''}{part.label} {part.text}" for part in named)
    return StepBar(title, drawn, said, note, lines)


# -- the mean step


def budget_rows(diagnosis: Diagnosis) -> list[BudgetRow]:
    """The parts of the mean step, which sum to it; none where no steps were timed. Causes too small to be visible are
    counted as variation."""
    found = diagnosis.budget
    if found is None or found.source != "free":
        return []
    if diagnosis.cpu_step is not None:
        return _cpu_rows(diagnosis.cpu_step, found, prepares_batches(diagnosis.run))
    mean, beyond = found.mean_ns, step_parts.beyond_usual(found)
    rows = [BudgetRow("usual", BUDGET_PAINTS["usual"].label, duration(found.usual_ns), share(found.usual_ns, mean))]
    rows += [_excess_row(one, found) for one in found.excess if one in beyond.causes or one.mean_ns is None]
    if beyond.pauses_ns:
        often = f"in {found.pauses} of {amount(found.steps, 'step')}"
        rows.append(_added("pauses", beyond.pauses_ns, mean, often))
    rows.append(_added("variation", beyond.variation_ns, mean))
    return [*rows, _mean_row(found)]


def alike(diagnosis: Diagnosis) -> str:
    """A sentence that replaces a chart of equal bars; empty where the timed steps differ."""
    timed, budget = diagnosis.timed, diagnosis.budget
    if timed is None or budget is None or budget.source != "free" or not steps_are_alike(diagnosis):
        return ""
    took = duration_range(float(timed.ns.min()), float(timed.ns.max()))
    each = amount(len(timed.ns), diagnosis.unit)
    return f"{each} in a row, timed without the profiler, took {took}: nothing makes one noticeably longer."


def _cpu_rows(step: CpuStep, found: Budget, prepares: bool) -> list[BudgetRow]:
    """The same for a training without a GPU: what its process does."""
    parts = [("input", "preparing batches" if prepares else "waiting for batches", float(step.input_ns))]
    if step.ops_ns is None:
        parts.append(("usual", "the training itself", step.own_ns))
    else:
        parts += [("usual", "PyTorch's ops", step.ops_ns), ("python", "Python between them", step.own_ns - step.ops_ns)]
    parts.append(("variation", "in some steps only", step.other_ns))
    rows = [BudgetRow(key, label, duration(ns), share(ns, step.mean_ns)) for key, label, ns in parts if ns]
    return [*rows, _mean_row(found)]


def _mean_row(found: Budget) -> BudgetRow:
    return BudgetRow(
        "", "mean step", duration(found.mean_ns), "", f"80 % of runs: {duration_range(*found.of_processes)}"
    )


def _added(key: str, ns: int, mean: int, note: str = "") -> BudgetRow:
    return BudgetRow(key, BUDGET_PAINTS[key].label, f"{'+' if ns > 0 else ''}{duration(ns)}", _signed(ns, mean), note)


def _signed(part: int, total: int) -> str:
    return share(abs(part), total) if part > -LEAST_IN_LEGEND * total else f"−{share(-part, total)}"


def _excess_row(one: Excess, found: Budget) -> BudgetRow:
    often = f"every {count(one.every)} steps" if one.every else f"in {one.steps} of {amount(found.steps, 'step')}"
    name, mean = _cause(one.cause), one.mean_ns
    if mean is None:
        return BudgetRow(one.cause, name, "not measured", "", often)
    return BudgetRow(one.cause, name, f"+{duration(mean)}", share(mean, found.mean_ns), often)


def once(diagnosis: Diagnosis) -> list[str]:
    """What happened once and is not in the mean (`Once, not in the mean: compilation, 2.1 s in 1 step`), and what is in
    the mean but becomes rarer; each with its time spread over all steps."""
    found, run = diagnosis.budget, diagnosis.run
    if found is None or found.source != "free":
        return []
    lines = []
    for one in found.once:
        if one in found.left_out:
            line = f"Once, not in the mean: {_cause(one.cause)}, {duration(one.ns)} in {amount(one.steps, 'step')}"
        else:
            line = f"Becomes rarer: {_cause(one.cause)}"
        if one.per_step_ns is not None and run is not None and run.steps_total:
            line += f", {duration(one.per_step_ns)} a step over the {amount(run.steps_total, 'step')} of this training"
        lines.append(line)
    return lines


def _cause(key: str) -> str:
    return NAMES.get(key, key.replace("_", " "))


# -- findings


def cards(diagnosis: Diagnosis) -> list[Card]:
    """The findings in the order of the diagnosis: the first is what to do first, here and on the terminal."""
    now = fixes.now_ns(diagnosis)
    if not now:
        return []
    longest = _longest(diagnosis, float(now))
    return [
        _card(number, finding, diagnosis, float(now), longest) for number, finding in enumerate(diagnosis.findings, 1)
    ]


def tries(diagnosis: Diagnosis) -> list[Card]:
    """What is worth trying, in the order of the diagnosis, numbered after the findings."""
    now = fixes.now_ns(diagnosis)
    if not now:
        return []
    longest, first = _longest(diagnosis, float(now)), len(diagnosis.findings) + 1
    return [
        replace(
            _card(number, one, diagnosis, float(now), longest),
            chance=fixes.chance(one),
            settle=settle(one),
            by_hand=not one.settle,
        )
        for number, one in enumerate(diagnosis.worth_trying, first)
    ]


def _longest(diagnosis: Diagnosis, now: float) -> float:
    """The longest step that a card shows, ns."""
    advised = (*diagnosis.findings, *diagnosis.worth_trying)
    return max([now, *(fixes.step_after(one, now).high / one.work for one in advised)])


def _card(number: int, finding: Finding, diagnosis: Diagnosis, now: float, longest: float) -> Card:
    statements = tuple(escape(e.text) for e in finding.evidence if e.start_ns is None)
    conditions = tuple(f"{line[0].upper()}{line[1:]}." for line in fixes.conditions(finding, diagnosis))
    low, expected, high = (100 * v / finding.work / longest for v in _values(fixes.step_after(finding, now)))
    return Card(
        number=number,
        id=finding.id,
        title=escape(finding.title),
        severity=finding.severity,
        gain=fixes.gain(finding, now),
        measured=fixes.measured(finding),
        now=duration(now),
        low=low,
        expected=expected,
        high=high,
        present=100 * now / longest,
        how=tuple(_block(is_code, lines) for is_code, lines in blocks(finding.shown_lines)),
        conditions=conditions,
        lines=tuple(shown(line, fixes.LINE_WIDTH) for line in fixes.known_lines(finding)),
        facts=(*statements, *conditions),
        places=tuple(_place(e, diagnosis) for e in finding.evidence if e.start_ns is not None),
        why=_why(finding.id),
    )


def _block(is_code: bool, lines: Sequence[str]) -> FixBlock:
    text = "\n".join(map(escape, lines))
    return FixBlock(is_code, tuple(_with_comments(parts(text))) if is_code else (text,))


def _with_comments(pieces: Sequence[str]) -> Iterator[str]:
    """The parts of code; a comment is a single part, so that it wraps as a whole."""
    comment = ""
    for piece in pieces:
        if piece == "\n" or not (comment or piece.startswith("#")):
            yield from filter(None, (comment, piece))
            comment = ""
        else:
            comment += piece
    yield from filter(None, (comment,))


def _values(found: Range) -> tuple[float, float, float]:
    return found.low, found.expected, found.high


def _place(evidence: Evidence, diagnosis: Diagnosis) -> Place:
    start, ns = evidence.start_ns or 0, evidence.ns or 0
    # Kernels have long names, and a part of them is enough; ops keep theirs, without the prefix of autograd's engine,
    # which says too little for its length.
    what, and_on = evidence.begins_with or evidence.text, evidence.begins_with is not None
    what = shown_kernel(what, 60) if evidence.on_gpu else shown(what.removeprefix(AUTOGRAD_ENGINE), 60)
    where, at = shown(evidence.where or "", 60), f"{duration(ns)} at {duration(start)}"
    if evidence.part is None or evidence.part_ns is None:
        return Place(what, what, and_on, start, ns, where, at)
    at = f"{duration(evidence.part_ns)} {diagnosis.unit.a}; longest {at}"
    return Place(shown(evidence.part, 60), what, False, start, ns, where, at)


def _why(finding: str) -> str:
    """What the finding means and when it is wrong, from its page in the docs."""
    page = next((one.page for one in declarations() if one.id == finding), None)
    if page is None:
        return ""
    # As strict as possible: although the text is our own, no HTML in it is passed on.
    render = MarkdownIt("commonmark", {"html": False}).render
    return render(page.means.strip()) + "<h4>When it is wrong</h4>" + render(page.wrong.strip())


def combined(diagnosis: Diagnosis) -> str:
    """`1 + 3 together: 81 → 13–20 ms, 4–6×`; empty where there is nothing to combine."""
    both = diagnosis.combined
    now = fixes.now_ns(diagnosis)
    if not both or not now:
        return ""
    return f"{fixes.numbers(diagnosis, both)} together: {fixes.gain(both, now)}"


def uncertain_mean(diagnosis: Diagnosis) -> str:
    """What is known more precisely than the steps after the fixes, where the mean step itself is uncertain; else
    empty."""
    unsure = fixes.uncertain_mean(diagnosis) if diagnosis.findings else ""
    return f"{unsure[:1].upper()}{unsure[1:]}." if unsure else ""


def considered(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Usual remedies that were ruled out, and why."""
    return [(escape(one.title), escape(one.reason)) for one in diagnosis.considered]


# -- tables


def waits(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """Idle time per step, by the phase of the work that follows it."""
    gaps, steps = diagnosis.gaps, diagnosis.steps.count if diagnosis.steps else 1
    if gaps is None:
        return []
    return [
        (shown(p.phase, 20), duration(p.ns / steps), f"{count(p.count / steps)}", words.waits_for(p))
        for p in gaps.by_phase
        if p.ns
    ]


def kernels(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The kernels that take longest, per step."""
    found, steps = diagnosis.kernels, diagnosis.steps.count if diagnosis.steps else 1
    if found is None:
        return []
    return [
        (
            shown_kernel(k.name, 90),
            labels.category(k.category),
            shown(k.op, 60),
            duration(k.ns / steps),
            share(k.ns, found.total_ns),
            count(round(k.count / steps, 1)),
        )
        for k in found.top[:KERNEL_ROWS]
    ]


def environment(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    """Where and how this was recorded."""
    source, where, steps = diagnosis.source, diagnosis.environment, diagnosis.steps
    rows = [("recording", shown(source.path, 200)), ("kind", source.kind)]
    if source.events:
        rows += [("size", _size(source.bytes)), ("events", count(source.events))]
    for gpu in where.gpus:
        memory = f", {gib(gpu.memory_bytes)} GiB" if gpu.memory_bytes else ""
        rows.append((gpu_named(gpu.device, len(where.gpus)), shown(gpu.name, 80) + memory))
    if where.rank is not None and words.has_peers(where):
        rows.append(("rank", f"{where.rank}" + (f" of {where.world_size}" if where.world_size else "")))
    if steps:
        by = shown(steps.name, 80) if steps.name else steps.source.replace("_", " ")
        rows.append(("steps", f"{steps.count} by {by}" if steps.source != "none" else "none found"))
    rows += [
        (shown(name.replace("_", " "), 60), shown(words.version(name, value), 120))
        for name, value in sorted(where.versions.items())
    ]
    rows += run_words.named_lines(diagnosis)
    ceilings = diagnosis.roofline.ceilings if diagnosis.roofline else {}
    if ceilings:
        rows.append(("ceilings", f"{ceilings['gpu']} ({ceilings['source']})"))
    return rows


def _size(n: int) -> str:
    return f"{n / 1e6:,.1f} MB" if n >= 1e5 else f"{n / 1e3:,.1f} kB"


def lacks(diagnosis: Diagnosis) -> list[str]:
    """What this recording cannot show, said in words instead of empty charts."""
    found = []
    if diagnosis.sensitivities is None and diagnosis.replay.reason:
        found.append(f"No predictions: {escape(diagnosis.replay.reason)}.")
    if diagnosis.kernels is not None and diagnosis.roofline is None:
        found.append("No roofline: the ceilings of this GPU are not known.")
    elif diagnosis.roofline is not None and known_roofline(diagnosis) is None:
        found.append("No roofline: the FLOPs and bytes of the kernels are not known from this recording.")
    return found


def ranges(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The user's ranges, except the steps themselves: host time per step, and what the GPU did for them."""
    steps = diagnosis.steps.count if diagnosis.steps else 1
    own = (diagnosis.steps.name if diagnosis.steps else None, "ProfilerStep#")
    named = [one for one in diagnosis.ranges if one.name not in own]
    return [
        (
            shown(one.name, 80),
            count(round(one.count / steps, 1)),
            duration(one.ns / steps),
        )
        if not diagnosis.devices
        else (
            shown(one.name, 80),
            count(round(one.count / steps, 1)),
            duration(one.ns / steps),
            duration(one.busy_ns / steps) if one.launches else "–",
            count(round(one.launches / steps, 1)),
        )
        for one in named[:RANGE_ROWS]
    ]


def functions(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """The Python functions that the answer names: line of the user's code, name, time per step, the step without it."""
    found = host_words.worth_saying(diagnosis)[:FUNCTION_ROWS]
    now = diagnosis.step_ns
    priced = any(one.step_ns is not None for one in found)
    return [
        (
            shown(host_words.line_of(one, found), 80),
            shown(host_words.name(one), 80),
            host_words.time(one, diagnosis),
            *((host_words.gain(one, now).removesuffix(" if free"),) if priced else ()),
        )
        for one in found
    ]


def activity(diagnosis: Diagnosis) -> list[tuple[str, ...]]:
    """What the GPU's counters showed while the work of each phase ran."""
    return [
        (
            one.phase,
            duration(one.busy_ns / (diagnosis.steps.count if diagnosis.steps else 1)),
            *(
                "–" if value is None else f"{value:.0f} %"
                for value in (one.sm_percent, one.tensor_percent, one.dram_percent)
            ),
        )
        for one in diagnosis.activity or ()
    ]
