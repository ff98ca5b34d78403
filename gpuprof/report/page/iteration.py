"""The iteration of an RL training, as the page shows it: a bar by phase, details, changes."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.iteration_model import Iteration, IterationChange
from gpuprof.report.names import escape
from gpuprof.report.numbers import duration, share
from gpuprof.report.stepbar import LEAST_LISTED
from gpuprof.report.words import iteration_words as words


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of the bar."""

    label: str
    colour: str
    percent: float
    text: str
    named: bool
    """Whether the legend has it."""


@dataclass(frozen=True, slots=True)
class PhaseRow:
    """A row of the table of phases."""

    label: str
    time: str
    share: str
    between: str
    """The range of eight in ten iterations."""
    busy: str
    """Share of the recorded time in which a GPU worked; empty where no GPU was recorded."""


@dataclass(frozen=True, slots=True)
class ChangeRow:
    """Something that would shorten the iteration."""

    title: str
    gain: str
    fix: str
    basis: str
    condition: str


@dataclass(frozen=True, slots=True)
class IterationPart:
    """Everything that the page says about the iteration."""

    title: str
    summary: str
    phases: tuple[Phase, ...]
    rows: tuple[PhaseRow, ...]
    details: tuple[tuple[str, str], ...]
    changes: tuple[ChangeRow, ...]
    on_gpu: bool
    """Whether a GPU worked in the recorded phases."""


def iteration_part(diagnosis: Diagnosis) -> IterationPart | None:
    """What the page shows; None for other trainings."""
    found = diagnosis.iteration
    if found is None:
        return None
    bar = tuple(
        Phase(
            one.phase, words.PAINTS[one.phase].page, 100 * one.ns / max(found.mean_ns, 1),
            f"{duration(one.ns)}, {share(one.ns, found.mean_ns)}" + (f" ({one.detail})" if one.detail else ""),
            one.ns >= LEAST_LISTED * found.mean_ns,
        )
        for one in words.bar(found)
    )  # fmt: skip
    said = {
        "Generation": words.generation(found), "Reward functions": words.rewards(found),
        "Not recorded": words.unrecorded(found),
    }  # fmt: skip
    return IterationPart(
        "The mean iteration by phase, wall time",
        words.summary(found),
        bar,
        _rows(found),
        tuple((name, text) for name, text in said.items() if text),
        tuple(_change(one, found) for one in found.changes),
        any(one.busy_ns for one in found.recorded),
    )


def _rows(found: Iteration) -> tuple[PhaseRow, ...]:
    recorded = {one.phase: one for one in found.recorded}
    on_gpu = any(one.busy_ns for one in found.recorded)

    def busy(phase: str) -> str:
        one = recorded.get(phase)
        return share(one.busy_ns, one.ns) if one is not None and on_gpu else ""

    return tuple(
        PhaseRow(
            one.phase, duration(one.ns), share(one.ns, found.mean_ns),
            f"{duration(one.low_ns)} – {duration(one.high_ns)}", busy(one.phase),
        )
        for one in found.phases
    )  # fmt: skip


def _change(one: IterationChange, found: Iteration) -> ChangeRow:
    fix = "; ".join([*one.fix.splitlines(), *([] if one.patch is None else [one.patch.command()])])
    return ChangeRow(escape(one.title), words.gain(one, found), escape(fix), one.basis, words.condition(one))
