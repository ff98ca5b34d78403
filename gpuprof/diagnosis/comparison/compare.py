"""Two diagnoses in, one Comparison out."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gpuprof.diagnosis.baseline import F64
from gpuprof.diagnosis.comparison.cells import Cells
from gpuprof.diagnosis.comparison.facts import Facts, best_known, facts, usable
from gpuprof.diagnosis.comparison.kernels import compare_kernels, compare_ops
from gpuprof.diagnosis.comparison.mechanisms import WORK, Explained, explain
from gpuprof.diagnosis.comparison.model import (
    Comparison,
    Known,
    Mechanism,
    Note,
    Outcome,
    PhaseDifference,
    PhasePart,
    PhaseShare,
    Prediction,
    Side,
    Significance,
    Step,
    Term,
    Work,
)
from gpuprof.diagnosis.comparison.samples import recorded, unprofiled
from gpuprof.diagnosis.comparison.significance import CORRELATED, LEVEL, correlation, rank_sum
from gpuprof.diagnosis.model import Diagnosis, Finding, Range, Steps
from gpuprof.diagnosis.proposal import NOISE
from gpuprof.errors import GpuprofError
from gpuprof.timeline.phases import PHASES

TOP = 10
EQUAL_WORK = 0.02
"""Tokens or samples that differ by less are the same work."""
OTHER_FLOPS = 0.25
"""FLOPs are told from shapes, and libraries count products differently: less says nothing of the batch."""
OTHER_PRODUCTS = 0.1
"""Programs whose numbers of matrix products differ by more do not do the same to their batches."""
LIKE_PREDICTED = 0.2
"""A prediction for so much more or less work than was done is not one of what was done."""


def compare(a: Diagnosis, b: Diagnosis, top: int = TOP) -> Comparison:
    """Where B's step differs from A's; `top`: how many kernels and ops to name.

    Raises GpuprofError, one line, for recordings that cannot be compared.
    """
    known_a, known_b = _known(usable(a, "A"), usable(b, "B"))
    one, other = facts(a, "A", known_a), facts(b, "B", known_b)
    work = compare_work(one.side, other.side)
    tested = significance(a, b)
    step = compare_steps(one.side, other.side, work, tested)
    explained = explain(one, other, work)
    mechanisms = tuple(_mechanisms(explained, one, other, step, work, (a, b)))
    return Comparison(
        a=one.side,
        b=other.side,
        step=step,
        work=work,
        significance=tested,
        summary=_summary(step, work, mechanisms),
        mechanisms=mechanisms,
        unexplained_ns=explained.rest_ns,
        terms=terms(one.cells, other.cells),
        phases=phase_differences(one.cells, other.cells),
        kernels=compare_kernels(one.kernels, other.kernels, top),
        ops=compare_ops(one.ops, other.ops, top),
        notes=(*_notes(one, other, step, work, tested), *_same_program(step, mechanisms)),
        diagnoses=(a, b),
    )


def _known(a: Steps, b: Steps) -> tuple[Known, Known]:
    """In which way the step of each is compared: never a recorded one with one without the profiler."""
    if (a.source == "none") != (b.source == "none"):
        which = "A" if a.source == "none" else "B"
        raise GpuprofError(f"no steps were found in {which}: name the range or op that is a step, --step REGEX")
    found = best_known(a), best_known(b)
    return ("recorded", "recorded") if "recorded" in found else found


# -- step, work, test


def compare_work(a: Side, b: Side) -> Work | None:
    """How much more B does in a step, by the measure that both know; None where neither tells, or nothing hints at
    another batch."""
    tokens = (a.real_tokens, b.real_tokens) if a.real_tokens and b.real_tokens else (a.tokens, b.tokens)
    for measure, (before, after) in (("tokens", tokens), ("samples", (a.samples, b.samples))):
        if before and after:
            ratio, equal = after / before, abs(after / before - 1) <= EQUAL_WORK
            told = "tokens" if measure == "tokens" else "samples"
            return Work(told, before, after, ratio, equal, a.step_ns / before, b.step_ns / after)
    before, after = a.product_flops, b.product_flops
    # Other products (grouped ones, those of other modules) have other FLOPs without another batch.
    if before and after and abs(b.products - a.products) <= OTHER_PRODUCTS * a.products:
        ratio = after / before
        return Work("product FLOPs", before, after, ratio, abs(math.log(ratio)) <= OTHER_FLOPS, None, None)
    return None


def compare_steps(a: Side, b: Side, work: Work | None, tested: Significance | None) -> Step:
    """The steps and which is faster: by the time for the same work, where that is known to differ."""
    ratio = b.step_ns / a.step_ns
    other_work = work is not None and not work.equal and work.measure != "product FLOPs"
    speedup = (work.ratio if work and other_work else 1.0) / ratio
    difference = b.step_ns - a.step_ns
    outcome: Outcome = "faster" if speedup > 1 else "slower"
    # Untested, a difference has to exceed what processes of one program differ by.
    alike = difference == 0 or abs(ratio - 1) < NOISE
    if tested is not None and tested.significant is not None and difference:
        contrary = (tested.b_median_ns - tested.a_median_ns) * difference < 0
        alike = not tested.significant or contrary
    if alike and not other_work:
        outcome = "same"
    return Step(a.step_ns, b.step_ns, difference, ratio, speedup, outcome, a.known == b.known)


def significance(a: Diagnosis, b: Diagnosis) -> Significance | None:
    """The test over unprofiled steps where both have some, else over the recorded ones; None without steps."""
    of, before, after = "unprofiled", unprofiled(a), unprofiled(b)
    if not (len(before) and len(after)):
        of, before, after = "recorded", recorded(a), recorded(b)
    ranked = rank_sum(before, after)
    if ranked is None:
        return None
    told = ranked.least < LEVEL
    return Significance(
        of=of,
        a_steps=len(before),
        b_steps=len(after),
        a_median_ns=_median(before),
        b_median_ns=_median(after),
        p=ranked.p,
        significant=ranked.p < LEVEL if told else None,
        exact=ranked.exact,
        correlation=max((c for c in map(correlation, (before, after)) if c is not None), default=None),
    )


def _median(ns: F64) -> int:
    return round(float(np.median(ns)))


# -- the waterfall


def terms(a: Cells, b: Cells) -> tuple[Term, ...]:
    """The cells of both by category and by cause, largest difference first."""
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


# -- mechanisms and what was predicted of them


def _mechanisms(
    explained: Explained, a: Facts, b: Facts, step: Step, work: Work | None, both: tuple[Diagnosis, Diagnosis]
) -> Iterator[Mechanism]:
    names = [one.id for one, _ in explained.parts]
    told = False
    for one, phases in explained.parts:
        ns = sum(phases.values())
        in_a, in_b = a.finding(one.id) is not None, b.finding(one.id) is not None
        predictions = list(_predictions(one.id, a, b, work))
        if not told and predictions:
            predictions += _combined(both, names, a, b)
            told = True
        yield Mechanism(
            id=one.id,
            title=one.title,
            text=one.text,
            difference_ns=ns,
            share=ns / step.difference_ns if step.difference_ns else None,
            phases=tuple(PhaseShare(phase, phases[phase]) for phase in PHASES if phases.get(phase)),
            found="both" if in_a and in_b else "a" if in_a else "b" if in_b else "none",
            predictions=tuple(predictions),
        )


def _predictions(name: str, a: Facts, b: Facts, work: Work | None) -> Iterator[Prediction]:
    """What each side's diagnosis said of a fix that the other has."""
    ratio = work.ratio if work else 1.0
    for by, told, other, done in (("a", a, b, ratio), ("b", b, a, 1 / ratio)):
        fitting = [
            finding
            for finding in told.findings
            if finding.id == name and abs(finding.work / done - 1) <= LIKE_PREDICTED and other.finding(name) is None
        ]
        if name == "larger_batch":
            # A larger batch is worth more still, so it is advised of both.
            fitting = [f for f in told.findings if f.id == name and abs(f.work / done - 1) <= LIKE_PREDICTED]
        if fitting:
            nearest = min(fitting, key=lambda f: abs(f.work / done - 1))
            yield _prediction(nearest.id, nearest.title, "a" if by == "a" else "b", nearest.step_ns, other.side)


