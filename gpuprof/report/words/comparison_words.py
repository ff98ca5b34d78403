"""Texts of a Comparison that the terminal and the page share."""

from __future__ import annotations

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.comparison.compare import OTHER_MEAN
from gpuprof.diagnosis.comparison.comparison import (
    Comparison,
    KernelDifference,
    Mechanism,
    PredictionCheck,
    RankDifference,
    Term,
)
from gpuprof.diagnosis.comparison.leftovers import WORK
from gpuprof.diagnosis.comparison.significance import LIKELY_P, SIGNIFICANT_P
from gpuprof.diagnosis.detect.pair.side import Side
from gpuprof.diagnosis.sentences import capital
from gpuprof.report import labels
from gpuprof.report.names import shown
from gpuprof.report.numbers import amount, count, duration, duration_range, gib, share
from gpuprof.timeline.frames import MODULE
from gpuprof.units import Assumed, Convention, Ratio, Share

KNOWN = {
    "unprofiled": "timed without a profiler",
    "estimated": "the profiler's cost removed",
    "recorded": "as recorded, under the profiler",
}
TRAINING = "training"
"""In runs without a GPU: everything in every step except waiting for batches."""
HOST_WAITS = ("launch", "cpu_compute", "slow_call", "python", "sync", "allocator", "input", "transfer")
"""Causes of idle time on the CPU side."""
FACTOR_FROM: Convention[Ratio] = 1.3
"""From this ratio on a factor is given instead of a percentage."""
LEAST_PHASE_SHARE: Convention[Share] = 0.1
"""A phase with less than this share of a mechanism's difference is not named."""
OTHER_SCALE: Assumed[Share] = 0.02
"""Work within this share of the predicted work counts as the same."""
HOST_MATTERS: Assumed[Share] = 0.05
"""CPU ops are shown if the GPU waits for the CPU for at least this share of a step: below it the CPU runs ahead of the
GPU, so its op times do not determine the step."""
WORTH_SHARE: Convention[Share] = 0.02
WORTH_OF_STEP: Convention[Share] = 0.005
"""A part below this share of the difference and this share of the longer step gets no line."""


def different_programs(comparison: Comparison) -> bool:
    """Whether A and B are different programs, so that neither is better than the other."""
    return comparison.step.outcome == "other"


def outcome(comparison: Comparison) -> str:
    """`B IS 2.2× AS FAST`, `B TAKES 2.8× AS LONG`, `B IS LIKELY 12 % SLOWER (p = 0.07)`, `NO DIFFERENCE`, `NO
    CLEAR DIFFERENCE`; `DIFFERENT PROGRAMS` where no factor means anything."""
    if different_programs(comparison):
        return "DIFFERENT PROGRAMS"
    step, work, tested = comparison.step, comparison.work, comparison.significance
    if step.outcome == "same":
        return "NO DIFFERENCE" if abs(step.ratio - 1) < noise_calibrated.PROCESS.value else "NO CLEAR DIFFERENCE"
    is_, takes, p = "IS", "TAKES", ""
    if not step.sure:
        is_, takes = "IS LIKELY", "LIKELY TAKES"
        p = f" (p = {tested.p:.2g})" if tested is not None and tested.p is not None else ""
    other = work is not None and not work.equal and work.measure != "product FLOPs"
    each = f" PER {work.measure.removesuffix('s').upper()}" if work and other else ""
    times = step.speedup if step.outcome == "faster" else 1 / step.speedup
    if times < FACTOR_FROM:
        return f"B {is_} {100 * (times - 1):.{0 if times >= 1.095 else 1}f} % {step.outcome.upper()}{each}{p}"
    return (
        f"B {is_} {_times(times)}× AS FAST{each}{p}"
        if step.outcome == "faster"
        else f"B {takes} {_times(times)}× AS LONG{each}{p}"
    )


def _times(value: float) -> str:
    return f"{value:.0f}" if value >= 9.95 else f"{value:.1f}"


