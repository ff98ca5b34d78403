"""The page's bars of a step: their parts, legends and notes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.sentences import capital
from gpuprof.diagnosis.verdict import step_parts
from gpuprof.diagnosis.verdict.step_parts import Bar
from gpuprof.report import labels
from gpuprof.report.numbers import amount, count, duration, share
from gpuprof.report.palette import BOUND_PAINTS
from gpuprof.report.stepbar import LEAST_LISTED


@dataclass(frozen=True, slots=True)
class DrawnBarPart:
    key: str
    """Key of its colour."""
    label: str
    percent: float
    text: str
    idle: bool
    named: bool
    """Whether the legend has it."""


@dataclass(frozen=True, slots=True)
class StepBar:
    title: str
    parts: tuple[DrawnBarPart, ...]
    summary: str
    note: str = ""
    lines: tuple[str, ...] = ()
    """Its largest parts in words."""


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
    if beyond.variation_ns >= LEAST_LISTED * budget.mean_ns:
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

    def part(key: str, label: str, ns: float, idle: bool) -> DrawnBarPart:
        return DrawnBarPart(
            key, label, 100 * ns / total, f"{duration(ns)}, {share(ns, total)}", idle, ns >= LEAST_LISTED * total
        )

    parts: list[DrawnBarPart] = []
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


def stepbar_of(title: str, parts: Sequence[DrawnBarPart], note: str = "", lines: tuple[str, ...] = ()) -> StepBar:
    """A bar that draws exactly the parts that its legend names, scaled to fill it: smaller ones are left out."""
    named = [part for part in parts if part.named] or list(parts)
    whole = sum(part.percent for part in named) or 1.0
    drawn = tuple(replace(part, percent=100 * part.percent / whole) for part in named)
    said = ", ".join(f"{'waits: ' if part.idle else ''}{part.label} {part.text}" for part in named)
    return StepBar(title, drawn, said, note, lines)
