"""What the GPU does in a step, for the terminal: why it waits, its kernels, phases and activity."""

from __future__ import annotations

from rich.text import Text

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.report import labels
from gpuprof.report.lines import Column, flow, table
from gpuprof.report.names import shorten_kernel, shown, shown_kernel
from gpuprof.report.numbers import amount, count, duration, share
from gpuprof.report.terminal.step_lines import SEEN, differs_from_recording
from gpuprof.report.words import words
from gpuprof.units import Convention, Rows, Share

MOST_GAPS: Convention[Rows] = 3
MOST_PHASES: Convention[Rows] = 4
MOST_CATEGORIES: Convention[Rows] = 6
WORTH_A_LINE: Convention[Share] = 0.02
"""Share of the idle time from which on a phase gets its own line."""


def per_step(diagnosis: Diagnosis) -> int:
    return diagnosis.steps.count if diagnosis.steps else 1


def a_step(diagnosis: Diagnosis) -> str:
    """Empty where the whole recording is the window."""
    return f" {diagnosis.unit.a}" if diagnosis.steps and diagnosis.steps.source != "none" else ""


def causes(diagnosis: Diagnosis, width: int) -> list[Text]:
    """Idle time of all devices by cause."""
    gaps, steps = diagnosis.gaps, per_step(diagnosis)
    if gaps is None or not gaps.total_ns:
        return []
    items = [
        Text.assemble((f"{labels.cause(cause.cause)} ", "bold"), duration(cause.ns / steps))
        for cause in sorted(gaps.by_cause, key=lambda c: -c.ns)
        if cause.ns >= SEEN * gaps.total_ns
    ]
    recorded = " as recorded" if differs_from_recording(diagnosis) else ""
    of = f" of {diagnosis.unit.a}" if a_step(diagnosis) else ""
    total = Text(f"{duration(gaps.total_ns / steps)}{of}{recorded}:")
    return flow([total, *items], width)


def waits(diagnosis: Diagnosis, width: int) -> list[Text]:
    """Idle time by the phase of the work that follows it."""
    gaps, steps = diagnosis.gaps, per_step(diagnosis)
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


def longest_gaps(diagnosis: Diagnosis, width: int) -> list[Text]:
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


def kernels(diagnosis: Diagnosis, width: int, rows: int) -> list[Text]:
    """GPU work per step, by category, and the kernels that take longest."""
    kernels, steps = diagnosis.kernels, per_step(diagnosis)
    if kernels is None or not kernels.count:
        return []
    total = Text(f"{duration(kernels.total_ns / steps)}{a_step(diagnosis)} in ")
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


def phases(diagnosis: Diagnosis, width: int) -> list[Text]:
    """CPU (host) time by phase, and how long the GPU works in it."""
    steps = per_step(diagnosis)
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


def activity(diagnosis: Diagnosis, width: int) -> list[Text]:
    """The GPU's counters while it worked."""
    items = []
    for phase in diagnosis.activity or ():
        parts = (("SMs", phase.sm_percent), ("tensor cores", phase.tensor_percent), ("DRAM", phase.dram_percent))
        activity = ", ".join(f"{name} {value:.0f} %" for name, value in parts if value is not None)
        items.append(Text.assemble((f"{phase.phase} ", "bold"), activity, (" of the time the GPU works", "dim")))
    return flow(items, width)