def steps(comparison: Comparison) -> str:
    """`49 → 26 ms a step  (−23 ms, −47 %)`."""
    step = comparison.step
    both = both_times(step.a_ns, step.b_ns, exact=True)
    unit = comparison.unit.a
    if not step.difference_ns:
        return f"{duration(step.a_ns)} {unit}, both"
    return f"{both} {unit} ({signed(step.difference_ns)}, {signed_percent(step.difference_ns, step.a_ns)})"


def both_times(a_ns: float, b_ns: float, exact: bool = False) -> str:
    """`49 → 26 ms`; both units if they differ. Equal texts are given once, or with more digits if `exact`."""
    a, b = duration(a_ns), duration(b_ns)
    if a == b:
        if not exact or a_ns == b_ns:
            return a
        a, b = f"{a_ns / 1e6:,.3f} ms", f"{b_ns / 1e6:,.3f} ms"
    number, _, unit = a.partition(" ")
    return f"{number} → {b}" if b.endswith(f" {unit}") else f"{a} → {b}"


def signed(ns: float) -> str:
    """`−23 ms`, `+1.2 ms`, `0 ms`."""
    return f"+{duration(ns)}" if ns > 0 else duration(ns)


def signed_percent(part: float, whole: float) -> str:
    """`−47 %`."""
    if not whole:
        return "–"
    value = 100 * part / whole
    digits = 1 if abs(value) < 9.95 else 0
    text = f"{abs(value):.{digits}f} %"
    return text if not part else f"{'−' if part < 0 else '+'}{text}"


def known(comparison: Comparison) -> str:
    """How both steps were determined."""
    a, b = comparison.a.known, comparison.b.known
    return f"both {KNOWN[a]}" if a == b else f"A {KNOWN[a]}, B {KNOWN[b]}"


def bound(one: Side) -> str:
    """`host-bound (launch)`, or what replaces it without a verdict."""
    if one.bound is None:
        return "no verdict"
    text = "balanced" if one.bound == "balanced" else f"{one.bound}-bound"
    return f"{text} ({one.cause.replace('_', ' ')})" if one.cause else text


def term(one: Term) -> str:
    """`waiting: launch`, `matrix multiplications`, `elementwise kernels`."""
    if one.kind == "idle":
        return f"waiting: {labels.cause(one.name)}"
    if one.name == TRAINING:
        return "the training itself"
    named = one.name in labels.CATEGORIES or one.name == "communication"
    return labels.category(one.name) if named else f"{one.name} kernels"


def shown_mechanisms(comparison: Comparison) -> tuple[Mechanism, ...]:
    """The mechanisms that are worth a line; the first in any case, where there is a difference."""
    step = comparison.step
    least = max(WORTH_SHARE * abs(step.difference_ns), WORTH_OF_STEP * max(step.a_ns, step.b_ns))
    found = [m for m in comparison.mechanisms if abs(m.difference_ns) >= least]
    return tuple(found or (comparison.mechanisms[:1] if step.outcome != "same" else ()))


def part(one: Mechanism, whole: str) -> str:
    """`43 % of it`; empty if it is not a part of the difference, or more than all of it."""
    return f"{share(one.share, 1.0)} of {whole}" if one.share is not None and 0 < one.share <= 1 else ""


def each(one: Mechanism, comparison: Comparison) -> str:
    """`71 → 24 µs a token`: the effect of another batch size, which also makes the step longer; empty for all other
    mechanisms."""
    found = comparison.work
    if one.id not in WORK or found is None or found.equal or not (found.a_ns_per and found.b_ns_per):
        return ""
    return f"{both_times(found.a_ns_per, found.b_ns_per)} a {found.measure.removesuffix('s')}"


def sentence(one: Mechanism) -> str:
    """What moved, and in which phases."""
    return f"{capital(one.text)}{_mostly(one)}"


def _mostly(one: Mechanism) -> str:
    """`; forward −17 ms, backward −1.0 ms`, if a mechanism is in several phases."""
    parts = sorted(one.phases, key=lambda p: -abs(p.difference_ns))
    seen = [p for p in parts if abs(p.difference_ns) >= LEAST_PHASE_SHARE * abs(one.difference_ns)]
    if len(parts) < 2 or not seen:
        return ""
    return "; " + ", ".join(f"{p.phase} {signed(p.difference_ns)}" for p in seen[:3])


