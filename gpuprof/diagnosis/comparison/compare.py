"""Two diagnoses in, one Comparison out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.comparison.comparison import (
    ComparedWork,
    Comparison,
    Mechanism,
    Outcome,
    PhaseDifference,
    PhasePart,
    RankDifference,
    Significance,
    Step,
    Term,
)
from gpuprof.diagnosis.comparison.kernel_differences import compare_kernels, compare_ops
from gpuprof.diagnosis.comparison.leftovers import WORK
from gpuprof.diagnosis.comparison.mechanisms import explain, mechanisms
from gpuprof.diagnosis.comparison.notes import notes, other_program, same_program
from gpuprof.diagnosis.comparison.same_model import other_model
from gpuprof.diagnosis.comparison.significance import LIKELY_P, significance
from gpuprof.diagnosis.comparison.timed_runs import are_timed_only, timed_facts, timed_mechanisms
from gpuprof.diagnosis.detect.pair.cells import Cells
from gpuprof.diagnosis.detect.pair.facts import Facts, best_known, facts, usable
from gpuprof.diagnosis.detect.pair.quantities import times
from gpuprof.diagnosis.detect.pair.side import Known, Side
from gpuprof.diagnosis.result.diagnosis import Diagnosis, Steps
from gpuprof.diagnosis.sentences import capital, duration
from gpuprof.errors import GpuprofError
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.unit import Unit, common_unit
from gpuprof.units import Assumed, Convention, Ratio, Rows, Share

TOP_ROWS: Convention[Rows] = 10
EQUAL_WORK: Assumed[Share] = 0.02
"""Tokens or samples that differ by less than this share count as the same work."""
OTHER_FLOPS: Assumed[Share] = 0.25
"""Smallest log ratio of FLOPs that shows another batch: FLOPs come from shapes, and libraries count matmuls
differently."""
OTHER_MEAN: Assumed[Ratio] = 2.0
"""Means that differ by a larger factor are never called the same, even if a rank test of few steps says so. Assumed."""
OTHER_MATMULS: Assumed[Share] = 0.1
"""Programs whose numbers of matmuls differ by more than this share do different things with their batches."""

Pair = tuple[float | None, float | None]


def compare(a: Diagnosis, b: Diagnosis, top: int = TOP_ROWS) -> Comparison:
    """Where B's step differs from A's; `top`: how many kernels and ops to name.

    Raises GpuprofError, one line, for recordings that cannot be compared.
    """
    unit, timed = common_unit(a.unit, b.unit), are_timed_only(a, b)
    one, other = (timed_facts(a, unit), timed_facts(b, unit)) if timed else _recorded_facts(a, b, unit)
    work = compare_work(one.side, other.side)
    tested = significance(a, b, work)
    step = compare_steps(one.side, other.side, work, tested)
    differ = other_model(one, other, (a.run.model if a.run else None, b.run.model if b.run else None))
    if timed:
        found, rest_ns = tuple(timed_mechanisms(a, b, one, other, step, work)), 0
        if differ is not None:
            found = tuple(replace(mechanism, predictions=()) for mechanism in found)
    else:
        explained = explain(one, other, work, related=differ is None)
        found = tuple(mechanisms(explained, one, other, step, work, (a, b) if differ is None else None))
        rest_ns = explained.rest_ns
    changed = compare_kernels(one.kernels, other.kernels, top)
    return Comparison(
        a=one.side,
        b=other.side,
        step=step if differ is None else replace(step, outcome="other"),
        work=work,
        significance=tested,
        summary=_summary(step, found, unit) if differ is None else _of_other_models(step, differ, unit),
        mechanisms=found,
        unexplained_ns=rest_ns,
        terms=terms(one.cells, other.cells),
        phases=() if timed else phase_differences(one.cells, other.cells),
        kernels=changed,
        ops=compare_ops(one.ops, other.ops, top),
        ranks=rank_differences(a, b),
        notes=(
            *other_program(differ, unit),
            *notes(one, other, step, work, tested),
            *(same_program(step, found, changed, one, other) if differ is None and not timed else ()),
        ),
        diagnoses=(a, b),
    )


def _recorded_facts(a: Diagnosis, b: Diagnosis, unit: Unit) -> tuple[Facts, Facts]:
    """The facts to compare. Raises GpuprofError, one line, for a recording that cannot be compared."""
    known_a, known_b = _known(usable(a, "A"), usable(b, "B"))
    return facts(a, "A", known_a, unit), facts(b, "B", known_b, unit)


def _known(a: Steps, b: Steps) -> tuple[Known, Known]:
    """Which step of each is compared: never a recorded one with one without the profiler."""
    if (a.source == "none") != (b.source == "none"):
        which = "A" if a.source == "none" else "B"
        raise GpuprofError(f"no steps were found in {which}: name the range or op that is a step, --step REGEX")
    found = best_known(a), best_known(b)
    return ("recorded", "recorded") if "recorded" in found else found


# -- step and work


def compare_work(a: Side, b: Side) -> ComparedWork | None:
    """How much more work B does in a step, by the best measure that both have; None if there is none, or if nothing
    hints at another batch."""
    measures: tuple[tuple[Literal["tokens", "samples"], Pair, Pair], ...] = (
        ("tokens", counted_tokens(a, b), (a.token_ns, b.token_ns)),
        ("samples", (a.samples, b.samples), (a.sample_ns, b.sample_ns)),
    )
    for measure, (before, after), (before_ns, after_ns) in measures:
        if before and after:
            ratio, equal = after / before, abs(after / before - 1) <= EQUAL_WORK
            each = a.step_ns / before, b.step_ns / after
            if not equal and before_ns and after_ns and a.known == b.known == "unprofiled":
                each = before_ns, after_ns
            return ComparedWork(measure, before, after, ratio, equal, *each)
    before, after = a.product_flops, b.product_flops
    # Other matmuls (grouped ones, those of other modules) have other FLOPs without another batch.
    if before and after and abs(b.products - a.products) <= OTHER_MATMULS * a.products:
        ratio = after / before
        return ComparedWork("product FLOPs", before, after, ratio, abs(math.log(ratio)) <= OTHER_FLOPS, None, None)
    return None


def counted_tokens(a: Side, b: Side) -> Pair:
    """Tokens of a step that count: without padding if either side knows it.

    Batches without a mask are usually not padded: packed rows have none. So if only one side knows its padding, all
    tokens of the other count, and `notes` says so.
    """
    if a.real_tokens or b.real_tokens:
        return a.real_tokens or a.tokens, b.real_tokens or b.tokens
    return a.tokens, b.tokens


def compare_steps(a: Side, b: Side, work: ComparedWork | None, tested: Significance | None) -> Step:
    """The steps and which is faster, by the time for the same work if the work is known to differ."""
    ratio = b.step_ns / a.step_ns
    other_work = work is not None and not work.equal and work.measure != "product FLOPs"
    speedup = 1.0 / ratio
    if work is not None and other_work and work.a_ns_per and work.b_ns_per:
        speedup = work.a_ns_per / work.b_ns_per
    difference = b.step_ns - a.step_ns
    outcome: Outcome = "faster" if speedup > 1 else "slower"
    # Without a test, a difference has to exceed the noise between processes of one program.
    small = difference == 0 or abs(ratio - 1) < noise_calibrated.PROCESS.value
    alike, sure = small, True
    if tested is not None and tested.significant is not None and difference:
        contrary = (tested.b_median_ns - tested.a_median_ns) * difference < 0
        likely = not small and not contrary and tested.p is not None and tested.p < LIKELY_P
        alike, sure = (not tested.significant and not likely) or contrary, tested.significant or not likely
        if alike and max(ratio, 1 / ratio) > OTHER_MEAN:
            alike = sure = False
    if other_work:
        sure = True  # the test compares steps, the outcome compares the time for the same work
    elif alike:
        outcome = "same"
    return Step(a.step_ns, b.step_ns, difference, ratio, speedup, outcome, a.known == b.known, sure)


# -- the waterfall


def terms(a: Cells, b: Cells) -> tuple[Term, ...]:
    """The cells of both, grouped by category and cause, largest difference first."""
    found = []
    for kind, name in dict.fromkeys(cell[:2] for cell in (*a, *b)):
        parts = tuple(
            PhasePart(phase, before, after, after - before)
            for phase in PHASES
            if (before := a.get((kind, name, phase), 0)) | (after := b.get((kind, name, phase), 0))
        )
        before, after = sum(part.a_ns for part in parts), sum(part.b_ns for part in parts)
        found.append(Term("busy" if kind == "busy" else "idle", name, before, after, after - before, parts))
    return tuple(sorted(found, key=lambda t: (-abs(t.difference_ns), -t.a_ns, t.kind, t.name)))


def phase_differences(a: Cells, b: Cells) -> tuple[PhaseDifference, ...]:
    """The cells of both by phase, in the order of a step."""
    found = []
    for phase in PHASES:
        before, after = ([(cell[0], ns) for cell, ns in side.items() if cell[2] == phase] for side in (a, b))
        if before or after:
            whole = [sum(ns for _, ns in side) for side in (before, after)]
            busy = [sum(ns for kind, ns in side if kind == "busy") for side in (before, after)]
            found.append(PhaseDifference(phase, whole[0], whole[1], whole[1] - whole[0], busy[0], busy[1]))
    return tuple(found)


# -- ranks


def rank_differences(a: Diagnosis, b: Diagnosis) -> tuple[RankDifference, ...] | None:
    """Ranks that both runs have, in order: how long each needs by itself, and how long it waits for the others; None
    unless both have several ranks."""
    if not (a.ranks and b.ranks):
        return None
    after = {one.rank: one for one in b.ranks}
    pairs = [(one, after[one.rank]) for one in a.ranks if one.rank in after]
    return tuple(
        RankDifference(one.rank, one.pace_ns, other.pace_ns, one.waiting_ns, other.waiting_ns) for one, other in pairs
    )


# -- in words


def _summary(step: Step, mechanisms: tuple[Mechanism, ...], unit: Unit) -> str:
    """The outcome and its first reason, in a sentence or two."""
    if not step.difference_ns and all(not m.difference_ns for m in mechanisms):
        return f"A and B do not differ: their {unit}s take the same time in every category."
    if step.outcome == "same":
        return (
            f"No difference beyond the noise between {unit}s or processes: {duration(step.a_ns)} and"
            f" {duration(step.b_ns)} {unit.a}."
        )
    first = mechanisms[0] if mechanisms else None
    if not step.sure:
        text = f"B is likely {step.outcome}, but so few {unit}s may differ as much by chance"
        return f"{text}. {capital(first.text)}: {_of_difference(first, step, unit)}." if first else f"{text}."
    if first is None:
        return f"B's {unit} takes {duration(step.b_ns)} where A's takes {duration(step.a_ns)}."
    if first.id in WORK:
        return f"{capital(first.text)}, in {times(step.ratio)}× the time."
    return f"{capital(first.text)}: {_of_difference(first, step, unit)}."


def _of_other_models(step: Step, differ: str, unit: Unit) -> str:
    """The summary for two different programs, where neither is the other with a change."""
    return (
        f"A and B are different programs ({differ}): {duration(step.a_ns)} and {duration(step.b_ns)} {unit.a}."
        " Their difference is not the effect of a change."
    )


def _of_difference(first: Mechanism, step: Step, unit: Unit) -> str:
    sign = "−" if first.difference_ns < 0 else "+"
    whole = f"{'−' if step.difference_ns < 0 else '+'}{duration(abs(step.difference_ns))}"
    own = f"{sign}{duration(abs(first.difference_ns))}"
    if first.difference_ns == step.difference_ns:
        return f"{own} {unit.a}, all of the difference"
    if own[0] == whole[0] and abs(first.difference_ns) > abs(step.difference_ns):
        rest = step.difference_ns - first.difference_ns
        return f"{own} {unit.a}, everything else together {'−' if rest < 0 else '+'}{duration(abs(rest))}"
    return f"{own} of the {unit}'s {whole}"
