"""What must hold for any diagnosis, whatever was recorded: sums, orders of intervals, and texts that match numbers.

`broken` names what does not hold. Tests, the corpus and the mutations all use it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Combined, Finding
from gpuprof.diagnosis.written.diagnosis_json import dumps
from gpuprof.report.terminal.terminal import plain

LARGER_BATCH = "larger_batch"
_WORKS = re.compile(r"GPU works (?P<busy>[\d.,e+-]+) % of the ")
_STEP_TIME = re.compile(r"[\d.,]+ m?s an? (step|iteration|request|token)\b")
"""A step time in a summary, which only the headline is to state."""
OF_HOST, GROWN = ("launch", "python", "input", "transfer", "allocator"), 0.03
"""Causes of idle time that are the CPU's own, and the share of a step by which steps differ in them."""
_TRAINING_WORDS = ("batch_size=", "gradient_accumulation", "TrainingArguments(", "optim=")


def broken(diagnosis: Diagnosis) -> list[str]:
    """What does not hold for a diagnosis, in a few words each; empty if everything does."""
    checks = (_devices, _gaps, _kernels, _phases, _steps, _fixes, _verdict, _texts, _tables)
    return [f"{check.__name__[1:]}: {what}" for check in checks for what in check(diagnosis)]


def inapplicable(diagnosis: Diagnosis) -> list[str]:
    """Advice that does not apply to what was recorded: nothing for a sound recording; for a damaged one this is not
    checked."""
    return [*_grown(diagnosis), *_training_advice(diagnosis)]


def _grown(d: Diagnosis) -> Iterator[str]:
    """Waits for the CPU that removing the profiler makes longer."""
    if d.gaps is None or d.steps is None or not d.devices_estimated:
        return
    step = max(one.step_ns for one in d.devices_estimated)
    for name in OF_HOST:
        recorded = sum(one.ns for one in d.gaps.by_cause if one.cause == name) / d.steps.count
        estimated = sum(cause.ns for one in d.devices_estimated for cause in one.idle_by_cause if cause.cause == name)
        if estimated > recorded + GROWN * step:
            yield f"without the profiler the wait for {name} grows from {recorded:,.0f} to {estimated:,.0f} ns"


def _training_advice(d: Diagnosis) -> list[str]:
    if d.run is not None or not d.phases or any(p.phase in ("backward", "optimizer") for p in d.phases):
        return []
    words = [(one.id, word) for one in d.findings for word in _TRAINING_WORDS if word in one.fix]
    return [f"fixes: {name}: {word} where nothing is trained" for name, word in words]


def _length(diagnosis: Diagnosis) -> int | None:
    return None if diagnosis.window is None else diagnosis.window.end_ns - diagnosis.window.start_ns


def _devices(d: Diagnosis) -> Iterator[str]:
    for device in d.devices:
        parts = (device.compute_ns, device.communication_ns, device.copy_ns, device.idle_ns)
        if not sum(parts) == device.window_ns == _length(d):
            yield "parts are not the window"
        if device.busy_ns != device.window_ns - device.idle_ns:
            yield "busy is not the window less idle"
        if min(*parts, device.carry_in_ns, device.carry_out_ns) < 0 or device.carry_in_ns > device.busy_ns:
            yield "a part is negative, or more is carried in than ran"
        if device.cpu_bound_fraction is not None and not 0 <= device.cpu_bound_fraction <= 1:
            yield "the CPU-bound fraction is no share"
    for one in d.devices_estimated or ():
        if one.compute_ns + one.communication_ns + one.copy_ns + one.idle_ns != one.step_ns:
            yield "the parts of the estimated step are not the step"
        if sum(cause.ns for cause in one.idle_by_cause) != one.idle_ns:
            yield "the causes of estimated idle time are not all of it"


def _gaps(d: Diagnosis) -> Iterator[str]:
    gaps, length = d.gaps, _length(d) or 0
    if gaps is None:
        return
    if not sum(c.ns for c in gaps.by_cause) == gaps.total_ns == sum(one.idle_ns for one in d.devices):
        yield "causes are not the idle time"
    if sum(p.ns for p in gaps.by_phase) != gaps.total_ns or sum(p.count for p in gaps.by_phase) != gaps.count:
        yield "phases are not the gaps"
    if any(c.ns <= 0 for c in gaps.by_cause):
        yield "a cause without time"
    if not all(0 <= gap.start_ns < gap.start_ns + gap.ns <= length for gap in gaps.largest):
        yield "a gap outside of the window"


