"""Texts on GPU memory, shared by terminal and page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpuprof.report.names import escape
from gpuprof.report.numbers import amount, duration, duration_range, round_ticks, share
from gpuprof.report.palette import OWNER_PAINTS
from gpuprof.units import Convention, Entries, Share
from gpuprof.value_range import Range

if TYPE_CHECKING:
    from gpuprof.memory.advice import Advice, Fits, Remedy
    from gpuprof.memory.memory_report import (
        Difference,
        Failure,
        Leak,
        Line,
        LineDifference,
        MemoryReport,
        ReportedDevice,
    )

NAMES = {key: paint.label for key, paint in OWNER_PAINTS.items()}
"""Owner → its label."""


MOST_TICKS: Convention[Entries] = 6
"""Marks of an axis of memory, at most."""


def size(value: float) -> str:
    """`61.2 GiB`, `3.0 MiB`, `512 B`."""
    if value < 0:
        return f"−{size(-value)}"
    for scale, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if value >= 0.9995 * scale:
            digits = value / scale
            return f"{digits:,.0f} {unit}" if digits >= 99.95 else f"{digits:.1f} {unit}"
    return f"{value:.0f} B"


def ticks(top: int) -> list[tuple[str, float]]:
    """(`1.5 GiB`, bytes) of the marks of an axis from 0 to `top`: round in the unit of the largest."""
    scale, unit = next(((s, u) for s, u in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")) if top >= s), (1, "B"))
    return [(f"{at:g} {unit}" if at else "0", at * scale) for at in round_ticks(top / scale, MOST_TICKS)]


def signed(value: int) -> str:
    """`+3.0 MiB`, `−1.2 GiB`."""
    return size(value) if value <= 0 else f"+{size(value)}"


def place(one: Line | Leak | LineDifference | Failure) -> str:
    """`modeling_llama.py:182 forward`."""
    if one.line is None:
        return escape(" ".join(filter(None, (one.file, one.function)))) or "(no line of Python)"
    file = (one.file or "").replace("\\", "/").rsplit("/", 1)[-1]
    return escape(f"{file}:{one.line} {one.function}")


def headline(device: ReportedDevice, peak: str = "PEAK") -> str:
    """`PEAK 61.2 GiB allocated, 70.1 GiB reserved`; `peak`: how the first word is written."""
    held = device.peak.reserved_bytes
    return f"{peak} {size(device.peak.allocated_bytes)} allocated" + (
        "" if held is None else f", {size(held)} reserved"
    )


def moment(device: ReportedDevice, named: bool = True) -> str:
    """When the peak was, and if `named` on which GPU."""
    peak, name = device.peak, f"GPU {device.device}" if named else None
    if not device.events:
        return " · ".join(filter(None, (name, "when the snapshot was taken")))
    parts = [name, None if peak.step is None else f"step {peak.step}", peak.phase]
    parts.append(None if peak.seconds is None else f"{peak.seconds:.2f} of {device.seconds:.2f} s")
    return " · ".join(part for part in parts if part)


def summary(device: ReportedDevice) -> str:
    """The answer in a sentence or three."""
    peak = device.peak
    total = peak.allocated_bytes if peak.reserved_bytes is None else peak.reserved_bytes
    named = [one for one in peak.owners if one.owner != "unused" and one.bytes]
    said = [failed(device.failure)] if device.failure else []
    if named:
        first = named[0]
        what = NAMES[first.owner]
        what = f"Memory {what}" if first.owner == "before_history" else what[0].upper() + what[1:]
        said.append(f"{what} hold{_s(first.owner)} {share(first.bytes, total)} at the peak.")
    failure = device.failure
    if failure and (failure.unused_bytes or 0) >= failure.requested_bytes:
        said.append("Enough was reserved but in pieces: try PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.")
    if device.leaks:
        said.append(f"Memory grows each step: {leak(device.leaks[0])}.")
    return " ".join(said)


def _s(owner: str) -> str:
    plural = {"weights", "adapters", "gradients", "activations", "logits", "inputs", "backward_temporaries",
              "communication"}  # fmt: skip
    return "" if owner in plural else "s"


def failed(failure: Failure) -> str:
    """What ran out of memory."""
    asked = f"Out of memory: {place(failure)} asked for {size(failure.requested_bytes)}"
    if failure.function is None:
        asked = f"Out of memory: a request for {size(failure.requested_bytes)} failed"
    parts = [f"{size(failure.allocated_bytes)} were allocated"]
    if failure.unused_bytes is not None:
        parts.append(f"{size(failure.unused_bytes)} reserved but unused")
    if failure.device_free_bytes is not None:
        parts.append(f"{size(failure.device_free_bytes)} free on the GPU")
    step = "" if failure.step is None else f" of step {failure.step}"
    return f"{asked} in the {failure.phase} phase{step}, when {', '.join(parts)}."


def leak(one: Leak) -> str:
    """`+3.0 MiB from train.py:71 log (other)`."""
    return f"{signed(one.bytes_per_step)} from {place(one)} ({NAMES[one.owner]}), {size(one.bytes)} so far"


def difference(found: Difference) -> str:
    """The two peaks."""
    return (
        f"{signed(found.bytes)} against {escape(found.before.path)}: "
        f"{size(found.before_bytes)} → {size(found.after_bytes)}"
    )


def others(report: MemoryReport) -> list[str]:
    """A line for each device but the first."""
    return [f"GPU {one.device}: {headline(one, 'peak')}" for one in report.devices[1:]]


def lines(report: MemoryReport) -> list[str]:
    """A diagnosis's lines on memory: the peak with its largest owners and lines, growth, and what saves most."""
    device = report.devices[0]
    owners = [one for one in device.peak.owners if one.bytes][:4]
    found = [
        f"{headline(device, 'peak')} ({moment(device, len(report.devices) > 1)})",
        ", ".join(f"{NAMES[one.owner]} {size(one.bytes)}" for one in owners),
        *(f"{size(one.bytes)} from {place(one)} ({NAMES[one.owner]})" for one in device.peak.lines[:2]),
        *([failed(device.failure)] if device.failure else []),
        *(f"grows each step: {leak(one)}" for one in device.leaks[:2]),
    ]
    best = [one for one in worth(report.advice) if one.id != SEGMENTS][:2] if report.advice else []
    for one in best:
        assert report.advice is not None
        _, peak, step, _ = remedy(one, report.advice)
        now = size(report.advice.peak_bytes)
        found.append(f"{name(one)}: {now} → {peak}, step {step}")
    return found


