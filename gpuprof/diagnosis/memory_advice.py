"""What a recorded run's peak is made of, and what each change would save and cost: memory from the footprint, time from
one replay of the recorded steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from gpuprof.calibration import memory as calibrated
from gpuprof.costs.hardware import Gpu
from gpuprof.diagnosis.case import Case, Change
from gpuprof.diagnosis.diagnosis import Diagnosis
from gpuprof.diagnosis.findings import adapter_casts, eager_attention, optimizer, padding, recompute
from gpuprof.diagnosis.findings.larger_batch import scaled_batch
from gpuprof.diagnosis.predict import predict
from gpuprof.diagnosis.projection_input.memory import weight_bytes
from gpuprof.diagnosis.projection_input.subject import subject_of
from gpuprof.diagnosis.proposal import Finder, Proposal
from gpuprof.errors import GpuprofError
from gpuprof.memory.advice import Advice, Bounds, Fits, Part, Remedy
from gpuprof.projection.batch import model_phases
from gpuprof.projection.footprint import Footprint
from gpuprof.projection.memory import RecordedMemory, fit
from gpuprof.projection.memory_fixes import EVERY_SECOND, MemoryFix, memory_fixes, recorded_footprint
from gpuprof.projection.projection import MemoryFit
from gpuprof.projection.subject import Subject
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import FORWARD, OPTIMIZER

FINDERS: dict[str, Finder] = {
    "no_checkpointing": recompute.find,
    "fused_attention": eager_attention.find,
    "half_adapters": adapter_casts.find,
    "fused_optimizer": optimizer.find,
    "equal_passes": padding.find,
}
"""Changes that a finding replays."""
TOGETHER = "together"
NO_REPLAY = {
    TOGETHER: "several changes are not replayed at once",
    "chunked_loss": "the kernels of such a loss are not in the recording",
    "offloaded_optimizer": "how fast this CPU updates the parameters is not in the recording",
}
MUCH_UNUSED = 1.05
"""Reserved over allocated from which on it is worth a word."""
REPEATED = (0.85, 1.0, 1.1)
"""Of the forward pass what checkpointing repeats: neither head nor loss, but with work of its own."""


def memory_advice(diagnosis: Diagnosis, gpus: Sequence[Gpu] = (), together: Sequence[str] = ()) -> Advice | None:
    """The advice for a run, for the recorded GPU and further `gpus`; None where it did not measure its peak, or cannot
    be replayed.

    together: ids of changes that are made at once, as one more remedy. Raises GpuprofError for one that this recording
    does not offer, or whose effect is not known.
    """
    case = diagnosis._case
    if case is None or diagnosis.run is None or case.devices > 1:  # whose peak it is would not be known
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
    fixes = memory_fixes(memory, subject.pass_tokens)
    remedies = [_remedy(fix, found, subject, case, places) for fix in fixes]
    remedies += _segments(memory)
    if together:
        remedies.append(_remedy(_together(fixes, together), found, subject, case, places))
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


def fits(gpu: Gpu, found: Footprint, subject: Subject) -> Fits:
    """The largest batch and the longest samples that a GPU holds of a footprint."""
    assert subject.memory is not None
    tokens, batch = subject.memory.recorded.tokens, subject.pass_samples
    own = subject.memory_bytes if gpu == subject.gpu else None
    use = found.usage()
    one = fit(gpu, use, tokens, batch, own)
    # Samples as long as a pass of one; written-out scores grow faster than that, so that nothing is said with them.
    known = batch and not found.likely.scores
    length = _largest(fit(gpu, use, tokens, tokens / batch, own)) if known and batch else None
    return Fits(gpu.name, one.usable_bytes, _largest(one), length)


def _largest(found: MemoryFit) -> Bounds | None:
    ends = found.largest_batch_low, found.largest_batch, found.largest_batch_high
    low, likely, high = ends
    if low is None or likely is None or high is None:
        return None
    return Bounds(low, likely, high)


def _remedy(fix: MemoryFix, found: Footprint, subject: Subject, case: Case, places: Sequence[Gpu]) -> Remedy:
    memory = subject.memory
    assert memory is not None
    changes = fix.changes_training or None
    if fix.change is None:
        return Remedy(fix.id, fix.title, None, None, None, None, changes, fix.unknown, ())
    after = fix.change(found)
    low, likely, high = (round(end) for end in after.peak_bytes(memory.recorded.tokens))
    step, why = step_with(fix, case, memory)
    return Remedy(
        id=fix.id,
        title=fix.title,
        peak_bytes=Bounds(low, likely, high),
        saved_bytes=round(found.peak_bytes(memory.recorded.tokens)[1]) - likely,
        step_ns=step,
        step_unknown=why,
        changes=changes,
        unknown=None,
        fits=tuple(fits(gpu, after, subject) for gpu in places),
    )


def _together(fixes: Sequence[MemoryFix], names: Sequence[str]) -> MemoryFix:
    """Several changes as one, in the order in which they are named."""
    known = {one.id: one for one in fixes}
    for name in names:
        if name not in known:
            raise GpuprofError(f"there is no change {name!r} for this run; choose from {', '.join(known)}")
        if known[name].change is None:
            raise GpuprofError(f"{known[name].title}: {known[name].unknown}")
    chosen = [known[name] for name in dict.fromkeys(names)]

    def change(found: Footprint) -> Footprint:
        for one in chosen:
            assert one.change is not None
            found = one.change(found)
        return found

    says = "; ".join(one.changes_training for one in chosen if one.changes_training)
    return MemoryFix(TOGETHER, " + ".join(one.title for one in chosen), change, says)


def _segments(memory: RecordedMemory) -> list[Remedy]:
    """Expandable segments, where much is reserved that no tensor uses."""
    peak = _peak(memory)
    left = round(peak * (1 + calibrated.EXPANDABLE_LEFT.value))
    if memory.reserved_bytes is None or memory.reserved_bytes < MUCH_UNUSED * left:
        return []
    why = "mapping pages takes CPU time that is not in the recording"
    return [Remedy("expandable_segments", "expandable segments", Bounds(peak, peak, peak),
                   memory.reserved_bytes - left, None, why, None, None, ())]  # fmt: skip


# -- time


def step_with(fix: MemoryFix, case: Case, memory: RecordedMemory) -> tuple[Bounds | None, str | None]:
    """The mean step with a change, ns; or why it is not known."""
    if fix.id in NO_REPLAY:
        return None, NO_REPLAY[fix.id]
    finder = FINDERS.get(fix.id)
    if finder is not None:
        proposal = next(iter(finder(case)), None)
        if proposal is None:
            return None, "its finding does not see in this recording what it would replace"
        return _bounds(case, proposal), None
    changes = _changes(fix.id, case, memory)
    if changes is None:
        return None, "nothing in the recording says what it would take"
    best, usual, worst = changes
    return _bounds(case, Proposal(fix.title, (), "", usual, best, worst)), None


def _bounds(case: Case, proposal: Proposal) -> Bounds:
    """The step for the recorded work."""
    found = predict(case, proposal)
    return Bounds(*(round(ns / proposal.work) for ns in (found.low, found.expected, found.high)))


def _changes(name: str, case: Case, memory: RecordedMemory) -> tuple[Change, Change, Change] | None:
    """What a change does to the graph at best, usually, at worst."""
    makers: dict[str, Callable[[int], Change]] = {
        "checkpointing": lambda level: partial(_repeats, share=REPEATED[level]),
        "checkpointing_half": lambda level: partial(_repeats, share=EVERY_SECOND * REPEATED[level]),
        "half_micro_batch": lambda level: partial(_twice, smaller=scaled_batch(case, 0.5, level)),
        "half_length": lambda level: scaled_batch(case, 0.5, level),
    }
    if name == "eight_bit_optimizer" and memory.trained is not None and case.run is not None:
        tensors = float((case.run.optimizer or {}).get("tensors") or 0)
        if not tensors or case.roofline is None:
            return None
        # Weights are read and written, gradients and, twice, a state of two bytes read, at the memory's ceiling.
        moved = 3 * memory.trained.gradient_bytes + 4 * memory.trained.parameters
        moved_ns = 1e9 * moved / case.roofline.ceilings.memory_bytes_per_s
        makers[name] = lambda level: partial(
            _per_tensor, host_ns=tensors * calibrated.EIGHT_BIT_HOST_NS.rising[level],
            gpu_ns=tensors * calibrated.EIGHT_BIT_GPU_NS.rising[level] + moved_ns,
        )  # fmt: skip
    make = makers.get(name)
    return None if make is None else (make(0), make(1), make(2))


def _repeats(graph: Graph, share: float) -> Graph:
    """The forward pass a second time, where the backward pass needs it: as long again, on the CPU and the GPU."""
    return scaled(graph, (graph.phase == FORWARD) & ~graph.waits, 1 + share)


def _twice(graph: Graph, smaller: Change) -> Graph:
    """Each pass twice, with half the batch."""
    less = smaller(graph)
    return scaled(less, model_phases(less) & ~less.waits, 2.0)


def _per_tensor(graph: Graph, host_ns: float, gpu_ns: float) -> Graph:
    """The optimizer's step as a kernel for each tensor."""
    own = graph.phase == OPTIMIZER
    for nodes, ns in ((own & graph.on_gpu, gpu_ns), (own & ~graph.on_gpu & ~graph.waits, host_ns)):
        now = float(graph.duration_ns[nodes].sum()) / graph.steps
        if now > 0:
            graph = scaled(graph, nodes, ns / now)
    return graph


# -- owners


def _owners(memory: RecordedMemory, found: Footprint, model: dict) -> tuple[Part, ...]:
    """What holds the recorded peak: sizes of weights, state and gradients as they are, the rest by the footprint."""
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
        # In a loss there are no gradients yet: what was allocated between steps was not all there.
        parts["gradients"] -= min(parts["gradients"], round(max(-now.fixed_bytes, 0.0)))
        for owner, size in shares.items():
            parts[owner] = parts.get(owner, 0) + int(size)
    parts["other"] = peak - sum(parts.values())
    if parts["other"] < 0:
        largest = max(parts, key=lambda owner: parts[owner])
        parts[largest] += parts.pop("other")
    named = [Part(owner, size) for owner, size in parts.items() if size]
    return tuple(sorted(named, key=lambda one: -one.bytes))