def _kernels(d: Diagnosis) -> Iterator[str]:
    kernels = d.kernels
    if kernels is None:
        return
    for name in ("by_category", "by_phase"):
        groups = getattr(kernels, name)
        if sum(g.ns for g in groups) != kernels.total_ns or sum(g.count for g in groups) != kernels.count:
            yield f"{name} is not all of them"
    if not 0 <= kernels.unattributed_ns <= kernels.total_ns or not 0 <= kernels.after_ns <= kernels.total_ns:
        yield "a part is more than the whole"
    if min((g.ns for g in (*kernels.top, *kernels.by_category, *kernels.by_op)), default=0) < 0:
        yield "negative time"
    roof = d.roofline
    if roof is not None:
        parts = (roof.compute_ns, roof.memory_ns, roof.latency_ns, roof.inefficient_ns, roof.unmodelled_ns)
        if sum(parts) != kernels.total_ns or min(parts) < 0:
            yield "the roofline's parts are not the kernels"
        over = max((v for v in (roof.mfu, roof.hfu) if v is not None), default=0) > 1
        if over and not any(issue.id == "beyond_peak" for issue in d.quality.issues):
            yield "more FLOPs than the device can do, without a word"


def _phases(d: Diagnosis) -> Iterator[str]:
    if d.phases and sum(p.ns for p in d.phases) != _length(d):
        yield "they are not the window"
    if any(p.busy_ns + p.idle_ns != p.ns or min(p.busy_ns, p.idle_ns) < 0 for p in d.phases):
        yield "busy and idle are not the phase"
    if any(min(r.ns, r.gpu_ns, r.busy_ns, r.launches) < 0 or r.busy_ns > r.gpu_ns for r in d.ranges):
        yield "a range is busy for longer than its work takes"


def _steps(d: Diagnosis) -> Iterator[str]:
    steps = d.steps
    if steps is None:
        return
    if steps.count != len(steps.each_ns) or steps.count < 1 or min(steps.each_ns) <= 0:
        yield "steps without time"
    elif sum(steps.each_ns) > (_length(d) or 0):
        yield "steps are longer than the window"
    budget = d.budget
    if budget is not None:
        if not budget.low <= budget.mean_ns <= budget.high:
            yield "the mean lies outside of its interval"
        parts = budget.usual_ns + budget.residual_ns + sum(one.mean_ns or 0 for one in budget.excess)
        if parts != budget.mean_ns:
            yield "the budget's parts are not the mean step"


def _fixes(d: Diagnosis) -> Iterator[str]:
    fixes: list[Finding | Combined] = [*d.findings, *([d.combined] if d.combined else [])]
    for one in fixes:
        name = one.id if isinstance(one, Finding) else "combined"
        if not 0 < one.step_ns.low <= one.step_ns.expected <= one.step_ns.high:
            yield f"{name}: step interval out of order"
        if not 0 < one.speedup.low <= one.speedup.expected <= one.speedup.high:
            yield f"{name}: speedup interval out of order"
        if name == LARGER_BATCH and one.speedup.high > one.work * 1.001:
            yield f"{name}: {one.work:g} times the work gains up to {one.speedup.high:.2f}"


def _verdict(d: Diagnosis) -> Iterator[str]:
    verdict = d.verdict
    if d.quality.status == "unusable" and (verdict.bound is not None or d.findings):
        yield "one of an unusable recording"
    if verdict.bound is not None and not verdict.summary:
        yield "no summary"
    if verdict.confidence is not None and not 0 <= verdict.confidence <= 1:
        yield "confidence is no share"
    if verdict.second is not None and "What leaves it unclear: " not in verdict.summary:
        yield "unclear, and no word of why"


def _texts(d: Diagnosis) -> Iterator[str]:
    json.loads(dumps(d), parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    shown = plain(d, 100)
    if not all(char == "\n" or char.isprintable() for char in shown):
        yield "characters that do not show"
    found = _WORKS.search(d.verdict.summary)
    if found is None or d.steps is None:
        return
    if stated := _STEP_TIME.search(d.verdict.summary[: found.end()]):
        yield f"the summary states a step time, {stated[0]!r}; the headline does"
    estimated = d.devices_estimated or ()
    busy = [1 - one.idle_ns / one.step_ns for one in estimated if one.step_ns] or [
        one.busy_ns / one.window_ns for one in d.devices if one.window_ns
    ]
    if not any(abs(float(found["busy"]) - 100 * share) <= 0.51 for share in busy):
        yield f"{found[0]!r} is no bar's"


def _tables(d: Diagnosis) -> Iterator[str]:
    if d.window is None:
        return
    tables, length = d.tables, _length(d) or 0
    if not (tables.steps()["ns"] > 0).all():
        yield "steps without time"
    if not tables.ops()["start_ns"].between(0, length, inclusive="left").all():
        yield "ops outside of the window"
    if d.kernels is not None and len(tables.kernels()) != d.kernels.count:
        yield "not all kernels"
    if d.gaps is not None:
        gaps = tables.gaps()
        causes = gaps[[column for column in gaps if str(column).endswith("_ns") and column != "start_ns"]]
        if len(gaps) != d.gaps.count or not (gaps["ns"] > 0).all() or not (causes >= 0).all(axis=None):
            yield "not all gaps, or gaps without time"
        if not (causes.sum(axis=1) == gaps["ns"]).all():
            yield "causes of a gap are not the gap"
