"""Why one GPU beats another, in the order in which reasons are weighed: the CPU's floor, which batch fits, the CPU's
speed, arithmetic, bandwidth.

The ratio of what the two get done is split into factors: the slower one is made like the other in one respect after
another, and the step is replayed each time. So the factors multiply to the whole.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

from gpuprof.costs.hardware import find
from gpuprof.projection.projected_step import ProjectedStep
from gpuprof.projection.projection import OnGpu, ProjectionExplanation, Reason
from gpuprof.projection.sustained_rates import reach_of
from gpuprof.timeline.unit import Unit
from gpuprof.units import Assumed, Share
from gpuprof.value_range import Range

EQUAL_STEP_TIMES: Assumed[Share] = 0.03
"""Two steps that differ by less than this share are reported as equal."""
HOST_FLOOR: Assumed[Share] = 0.5
"""Share of a step: a CPU floor above it limits either GPU."""


def explain(projected: ProjectedStep, first: OnGpu, second: OnGpu) -> ProjectionExplanation:
    """Why `first` gets more, or less, done than `second`."""
    gpus = [find(one.gpu, None, None) for one in (first, second)]
    a, b = (reach_of(gpu) for gpu in gpus if gpu is not None)
    unit = projected.subject.unit

    def done(there, share: float) -> float:
        return share * projected.recorded_ns(there) / projected.step_ns(there, share)

    mixed = replace(b, flops={name: (a.rate(name) or rate) for name, rate in b.flops.items()} | dict(a.flops))
    wide = replace(mixed, memory_bytes_per_s=a.memory_bytes_per_s)
    steps = [done(b, second.batch_share), done(b, first.batch_share), done(mixed, first.batch_share),
             done(wide, first.batch_share), done(a, first.batch_share)]  # fmt: skip
    capacity, compute, bandwidth, rest = (later / before for before, later in itertools.pairwise(steps))
    whole = steps[-1] / steps[0]
    reasons = (
        _floor(first, second, unit),
        _capacity(first, second, capacity, unit),
        _host(projected, first, second, projected.recorded_ns(a) / projected.recorded_ns(b)),
        Reason("compute", compute, _compute_text(first, second, compute, unit)),
        Reason("bandwidth", bandwidth, _bandwidth_text(first, second, bandwidth, unit)),
        Reason("rest", rest, "SMs, the link to the CPU, and the rest" + _by(rest)),
    )
    # Uncertainty that both share, such as what the recording leaves open, does not change their ratio; each GPU's own
    # part does.
    sides = [_away(one) for one in (first, second)]
    away = math.hypot(sides[0], sides[1]) if whole else 0.0
    factor = Range(whole * math.exp(-away), whole, whole * math.exp(away))
    return ProjectionExplanation(first.gpu, second.gpu, factor, _summary(first, second, whole, reasons, unit), reasons)


def _away(one: OnGpu) -> float:
    return math.log(one.speedup.high / one.speedup.low) / 2 if one.speedup.low > 0 else 0.0


def _time(ns: float) -> str:
    return f"{ns / 1e9:,.1f} s" if ns >= 1e9 else f"{ns / 1e6:,.0f} ms"


def _by(factor: float) -> str:
    return ": no difference" if abs(math.log(factor)) < EQUAL_STEP_TIMES else f": {factor:.2f}×"


def _floor(first: OnGpu, second: OnGpu, unit: Unit) -> Reason:
    shares = [one.host_floor_ns / one.step_ns.expected for one in (first, second)]
    text = (
        f"with an infinitely fast GPU the {unit} would still take {_time(first.host_floor_ns)}: "
        f"{100 * shares[0]:.0f} % of the {unit} on {first.gpu}, {100 * shares[1]:.0f} % on {second.gpu}"
    )
    if min(shares) > HOST_FLOOR:
        text += f"; on either GPU the CPU (host) takes most of the {unit}"
    elif max(shares) < HOST_FLOOR / 2:
        text += "; the CPU (host) hardly matters"
    return Reason("host_floor", None, text)


def _capacity(first: OnGpu, second: OnGpu, factor: float, unit: Unit) -> Reason:
    if first.batch_share == second.batch_share:
        known = first.memory is not None and second.memory is not None
        text = (
            "both take the same batch" if known else "what fits is not known; both are assumed to hold the same batch"
        )
        return Reason("capacity", factor, text)
    more, less = (first, second) if first.batch_share > second.batch_share else (second, first)
    size = f"{more.batch:,.0f} samples" if more.batch else f"{more.batch_share / less.batch_share:g} times the batch"
    only = f", {less.gpu} only {less.batch:,.0f}" if less.batch else ""
    floor = less.host_floor_ns / less.step_ns.expected
    why = (
        f"; {unit.a} with fewer samples costs the CPU the same, so each sample costs more"
        if floor > HOST_FLOOR / 2
        else ""
    )
    return Reason("capacity", factor, f"{more.gpu} holds {size}{only}{why}{_by(factor)}")


def _host(projected: ProjectedStep, first: OnGpu, second: OnGpu, compared: float) -> Reason:
    """`compared`: the recorded step that the one on the first is compared with, over that of the second."""
    ratios = [
        (a.host_factor, compared * first.batch_share / a.step_ns / (second.batch_share / b.step_ns))
        for a, b in zip(first.host_steps, second.host_steps, strict=True)
    ]
    listed = ", ".join(f"{ratio:.2f}× at {factor:g}" for factor, ratio in ratios)
    how = "as fast as the recorded one"
    if projected.host_factor != 1:
        how = f"{projected.host_factor:.3g} × the recorded one's time"
    same = f"both are assumed to have the same CPU (host) ({how})"
    text = f"{same}; with another CPU the total would be {listed}"
    return Reason("host_speed", 1.0, text)


def _compute_text(first: OnGpu, second: OnGpu, factor: float, unit: Unit) -> str:
    a, b = first.rates.half_flops / 1e12, second.rates.half_flops / 1e12
    how = {"power": " (by its power limit)", "stated": " (the usual share of the stated rate)"}
    return (
        f"sustained half-precision matmul rate {a:,.0f}{how.get(first.rates.half_source, '')} against "
        f"{b:,.0f} TFLOP/s{how.get(second.rates.half_source, '')}, {a / b:.2f}×; on the {unit}{_by(factor)}"
    )


def _bandwidth_text(first: OnGpu, second: OnGpu, factor: float, unit: Unit) -> str:
    a, b = first.rates.memory_bytes_per_s / 1e9, second.rates.memory_bytes_per_s / 1e9
    return f"memory {a:,.0f} against {b:,.0f} GB/s, {a / b:.2f}×; on the {unit}{_by(factor)}"


def _summary(first: OnGpu, second: OnGpu, whole: float, reasons: tuple[Reason, ...], unit: Unit) -> str:
    by = {reason.id: reason.factor or 1.0 for reason in reasons}
    floors = [one.host_floor_ns / one.step_ns.expected for one in (first, second)]
    if abs(math.log(whole)) < 2 * EQUAL_STEP_TIMES:
        why = (
            f"the CPU (host) takes most of the {unit} on both"
            if min(floors) > HOST_FLOOR
            else "neither has an advantage"
        )
        return f"{first.gpu} and {second.gpu} are equally fast: {why}."
    better, worse = (first.gpu, second.gpu) if whole > 1 else (second.gpu, first.gpu)
    factors = {name: factor if whole > 1 else 1 / factor for name, factor in by.items()}
    words = {
        "capacity": "it holds the larger batch", "compute": "its arithmetic is faster",
        "bandwidth": "its memory is faster", "rest": "its SMs and link",
    }  # fmt: skip
    order = sorted((name for name in words if factors[name] > 1 + EQUAL_STEP_TIMES), key=lambda name: -factors[name])
    listed = ", then ".join(f"{words[name]} ({factors[name]:.2f}×)" for name in order) or "many small differences"
    held = " The CPU (host) limits both." if min(floors) > HOST_FLOOR else ""
    return f"{better} gets {max(whole, 1 / whole):.2f}× as much done as {worse}: {listed}.{held}"
