"""Batches are copied to the GPU from ordinary memory, and the CPU waits for each copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import allocator as calibrated
from gpuprof.calibration import offload as offload_calibrated
from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.calibration.quoted import us
from gpuprof.diagnosis.detect.batches.micro_batches import micro_batches
from gpuprof.diagnosis.detect.cpu.around_copies import left_around
from gpuprof.diagnosis.detect.cpu.copy_waits import (
    LEAST_COPIED_BYTES,
    LEAST_SLOWDOWN,
    asynchronous,
    awaited_copies,
    copied_bytes,
    device_waits,
    in_copies,
    pageable_copies,
    runs_ahead_alone,
    within_a_pass,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.offloaded import Kind, find_offload
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.pair.candidates import Candidate, claim_where, is_copying
from gpuprof.diagnosis.detect.pair.quantities import MOST_WORK_LEFT, idle_ns, quantity
from gpuprof.diagnosis.detect.pair.signs import advised, long_wait_ns
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph, launcher_of
from gpuprof.replay.transform import removed, without_waits
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Bytes, Launches

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.facts import Facts

SMALL_COPY_BYTES: Assumed[Bytes] = 1 << 16
"""Largest copy that counts as small: of indices, a mask, a few numbers."""
FEWEST_SMALL_COPIES: Assumed[Launches] = 8
"""Fewest small copies per pass for a proposal: a batch has a few tensors."""
DOWN = "down"
"""Key of the proposal for copies to the CPU."""
COPYING = frozenset({"aten::to", "aten::_to_copy", "aten::copy_", "aten::lift_fresh"})
COPIES_DIFFER_BYTES: Assumed[Bytes] = 1_000_000
"""Copies from pageable memory of fewer bytes a step are no difference between two recordings: they cost a launch and
nothing more."""

PAGE = Page(
    id="pageable_copies",
    removes="transfer",
    title="Copies to the GPU block the CPU",
    means="""
The driver copies ordinary (pageable) memory through a pinned buffer of its own, chunk by chunk, and the call blocks
the CPU meanwhile. From pinned memory the GPU fetches the data itself at the full rate of the link, and with
`non_blocking=True` the CPU continues. Without it, even a copy of a few kilobytes ends only after all that was launched
before: the GPU then has nothing to do until the CPU has launched the beginning of the next step.
""",
    detected=f"""
Copies from pageable memory to the GPU of at least 1 MiB in total per step, if the step gets at least 5 % shorter when
it is replayed with pinned ones. Small tensors: at least {FEWEST_SMALL_COPIES} such copies a pass of at most 64 KiB
each, within forward or backward passes. Each waits for all that was launched before it, so that the CPU cannot run
ahead. Any other copies to the GPU that the CPU waits for, also from pinned memory, if the step gets at least
{100 * (LEAST_SLOWDOWN - 1):.0f} % shorter when it is replayed without these waits. Copies to pageable memory of at
least 1 MiB, unless the CPU computes with what is copied: for that [offload](offload.md) has a fix. Weights, states and
activations that are kept in host memory count both ways.
""",
    gain=f"""
The call takes {us(calibrated.COPY_CALL_NS.low)} to {us(calibrated.COPY_CALL_NS.high)} µs and does not wait; the copy
runs at the best rate of the link (measured, or from its specification; down to {calibrated.PINNED_RATE.low:g} of it).
The CPU still waits for copies to it. Activations: at best what it does around them becomes what it usually is, as
pinned memory is kept and not mapped again. Small tensors: their copies, with the ops around them and their waits, are
gone; at worst only the waits are. Of other copies that the CPU waits for, the waits go, and the copies stay.
""",
    wrong=f"""
