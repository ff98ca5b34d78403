"""The CPU waits for the GPU within a step, and the GPU then waits for the CPU."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as kernels_calibrated
from gpuprof.calibration import slow as calibrated
from gpuprof.diagnosis.detect.cpu.copy_waits import (
    LEAST_SLOWDOWN,
    asynchronous,
    awaited_batches,
    copies_to_device,
    device_waits,
    in_copies,
    runs_ahead_alone,
)
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.gradient_scaler import (
    GradientScaler,
    gradient_scaler,
    is_optimizer_step,
    without_checks,
)
from gpuprof.diagnosis.detect.cpu.offloaded import find_offload
from gpuprof.diagnosis.detect.cpu.wait_evidence import FRAMES_SHOWN, wait_evidence
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Absent, Claim, Page, Proposal
from gpuprof.diagnosis.detect.loops.expert_loops import find_loops
from gpuprof.diagnosis.detect.loops.recurrent_loops import fed_nodes
from gpuprof.diagnosis.detect.loops.tensor_loops import HOST, LISTS, TensorLoops, in_lists, reading_loops
from gpuprof.diagnosis.detect.losses.logged_values import LOG_EVERY
from gpuprof.diagnosis.detect.losses.metric_packages import checks_arguments
from gpuprof.diagnosis.detect.losses.value_chains import preparations
from gpuprof.diagnosis.detect.pair.candidates import Candidate, is_model_wait
from gpuprof.diagnosis.detect.pair.quantities import FEWEST_A_STEP, MOST_WORK_LEFT, quantity
from gpuprof.diagnosis.detect.pair.signs import advised
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, call, code, joined, other_way, without_call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.build.calls import STREAM_WAIT
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import removed, without_waits
from gpuprof.timeline.cpu.dispatch import has_ops
from gpuprof.timeline.cpu.runtime_calls import ALLOCATOR_CALL, SYNC_CALL
from gpuprof.tracefile.trace import ANNOTATION, I64, Mask
from gpuprof.units import Assumed, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.diagnosis.detect.pair.cells import Cell
    from gpuprof.diagnosis.detect.pair.facts import Facts

LOOK = re.compile(r"^aten::(item|_local_scalar_dense|is_nonzero|equal|allclose)$")
"""Ops that copy a value to the CPU to read it."""
COPIES = ("aten::to", "aten::_to_copy", "aten::copy_", "aten::cpu")
SHAPE = re.compile(r"^aten::(nonzero\w*|_nonzero\w*|masked_select|unique\w*|_unique\w*|repeat_interleave|bincount)$")
"""Ops whose result's size is a value on the GPU: the CPU waits for it to know what to allocate."""
CHECK = re.compile(r"^aten::(isnan|isinf|isfinite)$")
LEAST_GAIN_OVER_ONE: Assumed[Ratio] = 1.01
"""Several kinds of waits become one fix if it gains at least this many times what one kind gains."""

CLAIMS: tuple[Claim, ...] = ("values_read", "value_waits")
NO_CHECKS = call("torch.distributions.Distribution.set_default_validate_args", False)

