"""What the memory peak of a run consists of, and what each change would save and cost: memory from the footprint, time
from `memory_time`."""

from __future__ import annotations

from collections.abc import Sequence

from gpuprof.calibration import memory as calibrated
from gpuprof.costs.hardware import Gpu
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.memory.memory_time import step_with
from gpuprof.diagnosis.projection_input.memory_input import weight_bytes
from gpuprof.diagnosis.projection_input.recorded_subject import subject_of
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.errors import GpuprofError
from gpuprof.memory.advice import Advice, Fits, Moved, PeakPart, Remedy
from gpuprof.projection.memory.footprint import Footprint
from gpuprof.projection.memory.memory_fixes import (
    OPTIMIZER,
    MemoryFix,
    checkpointing_every,
    recorded_footprint,
)
from gpuprof.projection.memory.paging import moved_ns
from gpuprof.projection.memory.recorded_memory import RecordedMemory, fit, usable_bytes
from gpuprof.projection.projection import MemoryFit
from gpuprof.projection.subject import Subject
from gpuprof.units import Assumed, Ratio
from gpuprof.value_range import Range

TOGETHER = "together"
MUCH_UNUSED: Assumed[Ratio] = 1.05
"""Reserved / allocated memory from which on expandable segments are suggested."""


def memory_advice(diagnosis: Diagnosis, gpus: Sequence[Gpu] = (), together: Sequence[str] = ()) -> Advice | None:
    """The advice for a run, for the recorded GPU and further `gpus`; None if the run did not measure its peak, or
    cannot be replayed.

    together: ids of changes to combine into one more remedy. Raises GpuprofError for one that this recording does not
    offer, or whose effect is unknown.
    """
    case = analysis_of(diagnosis)
    if case is None or diagnosis.run is None or case.devices > 1:  # it would be unknown which GPU the peak belongs to
        return None
    try:
        subject = subject_of(diagnosis)
    except GpuprofError:
        return None
    memory = subject.memory
    if memory is None:
        return None
    found = recorded_footprint(memory)
    tokens, places = memory.recorded.tokens, (subject.gpu, *(gpu for gpu in gpus if gpu != subject.gpu))
    fixes = subject.memory_fixes
    remedies = [_remedy(fix, (fix,), found, subject, case, places) for fix in fixes]
    remedies += _segments(memory)
    if together:
        chosen = _chosen(fixes, together, memory)
        remedies.append(_remedy(_together(chosen), chosen, found, subject, case, places))
    remedies.sort(key=lambda one: -(one.saved_bytes or 0))
    return Advice(
        peak_bytes=_peak(memory),
        reserved_bytes=memory.reserved_bytes,
        static_bytes=memory.allocated_bytes,
        owners=_owners(memory, found, diagnosis.run.model or {}),
        tokens=round(tokens),
        batch=subject.pass_samples,
        now_ns=round(subject.step_ns.expected),
        fits=tuple(fits(gpu, found, subject) for gpu in places),
        remedies=tuple(remedies),
    )


def _peak(memory: RecordedMemory) -> int:
    return round(memory.allocated_bytes + memory.recorded.above_bytes)


def fits(gpu: Gpu, found: Footprint, subject: Subject, paged_bytes: float = 0.0) -> Fits:
    """The largest batch and the longest samples of a footprint that fit a GPU; the optimizer's paged state takes
    `paged_bytes` in addition, if there is room."""
    assert subject.memory is not None
    tokens, batch = subject.memory.recorded.tokens, subject.pass_samples
    own = subject.memory_bytes if gpu == subject.gpu else None
    use = found.usage()
    one = fit(gpu, use, tokens, batch, own)
    # The length that one sample can have. Attention scores grow faster with length, so with them it is unknown.
    known = batch and not found.likely.scores
    length = _largest(fit(gpu, use, tokens, tokens / batch, own)) if known and batch else None
    return Fits(gpu.name, one.usable_bytes, _largest(one), length, _moved(gpu, paged_bytes))


def _moved(gpu: Gpu, state_bytes: float) -> Moved | None:
    found = moved_ns(gpu, state_bytes) if state_bytes else None
    return None if found is None else Moved(round(state_bytes), Range(*map(round, found)))


def _largest(found: MemoryFit) -> Range | None:
    ends = found.largest_batch_low, found.largest_batch, found.largest_batch_high
    low, likely, high = ends
    if low is None or likely is None or high is None:
        return None
    return Range(low, likely, high)


def _remedy(
    fix: MemoryFix,
    made_of: Sequence[MemoryFix],
    found: Footprint,
    subject: Subject,
    case: Analysis,
    places: Sequence[Gpu],
) -> Remedy:
    """The remedy of one change, or of several combined; `made_of`: the single changes."""
    memory = subject.memory
    assert memory is not None
    changes = fix.changes_training or None
    if fix.change is None:
        return Remedy(fix.id, fix.title, None, None, None, None, changes, fix.unknown, ())
    after = fix.change(found)
    low, likely, high = (max(round(end), 0) for end in after.peak_bytes(memory.recorded.tokens))
    step, why = step_with(made_of, case, memory)
    if step is not None and fix.moved_bytes:
        room = usable_bytes(subject.gpu, subject.memory_bytes) - likely
        step = _with_paging(step, fix.moved_bytes, subject.gpu, room)
    return Remedy(
        id=fix.id,
        title=fix.title,
        peak_bytes=Range(low, likely, high),
        saved_bytes=round(found.peak_bytes(memory.recorded.tokens)[1]) - likely,
        step_ns=step,
        step_unknown=why,
        changes=changes,
        unknown=None,
        fits=tuple(fits(gpu, after, subject, fix.moved_bytes) for gpu in places),
    )