def _combined(both: tuple[Diagnosis, Diagnosis], names: list[str], a: Facts, b: Facts) -> Iterator[Prediction]:
    """What several fixes together were said to give, where all of them were made."""
    for by, diagnosis, other in (("a", both[0], b), ("b", both[1], a)):
        told = diagnosis.combined
        if told is not None and told.work == 1.0 and set(told.ids) <= set(names):
            yield _prediction(
                "+".join(told.ids), " + ".join(told.titles), "a" if by == "a" else "b", told.step_ns, other.side
            )


def _prediction(finding: Finding | str, title: str, by: str, step_ns: Range, measured: Side) -> Prediction:
    ns = measured.step_ns
    return Prediction(
        finding=finding if isinstance(finding, str) else finding.id,
        title=title,
        by="a" if by == "a" else "b",
        step_ns=step_ns,
        measured_ns=ns,
        known=measured.known,
        inside=step_ns.low <= ns <= step_ns.high,
        error=(step_ns.expected - ns) / ns,
    )


# -- in words


def _summary(step: Step, work: Work | None, mechanisms: tuple[Mechanism, ...]) -> str:
    """The outcome and its first reason, in a sentence or two."""
    if not step.difference_ns and all(not m.difference_ns for m in mechanisms):
        return "A and B do not differ: their steps take the same time, in all their parts."
    if step.outcome == "same":
        return (
            f"No difference that can be told from scatter, of steps or of processes: {_ms(step.a_ns)} and"
            f" {_ms(step.b_ns)} ms a step."
        )
    first = mechanisms[0] if mechanisms else None
    if first is None:
        return f"B's step takes {_ms(step.b_ns)} ms where A's takes {_ms(step.a_ns)}."
    if first.id in WORK:
        return f"{_capital(first.text)}, in {step.ratio:.2g}× the time."
    return f"{_capital(first.text)}: {_of_difference(first, step)}."


