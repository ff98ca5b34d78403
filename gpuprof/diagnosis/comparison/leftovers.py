"""Candidates for cells that no change claims: other work in a step, another GPU, the speed of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from math import log

from gpuprof.diagnosis.comparison.comparison import ComparedWork
from gpuprof.diagnosis.detect.batches.fewer_tokens import LEAST_PADDING
from gpuprof.diagnosis.detect.pair.candidates import (
    HOST_CAUSES,
    WEAK_WEIGHT,
    WEAKER_WEIGHT,
    Candidate,
    claim_busy,
    claim_idle,
    claim_where,
    is_communication,
)
from gpuprof.diagnosis.detect.pair.facts import Facts
from gpuprof.diagnosis.detect.pair.quantities import SAME_PACE, Quantity, idle_ns, quantity, times
from gpuprof.diagnosis.detect.pair.side import Side
from gpuprof.diagnosis.findings import with_role
from gpuprof.diagnosis.sentences import count
from gpuprof.timeline.unit import Unit
from gpuprof.units import Assumed, Share

BATCH_SIZE, PADDING, OTHER_WORK = with_role("batch_size"), with_role("padded_tokens"), "work"
WORK = (BATCH_SIZE, PADDING, OTHER_WORK)
"""Candidates that mean another batch."""
HOST_SCATTER: Assumed[Share] = 0.1
"""If waiting for the CPU differs by more than this share of itself, it is more than noise between processes.
Assumed."""
PADDING_EXPLAINS: Assumed[Share] = 0.5
"""Tokens that count = all tokens × the non-padding share. Padding is named as the change if that share explains more
than this part of the change."""


def leftovers(a: Facts, b: Facts, work: ComparedWork | None, changed: bool) -> Iterator[Candidate]:
    """Candidates for the rest; `changed`: whether a change of the program was found."""
    padding = list(_padding(a.side, b.side, work, a.unit))
    yield from padding or _work(a.side, b.side, work, a.unit)
    yield from _communication(a, b)
    yield from _device(a, b)
    yield from _pace(a, b, changed)


def _work(a: Side, b: Side, work: ComparedWork | None, unit: Unit) -> Iterator[Candidate]:
    if work is None or work.equal:
        return
    if work.measure == "product FLOPs":
        name = OTHER_WORK
        text = f"B's {unit} does {times(work.ratio)}× the work of A's by the FLOPs of its matrix multiplications"
    else:
        name = BATCH_SIZE
        text = f"B's {unit} does {times(work.ratio)}× the work of A's: {Quantity(work.a, work.b)} {work.measure}"
        if a.tokens and b.tokens and work.measure == "tokens" and (a.tokens, b.tokens) != (work.a, work.b):
            text += f" ({Quantity(a.tokens, b.tokens)} with padding)"
    yield Candidate(name, f"other work in {unit.a}", text, lambda cell: WEAK_WEIGHT)


def _padding(a: Side, b: Side, work: ComparedWork | None, unit: Unit) -> Iterator[Candidate]:
    """If the share of padding differs and explains most of the change of the batch."""
    if work is None or work.measure != "tokens" or not (a.tokens and b.tokens):
        return
    filled = Quantity(min(work.a / a.tokens, 1.0), min(work.b / b.tokens, 1.0))
    if filled.difference < LEAST_PADDING or abs(log(filled.b / filled.a)) < PADDING_EXPLAINS * abs(log(work.ratio)):
        return
    shares = [_padded(name, 1 - part) for name, part in (("A", filled.a), ("B", filled.b))]
    yield Candidate(
        PADDING,
        "share of padding",
        f"{shares[0]}, {shares[1]}: {Quantity(work.a, work.b)} tokens {unit.a} are real, of"
        f" {Quantity(a.tokens, b.tokens)}"
        " computed",
        lambda cell: WEAK_WEIGHT,
    )


def _padded(name: str, share: float) -> str:
    if name == "A":
        return f"{100 * share:.0f} % of A's tokens are padding" if share >= 0.005 else "none of A's tokens is padding"
    return f"{100 * share:.0f} % of B's" if share >= 0.005 else "none of B's"


def _communication(a: Facts, b: Facts) -> Iterator[Candidate]:
    took = quantity(a, b, lambda side: sum(ns for cell, ns in side.cells.items() if is_communication(cell)))
    if took.more:
        yield Candidate(
            with_role("communication"),
            "exposed communication",
            f"collectives that no computation overlaps take {took.ms} ms {a.unit.a}",
            claim_where(is_communication),
        )


def _device(a: Facts, b: Facts) -> Iterator[Candidate]:
    """The kernels' own speed, and which kernels run."""
    # Collectives mostly overlap with computation and have their own candidate.
    pieces = quantity(a, b, lambda side: side.counts.total - side.counts.count(("communication",)))
    took = quantity(a, b, lambda side: side.counts.ns() - side.counts.ns(("communication",)))
    clock = quantity(a, b, lambda side: side.clock_mhz or 0.0)
    if a.side.gpu and b.side.gpu and a.side.gpu != b.side.gpu:
        yield Candidate("gpu", "another GPU", f"{a.side.gpu} → {b.side.gpu}", claim_busy(WEAK_WEIGHT / 2))
    elif clock.a and clock.b and clock.difference > SAME_PACE * clock.a and pieces.steady:
        # With other kernels the clock says little: faster kernels may draw more power and so lower the clock.
        text = f"the SM clock is at {clock} MHz"
        yield Candidate(with_role("gpu_clock"), "the GPU's clock", text, claim_busy(WEAK_WEIGHT / 2), -clock.more)
    counted = f"about the same number of kernels ({pieces})" if pieces.steady else f"{pieces} kernels"
    text = f"{counted}, {took.ms} ms of GPU time {a.unit.a}"
    yield Candidate("kernels", "the kernels themselves", text, claim_busy(WEAKER_WEIGHT))


def _pace(a: Facts, b: Facts, changed: bool) -> Iterator[Candidate]:
    """The CPU: more or fewer launches, or another speed."""
    causes = (*HOST_CAUSES, "allocator")
    launches, waits = quantity(a, b, lambda side: side.counts.launches), idle_ns(a, b, *causes)
    claim = claim_idle(*causes, weight=WEAKER_WEIGHT)
    if changed:
        usual = waits.difference <= HOST_SCATTER * waits.largest
        scatter = "; CPU speed differs by several per cent from process to process" if usual else ""
        text = f"other waiting for the CPU (host), in work that both do{scatter} ({waits.ms} ms {a.unit.a} in all)"
        yield Candidate("host", "other CPU (host) time", text, claim)
    elif not launches.steady and launches.more == waits.more:
        many = "fewer" if launches.more < 0 else "more"
        text = f"B launches {count(launches.difference)} kernels {many} {a.unit.a}: {launches}"
        yield Candidate("launches", f"{many} launches", text, claim)
    else:
        about = "about the same" if launches.steady else "its"
        text = f"the GPU waits {waits.ms} ms {a.unit.a} for the CPU (host), with {about} launches ({launches})"
        yield Candidate("host", "the CPU (host) speed", text, claim)