def _with_paging(step: Range, state_bytes: float, gpu: Gpu, room_bytes: float) -> Range:
    """The recorded step with paged optimizer state if `room_bytes` of GPU memory are free."""
    more = moved_ns(gpu, state_bytes, room_bytes) or (0.0, 0.0, 0.0)
    return Range(*(round(ns + each) for ns, each in zip((step.low, step.expected, step.high), more, strict=True)))


def _chosen(fixes: Sequence[MemoryFix], names: Sequence[str], memory: RecordedMemory) -> list[MemoryFix]:
    """The changes with these ids. Raises GpuprofError for one that is not offered or has an unknown effect, and for two
    that exclude each other."""
    known = {one.id: one for one in fixes}
    chosen: list[MemoryFix] = []
    for name in dict.fromkeys(names):
        fix = known.get(name) or checkpointing_every(memory, name)
        if fix is None:
            raise GpuprofError(f"there is no change {name!r} for this run; choose from {', '.join(known)}")
        if fix.change is None:
            raise GpuprofError(f"{fix.title}: {fix.unknown}")
        other = next((one for one in chosen if one.replaces and one.replaces == fix.replaces), None)
        if other is not None:
            raise GpuprofError(f"{other.id} and {fix.id}: only one of the two can be made")
        chosen.append(fix)
    return chosen


def _together(chosen: Sequence[MemoryFix]) -> MemoryFix:
    """Several changes combined into one, in the order given."""
    other_optimizer = any(one.replaces == OPTIMIZER for one in chosen)

    def change(found: Footprint) -> Footprint:
        for one in chosen:
            made = (other_optimizer and one.with_other_state) or one.change
            assert made is not None
            found = made(found)
        return found

    says = "; ".join(one.changes_training for one in chosen if one.changes_training)
    moved = sum(one.moved_bytes for one in chosen)
    return MemoryFix(TOGETHER, " + ".join(one.title for one in chosen), change, says, moved_bytes=moved)


def _segments(memory: RecordedMemory) -> list[Remedy]:
    """Expandable segments, if much memory is reserved that no tensor uses."""
    peak = _peak(memory)
    left = round(peak * (1 + calibrated.EXPANDABLE_LEFT.value))
    if memory.reserved_bytes is None or memory.reserved_bytes < MUCH_UNUSED * left:
        return []
    why = "mapping pages takes CPU time that is not in the recording"
    return [Remedy("expandable_segments", "expandable segments", Range(peak, peak, peak),
                   memory.reserved_bytes - left, None, why, None, None, ())]  # fmt: skip


# -- owners


def _owners(memory: RecordedMemory, found: Footprint, model: dict) -> tuple[PeakPart, ...]:
    """Who holds memory at the recorded peak: weights, state and gradients by their sizes, the rest by the footprint."""
    recorded, trained, peak = memory.recorded, memory.trained, _peak(memory)
    left = memory.allocated_bytes
    parts: dict[str, int] = {}

    def take(owner: str, size: float) -> None:
        nonlocal left
        parts[owner] = min(round(size), left)
        left -= parts[owner]

    lora = (model.get("lora") or {}).get("parameters") or 0
    adapters = lora * (4 if trained and trained.single_adapters else 2)
    take("adapters", adapters)
    take("weights", max(weight_bytes(model) - adapters, 0.0))
    if trained is not None:
        take("optimizer_state", trained.state_bytes)
    take("gradients", recorded.gradient_bytes)
    above = peak - memory.allocated_bytes
    now = found.likely
    if now.floor_bytes and now.line().at(recorded.tokens) <= now.floor_bytes:
        parts["workspace"] = above
    else:
        shares = {
            "activations": (now.layers + now.scores) * recorded.tokens,
            "logits" if now.logits >= now.backward else "backward_temporaries":
                max(now.logits, now.backward) * recorded.tokens,
        }  # fmt: skip
        # At a peak in the loss there are no gradients yet, though they are part of what is allocated between steps.
        parts["gradients"] -= min(parts["gradients"], round(max(-now.fixed_bytes, 0.0)))
        for owner, size in shares.items():
            parts[owner] = parts.get(owner, 0) + int(size)
    parts["other"] = peak - sum(parts.values())
    if parts["other"] < 0:
        largest = max(parts, key=lambda owner: parts[owner])
        parts[largest] += parts.pop("other")
    named = [PeakPart(owner, size) for owner, size in parts.items() if size]
    return tuple(sorted(named, key=lambda one: -one.bytes))