# -- of a run


SEGMENTS = "expandable_segments"
"""The change that saves reserved memory, not allocated peak."""
LEAST_SHOWN_CHANGE: Convention[Share] = 0.01
"""A change is shown if it saves or costs at least this share of the peak."""


def measured(advice: Advice) -> str:
    """`Peak 29.8 GiB, measured without the profiler; 4.6 GiB of it between steps`."""
    return (
        f"Peak {size(advice.peak_bytes)}, measured without the profiler; "
        f"{size(advice.static_bytes)} allocated between steps"
    )


def worth(advice: Advice) -> list[Remedy]:
    """The changes whose effect on the peak is known and large enough to be shown."""
    least = LEAST_SHOWN_CHANGE * advice.peak_bytes
    return [one for one in advice.remedies if one.saved_bytes is not None and abs(one.saved_bytes) >= least]


def name(one: Remedy) -> str:
    """Name of a change, or of several at once."""
    return "all of --with" if one.id == "together" else one.title


def remedy(one: Remedy, advice: Advice) -> tuple[str, str, str, str]:
    """(title, what the peak becomes, what the step becomes, the largest batch)."""
    title = f"{name(one)} *" if one.changes else name(one)
    if one.id == SEGMENTS or one.peak_bytes is None:
        return title, signed(-(one.saved_bytes or 0)), _step(one, advice), ""
    return title, ends(one.peak_bytes), _step(one, advice), largest(one.fits[0]) if one.fits else ""