PAGE = Page(
    id="syncs",
    title="The CPU waits for values from the GPU",
    means="""
`.item()`, `print(loss)`, `if tensor:`, `.cpu()`, `torch.cuda.synchronize()` and indexing with a mask block the CPU
until the GPU has finished everything queued. After that the queue is empty, and the GPU is idle until the CPU has
prepared the next launches. Distributions of torch read whether their arguments are valid, each time one is made.
""",
    detected="""
CPU calls that wait for a device, a stream or a copy to the CPU, grouped by the op that made them. Not counted: copies
of batches to the GPU (`pageable_copies`), calls of the allocator (`allocator`), and calls inside a loop over experts
(`expert_loop`), or between calls of a model on what the CPU copies to the GPU round after round (`python_loop`): the
values read may be needed for the next call. Waits count if the step gets at least 1 % shorter when it is replayed
without all of them: a wait that finds the GPU idle, or that ends soon, costs nothing. Several kinds of waits are also
replayed together, and with those for copies of batches, because the CPU runs ahead only where none of them stops it. A
loop that runs the same few ops on each of at least 8 tensors and reads the results (a norm of each gradient) is named.
""",
    gain=f"""
The calls no longer wait, and the ops that read a value are removed together with their copies, and with the ops on
small tensors directly before them, which only prepare what is read (at worst they all stay and only the wait is
removed). Then the step is replayed, and the CPU runs ahead where it can. Ops whose result size depends on the value
stay, without their wait. A loop over tensors becomes ops over lists: their CPU time is {HOST[1]:.2g} ({HOST[0]:.2g} to
{HOST[2]:.2g}) of the loop's, that of the Python around them {kernels_calibrated.OPTIMIZER_LOOP_PYTHON.value:g}, as
measured on optimizers; GPU time stays. Where a gradient scaler reads whether gradients overflowed, and the GPU has
bf16, its overflow check is removed as well: bf16 needs no scaler.
""",
    wrong="""
If the value decides what is computed next, it cannot be read later; compute with a mask instead. A wait at the end of
each step that only serves to time the step disappears when timing is switched off. With several ranks, waiting for
the others may cost a rank what it gains by running ahead: where communication costs more than the CPU, the gain is
zero at worst. Without the waits the CPU runs more batches ahead, which takes a little more memory.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """One proposal each for values that are looked at, for sizes that depend on values, and for explicit waits."""
    graph = case.graph
    waits = waiting_nodes(case)
    if not waits.any():
        return
    copies = awaited_batches(case)
    # No kind of wait is examined unless all waits together cost enough, alone or with those for copies to the GPU.
    alone_cost = case.step_ns >= LEAST_SLOWDOWN * _least(case, waits)
    if not alone_cost and not (copies.any() and _cost_more(case, waits, copies)):
        return
    nothing = np.zeros(len(graph), bool)
    looks, shapes, explicit = (waits & mask for mask in _kinds(case, waits))
    ops = _outermost_named(case, looks)
    own = _own_nodes(case, ops) & ~_loop_nodes(case) if looks.any() else nothing
    scaler = _needless_scaler(case, looks)
    if scaler is not None:
        own |= without_checks(scaler, graph)
    loops = reading_loops(case) if looks.any() else None
    alone = runs_ahead_alone(case)
    kinds: list[tuple[Mask, Proposal]] = []
    if looks.any():
        kinds.append((looks, Proposal(
            title=f"no values read from the GPU within the {case.unit}",
            evidence=wait_evidence(case, looks, "values read from the GPU", ops),
            fix=joined([_bf16(case)] * (scaler is not None) + [_look_fix(case)]).by("syncs"),
            change=_without(looks, own),
            best=_without(looks, own),
            worst=_without(looks, nothing) if alone else _unchanged,
            changes="" if scaler is None else "matrix multiplications round to bf16 rather than fp16",
            claims=CLAIMS,
            key="values",
        )))  # fmt: skip
    if shapes.any():
        kinds.append((shapes, Proposal(
            title="no sizes that depend on values",
            evidence=wait_evidence(case, shapes, "waits for the size of a result", _outermost_named(case, shapes)),
            fix=_size_fix(case, shapes).by("syncs"),
            change=_without(shapes, nothing),
            worst=None if alone else _unchanged,
            claims=CLAIMS,
            key="shapes",
        )))  # fmt: skip
    if explicit.any():
        kinds.append((explicit, Proposal(
            title=f"no torch.cuda.synchronize() in the {case.unit}",
            evidence=wait_evidence(case, explicit, "torch.cuda.synchronize() or a similar call", np.empty(0, np.int64)),
            fix=without_call(
                f"torch.cuda.synchronize() only every {LOG_EVERY} steps", "torch.cuda.synchronize"
            ).by("syncs")
            + "\nor, to time steps: "
            + call("torch.cuda.Event", enable_timing=True).otherwise()
            + ", which waits for nothing",
            change=_without(explicit, nothing),
            worst=None if alone else _unchanged,
            claims=CLAIMS,
            key="explicit",
        )))  # fmt: skip
    if loops is not None and (listed := _in_lists(case, kinds[0], loops, own)) is not None:
        kinds[0] = (kinds[0][0], listed)
    singles = [one for _, one in kinds]
    if copies.any() and kinds:
        kinds.append((copies, _awaited(case, copies)))
    if len(kinds) > 1:
        together = _together(case, kinds, own, alone)
        if LEAST_GAIN_OVER_ONE * case.step_of(together.change(graph)) < min(
            case.step_of(one.change(graph)) for _, one in kinds
        ):
            yield together
            return
    if alone_cost:
        yield from singles


def _cost_more(case: Analysis, waits: Mask, copies: Mask) -> bool:
    """Whether waits cost enough on top of those for copies to the GPU, which alone may keep the CPU from running
    ahead."""
    return case.step_of(without_waits(case.graph, copies)) >= LEAST_SLOWDOWN * _least(case, waits, copies)


def _awaited(case: Analysis, copies: Mask) -> Proposal:
    """Batches whose copies the CPU waits for as well: where it stops for one of both, it does not run ahead."""
    return Proposal(
        title=f"no waits for the GPU within the {case.unit}",
        evidence=wait_evidence(
            case, copies, "copies of batches to the GPU that the CPU waits for", np.empty(0, np.int64)
        ),
        fix=asynchronous(case),
        change=_without(copies, np.zeros(len(case.graph), bool)),
        claims=("offloaded_copies",),
    )


def _needless_scaler(case: Analysis, looks: Mask) -> GradientScaler | None:
    """A gradient scaler whose reads wait, on a GPU that multiplies in bf16, which needs none."""
    has_bf16 = case.roofline is not None and "bf16" in case.roofline.ceilings.flops
    found = gradient_scaler(case, case.ops_named(is_optimizer_step)) if has_bf16 and looks.any() else None
    return found if found is not None and (found.reads & looks).any() else None


def _bf16(case: Analysis) -> Fix:
    own = call("torch.autocast", "cuda", dtype=Code("torch.bfloat16"))
    own += "  # without a gradient scaler, which reads whether gradients overflow"
    return case.stack.fix(own, case.stack.setting({"bf16": True, "fp16": False}))


def _in_lists(case: Analysis, looks: tuple[Mask, Proposal], loops: TensorLoops, own: Mask) -> Proposal | None:
    """Proposes ops over lists for values that are read tensor by tensor, none of them read in the step; None if the
    lists gain nothing more. Ops that change the same tensors one after another, as clipping does, also become ops over
    lists."""
    waits, reads = looks

    def change(level: int) -> Change:
        lists = in_lists(loops, level)
        rest = _without(waits & ~loops.nodes, own & ~loops.nodes if level < 2 else np.zeros_like(own))
        return lambda graph: lists(rest(graph))

    if LEAST_GAIN_OVER_ONE * case.step_of(change(1)(case.graph)) >= case.step_of(reads.change(case.graph)):
        return None
    names = " → ".join(name.removeprefix("aten::") for name in loops.ops[:FRAMES_SHOWN])
    took = case.per_step(float(case.graph.duration_ns[loops.nodes & ~case.graph.on_gpu].sum()))
    text = (
        f"a loop over {loops.tensors:,} tensors {case.unit.a}, one after another ({names}):"
        f" {duration(took)} of CPU time"
    )
    return replace(
        reads,
        title=f"tensors in lists, and none read within the {case.unit}",
        evidence=spans(case, text, loops.nodes & ~case.graph.on_gpu),
        fix=joined([LISTS, reads.fix]),
        change=change(1),
        best=change(0),
        worst=change(2),
        key="lists",
    )


def _together(case: Analysis, kinds: list[tuple[Mask, Proposal]], own: Mask, alone: bool) -> Proposal:
    """All kinds of waits at once: the CPU runs ahead only where none of them stops it."""
    waits = np.logical_or.reduce([mask for mask, _ in kinds])
    worst = _without(waits, np.zeros(len(case.graph), bool))
    return Proposal(
        title=f"no waits for the GPU within the {case.unit}",
        evidence=tuple(one for _, proposal in kinds for one in proposal.evidence),
        fix=joined([proposal.fix for _, proposal in kinds]).by("syncs"),
        change=_without(waits, own),
        best=_without(waits, own),
        worst=worst if alone else _unchanged,
        claims=tuple({one: None for _, proposal in kinds for one in proposal.claims}),
        key="all",
    )


def _absent(case: Analysis) -> str | None:
    every, waits = _waits(case), waiting_nodes(case)
    if not waits.any():
        return None
    count, gone = round(case.per_step(float(waits.sum()))), case.step_ns - _least(case, waits)
    often = "less than once" if count < 1 else "once" if count == 1 else f"{count:,} times"
    kinds = (
        ("copies to the GPU", copies_to_device(case, every)),
        ("loops over experts", every & _loop_nodes(case)),
        ("calls for one row after another", every & fed_nodes(case)),
    )
    others = " and ".join(name for name, nodes in kinds if nodes.any())
    return (
        f"{f'apart from {others} ' if others else ''}the CPU waits {often} {case.unit.a} for the GPU, which adds"
        f" {duration(max(gone, 0.0))} to {duration(case.shown_ns)}"
    )


ABSENT = Absent("no waits for the GPU", _absent)


def _unchanged(graph: Graph) -> Graph:
    return graph


WAYS = (
    (
        re.compile(r"repeat_interleave"),
        call("torch.repeat_interleave", ..., output_size=Code("total")) + "  # total: known on the CPU",
    ),
    (re.compile(r"bincount"), code("torch.zeros(n).scatter_add_(0, ids, ones)") + "  # bincount asks for its size"),
    (re.compile(r"unique"), as_fix("unique values in the collator, on the CPU, as the batch's lengths")),
    (
        re.compile(r"nonzero|masked_select|index"),
        call("torch.nonzero_static", Code("mask"), size=Code("n")) + "  # n: known on the CPU",
    ),
)
"""An op that waits for the size of its result → how the library does without."""


def _size_fix(case: Analysis, shapes: Mask) -> Fix:
    """The replacements for the recorded ops first, then what always helps."""
    rows = np.unique(case.graph.scope[shapes])
    nesting, names = case.timeline.nesting, set[str]()
    for row in rows[rows >= 0].tolist():
        while row >= 0 and case.trace.ops.kind[row] != ANNOTATION:
            names.add(case.trace.strings[case.trace.ops.name[row]])
            row = int(nesting.parent[row])
    found = [way for pattern, way in WAYS if any(pattern.search(name) for name in names)]
    general = other_way("on all rows with a mask: torch.where, masked_fill, a loss with ignore_index")
    lengths = "lengths of a packed batch: made in the collator, and passed as numbers of Python (max_length=...)"
    return joined([*found, general, lengths])


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Fewer calls that wait for the GPU."""
    waits = quantity(a, b, lambda side: side.counts.syncs)
    # A single wait per step may be all that keeps the CPU from running ahead; the findings know whether it did.
    found = advised(a, b, PAGE.id, waits) and waits.fell(least=1.0)
    if found or waits.fell(to=MOST_WORK_LEFT, least=FEWEST_A_STEP / 2):
        # A CPU that no longer waits also launches ahead: that saves idle time with the causes launch and python.
        weight = max(waits.difference, 1.0)

        def claim(cell: Cell) -> float:
            if cell[:2] == ("idle", "sync"):
                return weight * FEWEST_A_STEP
            return weight if is_model_wait(cell) else 0.0

        yield Candidate(
            PAGE.id,
            "waits of the CPU for the GPU",
            f"calls that wait for the GPU: {waits} {a.unit.a}",
            claim,
            waits.more,
        )


def _least(case: Analysis, waits: Mask, copies: Mask | None = None) -> float:
    """Step time without any of these waits and without the work of their ops, ns. `copies`: waits that also go, while
    their ops stay."""
    own, scaler = _own_nodes(case, _outermost_named(case, waits)), _needless_scaler(case, waits)
    return case.step_of(
        _without(
            waits if copies is None else waits | copies,
            own if scaler is None else own | without_checks(scaler, case.graph),
        )(case.graph)
    )


def waiting_nodes(case: Analysis) -> Mask:
    """Waits for the device that nothing else explains: no copies to the GPU, no allocator, no expert loop, no copies of
    data that is kept in host memory or that the CPU computes on."""
    waits = _waits(case)
    if not waits.any():
        return waits
    waits &= ~copies_to_device(case, waits) & ~_loop_nodes(case) & ~fed_nodes(case)
    found = find_offload(case) if waits.any() else None
    if found is None:
        return waits
    copies = np.zeros(len(case.trace.gpu), bool)
    copies[case.graph.gpu_row[found.copies]] = True
    return waits & ~in_copies(case, waits, copies)


def _waits(case: Analysis) -> Mask:
    """Waits for the device, except the allocator's."""
    graph, trace, waits = case.graph, case.trace, device_waits(case)
    if not waits.any():
        return waits
    allocator = trace.rows_named(trace.calls.name, ALLOCATOR_CALL.search)
    return waits & ~np.append(allocator, False)[graph.call]


def _kinds(case: Analysis, waits: Mask) -> tuple[Mask, Mask, Mask]:
    """The waits split into those for values, for sizes, and those outside ops."""
    graph, trace = case.graph, case.trace
    sizes = np.append(case.ops_within(case.ops_named(SHAPE.search)), False)[graph.scope]
    in_op = np.append(trace.ops.kind != ANNOTATION, False)[graph.scope]
    called = np.append(trace.rows_named(trace.calls.name, SYNC_CALL.search), False)[graph.call]
    looks = waits & in_op & ~sizes
    if not has_ops(trace):
        looks |= waits & np.append(_after_fetches(case), False)[graph.call]
    return looks, waits & sizes, waits & ~in_op & called & ~looks


def _after_fetches(case: Analysis) -> Mask:
    """Calls that wait for a stream on which their thread's last launch was a copy to the CPU: this is how PyTorch reads
    a value, if ops were not recorded."""
    trace, links = case.trace, case.timeline.links
    calls = trace.calls
    fetches = np.zeros(len(calls), bool)
    down = trace.rows_named(trace.gpu.name, lambda text: "DtoH" in text) & (links.call >= 0)
    fetches[links.call[down]] = True
    launches = np.zeros(len(calls), bool)
    launches[links.call[links.call >= 0]] = True
    waits = trace.rows_named(calls.name, STREAM_WAIT.search)
    found = np.zeros(len(calls), bool)
    for thread in np.unique(calls.thread[waits]).tolist():
        own = np.flatnonzero((calls.thread == thread) & (waits | launches))
        own = own[np.argsort(calls.start_ns[own], kind="stable")]
        last = np.maximum.accumulate(np.where(launches[own], np.arange(len(own)), -1))
        found[own] = waits[own] & (last >= 0) & fetches[own[np.maximum(last, 0)]]
    return found


def _outermost_named(case: Analysis, waits: Mask) -> I64:
    """Rows of the outermost ops (not annotations) around some waits."""
    reads, parent = _reads(case), case.timeline.nesting.parent
    rows = np.unique(case.graph.scope[waits])
    rows = rows[rows >= 0]
    while True:
        above = parent[rows]
        # An enclosing op that does more, such as autograd's or a compiled region, is not part of the read.
        up = (above >= 0) & reads[above]
        if not up.any():
            return np.unique(rows)
        rows = np.where(up, above, rows)


def _reads(case: Analysis) -> Mask:
    """Ops that do nothing but read a value: `item` and its like, and copies."""
    return case.ops_named(lambda text: LOOK.search(text) or text in COPIES)


def _own_nodes(case: Analysis, ops: I64) -> Mask:
    """Nodes of the ops themselves, their copies on the device included, and of ops that only prepare what they read
    with the Python between them; of explicit reads only."""
    mask = case.ops_at(ops.tolist()) & _reads(case)
    prepared = nodes_in(case.graph, preparations(case, np.flatnonzero(mask))) >= 0
    return (case.nodes_within(mask) | (prepared & ~_other_python(case))) & ~case.graph.waits


def _other_python(case: Analysis) -> Mask:
    """Python between ops that takes so long that it must do work of its own (a reward function that asks a judge), and
    stays if nothing is read."""
    graph = case.graph
    between = np.append(case.trace.ops.kind == ANNOTATION, True)[graph.scope] & (graph.call < 0) & ~graph.on_gpu
    return between & (graph.duration_ns >= calibrated.STRETCH_NS.value)


def _loop_nodes(case: Analysis) -> Mask:
    """Nodes within loops over experts; found once for a case."""
    if "expert_loop_nodes" not in case.memo:
        loops = find_loops(case)
        none = np.zeros(len(case.graph), bool)
        case.memo["expert_loop_nodes"] = none if loops is None else nodes_in(case.graph, loops.stretches) >= 0
    return case.memo["expert_loop_nodes"]


def _without(waits: Mask, own: Mask) -> Change:
    def change(graph: Graph) -> Graph:
        graph = without_waits(graph, waits)
        return removed(graph, own) if own.any() else graph

    return change


def _look_fix(case: Analysis) -> Fix:
    chosen = code("torch.where(...)") + "  # instead of `if tensor:`"
    torch = joined(
        (
            *([NO_CHECKS] * checks_arguments(case)),
            code("total += loss.detach()") + f"  # on the GPU; total.item() every {LOG_EVERY} steps",
            code("torch.nn.utils.clip_grad_norm_(parameters, limit, foreach=True)")
            + "  # all norms at once, none read",
            chosen,
        )
    )
    if case.workload.is_inference:
        return (
            as_fix(
                "keep results on the GPU until all are computed: one .cpu() at the end\n"
                f"test for the end of a sequence every {LOG_EVERY} tokens, not after each\n"
            )
            + chosen
        )
    checks = case.ops_named(CHECK.search).any()
    extra = {"logging_nan_inf_filter": False} if checks else {}
    note = "\nand in callbacks and losses of your own: " + torch
    return case.stack.fix(torch, case.stack.setting({"logging_steps": LOG_EVERY}, extra, note=note))


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    lowers=("waiting_for_gpu", "blocking_copies"),
    synonyms=("sync", "item", "synchronize", "synchronization", "cpu_sync", "loss_item"),
    titles=(
        "no_values_read_from_the_gpu_within_the_step",
        "no_sizes_that_depend_on_values",
        "no_torch_cuda_synchronize_in_the_step",
        "no_waits_for_the_gpu_within_the_step",
        "tensors_in_lists_and_none_read_within_the_step",
    ),
)
