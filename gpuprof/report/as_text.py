"""A Diagnosis, a Finding, a Comparison or a Projection as text, for `print`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.report.names import escape, shown
from gpuprof.report.numbers import duration, duration_range
from gpuprof.report.terminal.drawn import WIDTH, drawn

if TYPE_CHECKING:
    from gpuprof.diagnosis.comparison.comparison import Comparison
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.diagnosis.result.finding_model import Finding
    from gpuprof.projection.projection import Projection


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """The answer as `gpuprof diagnose` prints it."""
    from gpuprof.report.terminal.terminal import render

    return drawn(render(diagnosis, WIDTH))


def comparison_text(comparison: Comparison) -> str:
    """As `gpuprof compare` prints it."""
    from gpuprof.report.terminal.comparison_terminal import render

    return drawn(render(comparison, WIDTH))


def projection_text(projection: Projection) -> str:
    """As `gpuprof project` prints it."""
    from gpuprof.report.terminal.projection import render

    return drawn(render(projection, WIDTH))


def finding_text(finding: Finding) -> str:
    """What to change, what it gains, and why."""
    lines = [f"{finding.title}   {predicted(finding)}"]
    lines += [f"    {line}" for line in finding.fix.splitlines()]
    lines += [f"  {finding.changes}"] if finding.changes else []
    return "\n".join([*map(escape, lines), *(f"  {text}" for text in reasons(finding))])


def reasons(finding: Finding) -> list[str]:
    """Why it is found: what was observed, then the longest places in the recording."""
    from gpuprof.report.words.fixes import event_name

    seen = [escape(one.text) for one in finding.evidence if one.start_ns is None]
    places = [
        f"{shown(one.part) if one.part else event_name(one)}: {duration(one.ns or 0)} at {duration(one.start_ns)}"
        for one in finding.evidence
        if one.start_ns is not None
    ]
    return seen + places


def line(one: Diagnosis | Finding | Comparison | Projection) -> str:
    """What it says, in one line."""
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.diagnosis.result.finding_model import Finding
    from gpuprof.diagnosis.verdict.headline import headline
    from gpuprof.report.words.words import step_time

    if isinstance(one, Finding):
        said = f"{one.title}, {predicted(one)}"
    elif isinstance(one, Diagnosis):
        said = ", ".join(filter(None, (headline(one), step_time(one))))
    else:
        said = one.summary
    return escape(" ".join(said.split()))


def predicted(finding: Finding) -> str:
    """`26–51 ms a step, 2.2–4.0× as fast`."""
    from gpuprof.report.words.fixes import step_after

    gain = finding.speedup
    step = step_after(finding, finding.step_ns.expected * gain.expected / finding.work)
    work = f" with {finding.work:.3g}× the work" if finding.work != 1.0 else ""
    return f"{duration_range(step.low, step.high)} a step{work}, {gain.low:.2f}–{gain.high:.2f}× as fast"