Pinning costs a copy in CPU memory: let the DataLoader do it in its own thread, or pin reused buffers once. Data that
the training process creates in each step gains only the faster transfer. Where the CPU computes what is copied (an
offloaded optimizer, a loss), the fix is listed under *Worth trying* (probability
{offload_calibrated.PINNED_RESULTS.value:g}, assumed). Small tensors that differ in each step and are known to the CPU
alone have to be copied: the probability is {calibrated.SMALL_ON_GPU.value:g} (assumed); pin these, or copy them as one
tensor. Pinned buffers for copies to the CPU have to be kept and filled again: what uses them must not need the last
copy when the next one comes (probability {calibrated.PINNED_DOWN.value:g}, assumed).
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes pinned memory and asynchronous copies, and small tensors made on the GPU."""
    found = [*_pinned(case), *_small(case)]
    yield from found
    if all(one.key == DOWN for one in found):
        yield from _awaited(case)


def _small(case: Analysis) -> Iterator[Proposal]:
    """Proposes to make small tensors on the GPU, or only once, instead of copying them again and again."""
    trace, graph, links = case.trace, case.graph, case.timeline.links
    rows = trace.rows_named(trace.gpu.name, lambda text: "HtoD" in text and "Pageable" in text)
    rows &= (trace.gpu.bytes >= 0) & (trace.gpu.bytes <= SMALL_COPY_BYTES) & (links.op >= 0)
    copies = case.nodes_of_gpu(rows) & graph.on_gpu & np.isin(graph.phase, (FORWARD, BACKWARD, RECOMPUTE))
    count = case.per_step(int(copies.sum()))
    if count < FEWEST_SMALL_COPIES * (micro_batches(case) or 1):
        return
    rows = np.zeros(len(rows), bool)
    rows[graph.gpu_row[copies]] = True
    around = case.outermost(case.ops_named(COPYING.__contains__))
    begins = np.zeros(len(trace.ops), bool)
    begins[around] = True
    nesting = case.timeline.nesting.parent
    whole = climb(links.op[rows].astype(np.int64), nesting, begins)
    nodes = copies | case.nodes_within(case.ops_at(np.unique(whole[whole >= 0]).tolist()))
    waits = in_copies(case, device_waits(case), rows)
    host = nodes & ~graph.on_gpu
    took = duration(case.per_step(float(graph.duration_ns[host].sum())))
    text = (
        f"{count:,.0f} copies {case.unit.a} of at most {int(trace.gpu.bytes[rows].max()):,} bytes go to the GPU from"
        f" pageable memory within its passes; each waits for the GPU: {took} of CPU time {case.unit.a}"
    )
    yield Proposal(
        title="small tensors made on the GPU",
        evidence=spans(case, text, nodes),
        fix=code("torch.arange(n, device=x.device)")
        + "  # made there, not .to(device) of one on the CPU\n"
        + call("self.register_buffer", "mask", Code("mask"))
        + "  # one that stays the same: copied once, with the model",
        change=lambda graph: removed(without_waits(graph, waits), nodes),
        worst=lambda graph: without_waits(graph, waits),
        odds=calibrated.SMALL_ON_GPU.value,
        needs="what is copied is always the same, or can be computed on the GPU",
        claims=("offloaded_copies",),
        key="small",
    )


def _awaited(case: Analysis) -> Iterator[Proposal]:
    """Proposes not to wait for copies whose size costs nothing, but until whose end the CPU launches nothing: it does
    not run ahead of the GPU."""
    graph, waits = case.graph, awaited_copies(case)
    if not waits.any() or case.step_ns < LEAST_SLOWDOWN * case.step_of(without_waits(graph, waits)):
        return
    rows = case.trace.rows_named(case.trace.gpu.name, lambda text: "HtoD" in text)
    copies = case.nodes_of_gpu(rows) & graph.on_gpu
    waited = case.per_step(float((graph.recorded_end_ns - graph.recorded_start_ns)[waits].clip(0).sum()))
    count = case.per_step(float(waits.sum()))
    text = (
        f"{count:,.0f} copies {case.unit.a} to the GPU block the CPU for {duration(waited)}, until all that was"
        " launched before them has ended: it launches nothing ahead"
    )
    inside = within_a_pass(case, copies).any()
    yield Proposal(
        title="asynchronous copies to the GPU",
        evidence=spans(case, text, waits, waits=True),
        fix=asynchronous(case).by(PAGE.id),
        change=lambda graph: without_waits(graph, waits),
        worst=None if runs_ahead_alone(case) else lambda graph: graph,
        odds=calibrated.SMALL_ON_GPU.value if inside else 1.0,
        needs="what is copied within a pass is in memory that can be pinned" if inside else "",
        claims=("offloaded_copies",),
        key="awaited",
    )


def _pinned(case: Analysis) -> Iterator[Proposal]:
    """Pinned memory and asynchronous copies: of batches; of activations both ways; of what the GPU sends to the CPU."""
    offload = find_offload(case)
    kind = offload.kind if offload is not None else None
    up, down = (pageable_copies(case, way) for way in ("HtoD", "DtoH"))
    both = kind in ("activations", "optimizer", "weights")
    yield from _with_pinned(case, up | down if both else up, kind, up)
    if not both and kind not in ("ops", "copies"):  # these have a better fix
        yield from _with_pinned(case, down, kind, up)


def _with_pinned(case: Analysis, copies: Mask, offloaded: Kind | None, up: Mask) -> Iterator[Proposal]:
    """Some copies from or to pinned memory. `up`: those to the GPU, for which the CPU need not wait."""
    graph = case.graph
    sizes = copied_bytes(case)
    moved, to_gpu = (float(sizes[mask].sum()) / graph.steps for mask in (copies, copies & up))
    if moved < LEAST_COPIED_BYTES:
        return
    took = case.per_step(float(graph.duration_ns[copies].sum()))
    way = "to the GPU from" if to_gpu == moved else "to" if not to_gpu else "between the GPU and"
    text = (
        f"{moved / 1e6:,.1f} MB {case.unit.a} are copied {way} pageable memory, in {duration(took)} "
        f"({moved / max(took, 1.0):,.1f} GB/s), while the CPU is blocked"
    )
    best, usual, worst = _asynchronous(case, copies, up, moved, offloaded)
    odds, needs = 1.0, ""
    if not to_gpu:
        odds, needs = calibrated.PINNED_DOWN.value, "what is copied goes into buffers that are kept"
    elif offloaded in ("optimizer", "ops"):
        odds = offload_calibrated.PINNED_RESULTS.value
        needs = "what the CPU computes is written into pinned buffers that are kept"
    yield Proposal(
        title="pinned memory, asynchronous copies" if to_gpu else "pinned buffers for copies to the CPU",
        evidence=spans(case, text, copies),
        fix=_fix(case, offloaded) if to_gpu else _kept_buffer(),
        claims=("offloaded_copies",) if to_gpu else (),
        change=usual,
        best=best,
        worst=worst,
        odds=odds,
        needs=needs,
        key="" if to_gpu else DOWN,
    )


def _asynchronous(case: Analysis, copies: Mask, up: Mask, moved: float, offloaded: Kind | None) -> list[Change]:
    """The copies at the link's rate, and calls that return at once; the CPU still waits for what comes to it."""
    trace, graph, sizes = case.trace, case.graph, copied_bytes(case)
    rows = np.zeros(len(trace.gpu), bool)
    rows[graph.gpu_row[copies]] = True
    waits = in_copies(case, device_waits(case), rows)
    mine = np.zeros(len(rows), bool)
    mine[graph.gpu_row[copies & up]] = True
    needless = in_copies(case, waits, mine)
    source = launcher_of(graph)[copies]
    source = source[source >= 0]
    calls = np.zeros(len(trace.calls) + 1, bool)
    calls[graph.call[waits]] = True
    calls[-1] = False
    others = calls[graph.call] & ~graph.on_gpu & ~graph.waits
    others[source] = False
    rest = (graph.lane >= 0) & ~graph.waits & ~others
    rest[source] = False
    link = case.roofline.ceilings.link_bytes_per_s if case.roofline else None
    # PyTorch keeps pinned memory; pageable memory is mapped and unmapped for each tensor that hooks copy.
    mapped = offloaded == "activations"
    around = left_around(graph, copies, calls[graph.call] & ~graph.on_gpu) if mapped else np.ones(len(graph))

    def pinned(way: int) -> Change:
        def change(graph: Graph) -> Graph:
            graph = without_waits(graph, needless)
            duration = graph.duration_ns.copy()
            quick = (
                sizes[copies] / (link * calibrated.PINNED_RATE.falling[way]) * 1e9
                if link
                else duration[copies] / calibrated.PINNED_FASTER.value
            )
            duration[copies] = np.minimum(duration[copies], quick)
            duration[source] = np.minimum(duration[source], calibrated.COPY_CALL_NS.rising[way])
            duration[others] = np.minimum(duration[others], calibrated.COPY_CALL_NS.rising[way])
            if way == 0:
                duration *= around
            if moved > thresholds_calibrated.CACHE_BYTES.whole:
                duration[rest] *= calibrated.CACHE_LOSS.rising[way]
            return graph.with_durations(duration)

        return change

    return [pinned(way) for way in range(3)]