def phases_of(one: Term) -> str:
    """`backward −9.1 ms, forward −6.0 ms`: the phases with most of a term's difference."""
    parts = sorted(one.phases, key=lambda p: -abs(p.difference_ns))
    seen = [p for p in parts if abs(p.difference_ns) >= LEAST_PHASE_SHARE * abs(one.difference_ns)]
    return ", ".join(f"{p.phase} {signed(p.difference_ns)}" for p in seen[:3])


def unexplained(comparison: Comparison) -> str:
    """`+1.2 ms a step unexplained`; empty if that is negligible."""
    step, rest = comparison.step, comparison.unexplained_ns
    least = max(WORTH_SHARE * abs(step.difference_ns), WORTH_OF_STEP * max(step.a_ns, step.b_ns))
    return f"{signed(rest)} {comparison.unit.a} unexplained" if abs(rest) >= least else ""


def names(comparison: Comparison) -> tuple[str, str]:
    """The last part of both paths; if these are equal, with the part before it."""
    paths = [[part for part in side.path.split("/") if part] or [side.path] for side in (comparison.a, comparison.b)]
    for many in (1, 2):
        a, b = (shown("/".join(parts[-many:]), 80) for parts in paths)
        if a != b:
            return a, b
    a, b = (shown(parts[-1], 80) for parts in paths)
    return a, b


def shown_terms(comparison: Comparison) -> tuple[tuple[Term, ...], int]:
    """The terms that are worth a bar, and the sum of the differences of all others."""
    step = comparison.step
    least = max(WORTH_SHARE * abs(step.difference_ns), WORTH_OF_STEP * max(step.a_ns, step.b_ns))
    big = tuple(t for t in comparison.terms if abs(t.difference_ns) >= least)
    return big, sum(t.difference_ns for t in comparison.terms if t not in big)


def host_matters(comparison: Comparison) -> bool:
    """Whether the GPU waits for the CPU in either run."""
    step = comparison.step
    waits = [t for t in comparison.terms if t.kind == "idle" and t.name in HOST_WAITS]
    sides = (sum(t.a_ns for t in waits), step.a_ns), (sum(t.b_ns for t in waits), step.b_ns)
    return any(ns >= HOST_MATTERS * whole for ns, whole in sides)


def rank(one: RankDifference) -> tuple[str, str, str]:
    """`rank 0`, by itself `50 → 48 ms`, for others `3.1 → 0.2 ms`; empty where a recording does not say."""

    def both(a_ns: int | None, b_ns: int | None) -> str:
        return "" if a_ns is None or b_ns is None else both_times(a_ns, b_ns)

    return f"rank {one.rank}", both(one.a_pace_ns, one.b_pace_ns), both(one.a_waiting_ns, one.b_waiting_ns)


def kernel_changes(comparison: Comparison) -> str:
    """`238 → 180 ms a step as recorded: by count −30 ms, by duration −28 ms; 37 new, 49 gone, 99 in both`."""
    found = comparison.kernels
    text = f"{both_times(found.a_ns, found.b_ns)} {comparison.unit.a} as recorded"
    if not found.difference_ns:
        return text
    # Fewer and longer kernels: two large opposite differences would mislead.
    if min(abs(found.count_ns), abs(found.duration_ns)) > abs(found.difference_ns):
        parts = "fewer and longer ones" if found.count_ns < 0 else "more and shorter ones"
    else:
        parts = f"by count {signed(found.count_ns)}, by duration {signed(found.duration_ns)}"
    return f"{text}: {parts}; {count(found.new)} new, {count(found.gone)} gone, {count(found.both)} in both"


def launched(row: KernelDifference) -> str:
    """`aten::copy_ ← Linear`: the op that launches a kernel, and its module if known."""
    op = shown(row.op, 120) if row.op else ""
    module = shown(row.module.removeprefix(MODULE), 60) if row.module else ""
    return f"{op} ← {module}" if op and module else op or module