def _of_difference(first: Mechanism, step: Step) -> str:
    sign = "−" if first.difference_ns < 0 else "+"
    whole = "−" if step.difference_ns < 0 else "+"
    own = f"{sign}{_ms(abs(first.difference_ns))} ms"
    if first.difference_ns == step.difference_ns:
        return f"{own} a step, all of the difference"
    return f"{own} of the step's {whole}{_ms(abs(step.difference_ns))} ms"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _ms(ns: float) -> str:
    """Milliseconds with three digits that count."""
    value = abs(ns) / 1e6
    return f"{value:,.0f}" if value >= 99.95 else f"{value:,.1f}" if value >= 0.95 else f"{value:.2g}"


def _same_program(step: Step, mechanisms: tuple[Mechanism, ...]) -> Iterator[Note]:
    """Where nothing that the program does has changed, a person should not look for it there."""
    if mechanisms and step.difference_ns and {m.id for m in mechanisms} <= {"host", "kernels"}:
        yield Note(
            "same_program",
            "info",
            "Both launch the same kernels: nothing that the programs do was found to differ. What differs is the pace"
            " of the machine; of one host-bound program it differs by 10 to 50 % between hosts and processes, of one"
            " that the GPU bounds by little.",
        )


def _notes(a: Facts, b: Facts, step: Step, work: Work | None, tested: Significance | None) -> Iterator[Note]:
    yield from _step_notes(a.side, b.side)
    yield from _work_notes(a.side, b.side, work)
    yield from _test_notes(step, tested)
    yield from _place_notes(a.side, b.side)