def as_it_is(advice: Advice) -> tuple[str, str, str, str]:
    """The row that the changes are compared with."""
    step = duration(advice.now_ns) if advice.now_ns else ""
    return "as it is", size(advice.peak_bytes), step, largest(advice.fits[0]) if advice.fits else ""


def ends(found: Range) -> str:
    """`10.2–11.5 GiB`, or one number where the ends are the same."""
    low, high = size(found.low), size(found.high)
    if low == high:
        return low
    return f"{low.split()[0]}–{high}" if low.split()[1] == high.split()[1] else f"{low}–{high}"


def _step(one: Remedy, advice: Advice) -> str:
    if one.step_ns is None or not advice.now_ns:
        return "not known"
    return duration_range(one.step_ns.low, one.step_ns.high)


def largest(one: Fits) -> str:
    """`batch ≤ 40`."""
    return "" if one.batch is None else f"batch ≤ {one.batch.expected:,.0f}"


def notes(advice: Advice) -> list[str]:
    """Notes: what is not known about a change, what a star means, and what paged optimizers move."""
    found = [f"{name(one)}: {one.title}" for one in advice.remedies if name(one) != one.title]
    found += [f"{one.title}: {one.unknown}" for one in advice.remedies if one.unknown]
    found += [
        f"{one.title}: {size(one.saved_bytes or 0)} less is reserved that no tensor uses"
        for one in worth(advice) if one.id == SEGMENTS
    ]  # fmt: skip
    reasons: dict[str, list[str]] = {}
    for one in worth(advice):
        if one.step_unknown:
            reasons.setdefault(one.step_unknown, []).append(name(one))
    found += [f"time of {', '.join(titles)}: {why}" for why, titles in reasons.items()]
    changes: dict[str, list[str]] = {}
    for one in worth(advice):
        if one.changes:
            changes.setdefault(one.changes, []).append(name(one))
    found += [f"* {', '.join(titles)}: {what}" for what, titles in changes.items()]
    paged = [one for one in worth(advice) if any(place.moved for place in one.fits)]
    if paged:
        found.append("paged: the state stays on the GPU while all fits, and moves in and out with the largest batch")
    return found + [moved(one) for one in paged]


def moved(one: Remedy) -> str:
    """`paged optimizer: 14.3 GiB in each step, +271 ms – 1.2 s on H200 SXM`."""
    found = [(place.gpu, place.moved) for place in one.fits if place.moved]
    each = (f"+{duration_range(it.step_ns.low, it.step_ns.high)} on {gpu}" for gpu, it in found)
    return f"{name(one)}: {size(found[0][1].bytes)} in each step, {', '.join(each)}"


def fitting(advice: Advice) -> list[str]:
    """What fits as it is, and with the changes that were chosen."""
    chosen = [one for one in advice.remedies if one.id == "together"]
    return [*map(fits, advice.fits), *(f"with {name(one)}, {fits(place)}" for one in chosen for place in one.fits)]


def fits(one: Fits) -> str:
    """`H200 SXM: batch up to 20 (19–22), or samples of up to 10,417 tokens`."""
    parts = []
    if one.batch is not None:
        parts.append(f"batch up to {one.batch.expected:,.0f} ({one.batch.low:,}–{one.batch.high:,})")
    if one.tokens is not None:
        parts.append(f"samples of up to {one.tokens.expected:,} tokens ({one.tokens.low:,}–{one.tokens.high:,})")
    return f"{one.gpu}: {', or '.join(parts) or 'how many samples a pass has is not known'}"


def source(report: MemoryReport) -> str:
    """The file that it was read from."""
    return f"{escape(report.source.path)} · {amount(report.source.events, 'event')}"