def prediction(one: PredictionCheck) -> str:
    """`A predicted 13–27 ms with it (torch.compile); B measured 26 ms: as predicted`."""
    other = "B" if one.by == "a" else "A"
    how = {
        "unprofiled": "measured",
        "estimated": "takes, without the profiler's cost,",
        "recorded": "takes, as recorded,",
    }
    # A changed batch rarely has exactly the predicted size.
    work = f" ({one.scale:.2f}× the work it was predicted for)" if abs(one.scale - 1) > OTHER_SCALE else ""
    range_ms = duration_range(one.step_ns.low, one.step_ns.high)
    tried = f" gpuprof try measured {duration(one.tried_ns)};" if one.tried_ns is not None else ""
    text = (
        f"{one.by.upper()}'s diagnosis predicted {range_ms} for {one.title}{work};{tried}"
        f" {other} {how[one.known]} {duration(one.measured_ns)}"
    )
    return f"{text}: as predicted" if one.inside else f"{text}: {_off(one)}"


def _off(one: PredictionCheck) -> str:
    low, high = one.step_ns.low, one.step_ns.high
    away = one.measured_ns / high - 1 if one.measured_ns > high else 1 - one.measured_ns / low
    where = "above" if one.measured_ns > high else "below"
    return f"{100 * away:.0f} % {where} the predicted range"


def test(comparison: Comparison) -> str:
    """The significance test in a line; empty if there was nothing to test."""
    found = comparison.significance
    if found is None or found.p is None:
        return ""
    if found.significant is None:
        a = amount(found.a_steps, f"{found.of} {comparison.unit}")
        return f"{a} of A and {count(found.b_steps)} of B: too few to test the difference (gpuprof trace times more)"
    of = f"{count(found.a_steps)} and {count(found.b_steps)} {found.of} {comparison.unit}s"
    value, of_what = found.p, ""
    if found.p_each is not None and comparison.work is not None:
        value, of_what = found.p_each, f", by the time for each {comparison.work.measure.removesuffix('s')}"
    p = "p < 0.0001" if value < 1e-4 else f"p = {value:.2g}"
    said = "a difference" if value < SIGNIFICANT_P else "no difference beyond noise"
    if SIGNIFICANT_P <= value < LIKELY_P and not comparison.step.sure:
        said = "likely a difference, but it may be scatter"
    if value >= LIKELY_P and not comparison.step.sure:
        said = f"only the means differ, by more than {OTHER_MEAN:.0f}×"
    return f"{p} over {of}{of_what} (rank-sum test): {said}"


def work(comparison: Comparison) -> str:
    """`4,096 tokens a step in both`; `128 → 1,024 tokens a step: 551 → 76 µs a token`."""
    found = comparison.work
    if found is None or found.measure == "product FLOPs":
        return ""
    noun = found.measure.removesuffix("s")
    if found.equal:
        return f"{count(round(found.b))} {found.measure} {comparison.unit.a} in both"
    text = f"{count(round(found.a))} → {count(round(found.b))} {found.measure} {comparison.unit.a}"
    if found.a_ns_per and found.b_ns_per:
        text += f": {both_times(found.a_ns_per, found.b_ns_per)} a {noun}"
    return text


def memory(comparison: Comparison) -> str:
    """`peak memory 41.2 → 38.0 GiB`, or one number if they are equal; empty if one is not known."""
    a, b = comparison.a.peak_bytes, comparison.b.peak_bytes
    if not a or not b:
        return ""
    return f"peak memory {gib(a)} GiB" if gib(a) == gib(b) else f"peak memory {gib(a)} → {gib(b)} GiB"


def has_gpu_work(comparison: Comparison) -> bool:
    """Whether kernels were recorded."""
    return bool(comparison.a.kernels or comparison.b.kernels)


def counts(comparison: Comparison) -> str:
    """`kernels 2,057 → 963   launches 2,057 → 963   waits for the GPU 2 → 1`."""
    a, b = comparison.a, comparison.b
    pairs = (("kernels", a.kernels, b.kernels), ("launches", a.launches, b.launches), ("syncs", a.syncs, b.syncs))
    return "   ".join(f"{name} {_moved(before, after)}" for name, before, after in pairs)


def _moved(before: float, after: float) -> str:
    return f"{count(round(before, 1))} → {count(round(after, 1))}" if before != after else count(round(before, 1))