def _step_notes(a: Side, b: Side) -> Iterator[Note]:
    if a.known != b.known:
        timed, told = ("A", "B") if a.known == "unprofiled" else ("B", "A")
        yield Note(
            "unlike_steps",
            "warning",
            f"The step of {timed} was timed without a profiler, that of {told} is the recorded one with the profiler's"
            f" cost removed by replay, which is less certain. Record {told} with gpuprof trace, or time a step and give"
            " it: --step-ms.",
        )
    elif a.known == "recorded":
        yield Note(
            "recorded_steps",
            "warning",
            "Both steps are as recorded, under the profiler, since what it cost is not known of both; a profiler slows"
            " steps of many small kernels down most.",
        )
    elif a.known == "estimated":
        yield Note(
            "estimated_steps",
            "info",
            "Neither step was timed without a profiler: both are the recorded ones with the profiler's cost removed by"
            " replay.",
        )


def _work_notes(a: Side, b: Side, work: Work | None) -> Iterator[Note]:
    if work is None:
        yield Note(
            "work_unknown",
            "info",
            "What a step works on (tokens, samples) is not recorded of both; the comparison takes it to be the same.",
        )
    elif work.measure == "product FLOPs":
        if not work.equal:
            yield Note(
                "other_flops",
                "warning",
                f"B's matrix products do {work.ratio:.2g}× the FLOPs of A's: the steps seem to work on batches of"
                " another size, and their times are then not each other's like.",
            )
    elif not work.equal:
        yield Note(
            "other_work",
            "warning",
            f"The steps do other work: {work.a:,.0f} {work.measure} in A, {work.b:,.0f} in B. Compare the time for"
            f" each: {(work.a_ns_per or 0) / 1e3:,.4g} µs in A, {(work.b_ns_per or 0) / 1e3:,.4g} µs in B.",
        )


def _test_notes(step: Step, tested: Significance | None) -> Iterator[Note]:
    if tested is None or tested.significant is None or not step.difference_ns:
        return
    if tested.correlation is not None and tested.correlation > CORRELATED:
        yield Note(
            "correlated_steps",
            "info",
            f"Neighbouring steps resemble each other (correlation {tested.correlation:.2f}), so p is smaller than it"
            " ought to be.",
        )
    if tested.significant and abs(step.ratio - 1) < NOISE:
        yield Note(
            "within_noise",
            "info",
            f"The steps differ by {100 * abs(step.ratio - 1):.1f} %. That is more than the scatter of steps, but"
            f" processes of one and the same program differ by some {100 * NOISE:.0f} % too: run both again before you"
            " believe it.",
        )


def _place_notes(a: Side, b: Side) -> Iterator[Note]:
    if a.gpu and b.gpu and a.gpu != b.gpu:
        yield Note("other_gpu", "warning", f"The GPUs differ: A ran on {a.gpu}, B on {b.gpu}.")
    if (a.world_size or 1) != (b.world_size or 1):
        yield Note("other_ranks", "warning", f"A ran on {a.world_size or 1} ranks, B on {b.world_size or 1}.")
    elif (a.rank or 0) != (b.rank or 0):
        yield Note("other_rank", "info", f"Shown are rank {a.rank or 0} of A and rank {b.rank or 0} of B.")
    if a.kind != b.kind and "nsys" in (a.kind, b.kind):
        yield Note(
            "other_tool",
            "info",
            "One was recorded by Nsight Systems, the other by torch.profiler: without ops, kernels go by their names"
            " alone, and categories and phases may be told differently.",
        )
    for name, side in (("A", a), ("B", b)):
        if side.quality == "degraded":
            yield Note(
                "degraded", "info", f"The recording of {name} has flaws: gpuprof diagnose {side.path} says which."
            )