def _fix(case: Analysis, offloaded: Kind | None) -> Fix:
    """Pinned batches, or what keeps activations."""
    if offloaded == "activations":
        return as_fix(call("torch.autograd.graph.save_on_cpu", pin_memory=True)) + "  # where it is used"
    return asynchronous(case).by(PAGE.id)


def _kept_buffer() -> Fix:
    made = call("buffer = torch.empty_like", Code("x"), device="cpu", pin_memory=True)
    return (
        made
        + "  # once, and kept\n"
        + call("buffer.copy_", Code("x"), non_blocking=True)
        + "  # read after torch.cuda.synchronize() or an event"
    )


def _absent(case: Analysis) -> str | None:
    moved = float(copied_bytes(case)[pageable_copies(case, "HtoD")].sum()) / case.graph.steps
    shown = f"{moved / 1e6:,.2f}"
    some = f"{shown} MB {case.unit.a} are" if float(shown.replace(",", "")) else "nothing is"
    return f"{some} copied to the GPU from pageable memory"


ABSENT = Absent("pinned memory", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Fewer bytes in pageable memory, or copies that take less of the GPU's step."""
    took = quantity(a, b, lambda side: sum(ns for cell, ns in side.cells.items() if is_copying(cell)))
    pageable = quantity(a, b, lambda side: side.counts.pageable_bytes)
    waits, least = idle_ns(a, b, "transfer"), long_wait_ns(a, b)
    waited = waits.fell(to=MOST_WORK_LEFT, least=least) or advised(a, b, PAGE.id, took)
    if pageable.fell(least=COPIES_DIFFER_BYTES) or (waited and took.fell(to=MOST_WORK_LEFT, least=least)):
        yield Candidate(
            PAGE.id,
            "copies that block the CPU",
            f"copies that block the CPU: {quantity(a, b, lambda side: side.counts.blocking_copies)} {a.unit.a}, of "
            f"{pageable.a / 1e6:,.1f} → {pageable.b / 1e6:,.1f} MB in pageable memory; copies and waits for them "
            f"take {took.ms} ms of the GPU's {a.unit}",
            claim_where(is_copying),
            took.more,
        )


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    lowers=("blocking_copies", "slow_copies"),
    synonyms=(
        "pinned",
        "pin_memory",
        "pinned_memory",
        "non_blocking",
        "pageable",
        "small_copies",
        "to_device",
        "save_on_cpu",
    ),
    titles=(
        "pinned_memory_asynchronous_copies",
        "pinned_buffers_for_copies_to_the_cpu",
        "small_tensors_made_on_the_gpu",
        "asynchronous_copies_to_the_gpu",
    ),
)
