"""Optimizer states, weights or activations are kept in host memory although the GPU has room for them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels
from gpuprof.calibration import offload as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.around_copies import left_around, left_of_freeing
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.offloaded import Kind, Offload, computed, find_offload, trained_parameters
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart, part_of
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.repeated.recomputed_passes import free_bytes
from gpuprof.diagnosis.result.fix import Code, Fix, as_fix, call, code, joined
from gpuprof.diagnosis.sentences import GIB, duration
from gpuprof.replay.cpu_compute import without_launches
from gpuprof.replay.graph import COPY, SYNC, Graph
from gpuprof.replay.transform import scaled, without_edges
from gpuprof.timeline.phases import OPTIMIZER
from gpuprof.tracefile.trace import ANNOTATION, F64, Mask
from gpuprof.units import Assumed, Convention, Ratio, Share, Steps

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

COPIES = re.compile(r"^aten::(to|_to_copy|copy_|cpu|cuda|clone|contiguous|pin_memory|_pin_memory)$")
"""Ops that copy a tensor and do nothing else with it."""
PASSES = re.compile(r"^aten::(_foreach_)?(mul|add|sub|div|lerp|addcmul|addcdiv|sqrt|pow|maximum|neg|sign)_?$")
"""Ops of which each goes once over a state of the optimizer."""
_PAGED = re.compile(r"Paged")
"""Optimizers of bitsandbytes whose states lie in unified memory."""
_MOMENTS_BYTES: Convention[Ratio] = 8.0
_MOMENTS_TRAFFIC: Convention[Ratio] = 16.0
"""Bytes per parameter of two moments in 32 bits, and those that a step reads and writes of them; in 8 bits a
quarter."""
EIGHT_BIT_MOMENTS: Convention[Share] = 0.25
"""Bytes of moments in 8 bits over those in fp32."""
PAGING_SLOWER: Assumed[Ratio] = 3.0
"""Kernels of a paged optimizer that take this many times what they should wait for pages."""

STEPS_BETWEEN_COPIES: Assumed[Steps] = 20
"""From one copy of all weights to the next where the CPU averages or measures them: an average over a thousand steps
hardly differs, and a log line is as useful."""

PAGE = Page(
    id="offload",
    title="Training state is kept in host memory although the GPU has room",
    means="""
Offloading (DeepSpeed's ZeRO-Offload, FSDP's `CPUOffload`, accelerate's hooks, checkpoints on the CPU) saves GPU
memory: gradients are copied to the CPU, the CPU runs the optimizer, weights are copied back; or weights are fetched
for each layer, or activations are moved out and back. The GPU waits for the link and for the CPU. Where the memory
would fit, that time is wasted.
""",
    detected=f"""
Copies of at least 64 MB a step to the host and as much back, or to the GPU alone in forward passes: the *optimizer*
where stretches of over 1 ms in which the CPU launches nothing take a tenth of the step, or the copies leave outside of
the forward pass, and both ways have 0.25 to 16 bytes for each trained parameter; *activations* where they leave in the
forward pass; *weights* where as much comes in forward passes, in 20 tensors or more, and nothing leaves: of the trained
model, or of another one, whose tensors have at least three sizes and come again in each step; *ops* where most of what
the CPU computes on host tensors lies in forward and backward passes, such as a loss whose logits are moved to the CPU,
and takes a tenth of the step; *copies* where weights or gradients go to the host in 20 tensors or more, less than half
as much comes back, and what the CPU computes takes a tenth of the step: an average of weights, norms, statistics. An
optimizer that is *paged* (bitsandbytes) where its kernels take three times what the traffic of its states would, or
more. Advised only if the run's peak and what would have to stay on the GPU fit its memory; *copies* of weights also in
one step of {STEPS_BETWEEN_COPIES}, which needs no memory.
""",
    gain=f"""
The copies are removed, with the waits for them and the CPU work in them and in the ops around them that only copy. For
an optimizer so are the long stretches of CPU time without a launch, and all of its own CPU time without one. Ops that
compute on tensors in host memory are removed entirely; {percent(calibrated.STAYS.value)} % of the rest stays
({percent(calibrated.STAYS.low)} to {percent(calibrated.STAYS.high)} %, assumed). A fused step on the GPU takes
{calibrated.TRAFFIC_BYTES.value:g} bytes of traffic for each trained parameter. Where the optimizer runs on the CPU op
by op, a fused step there leaves {percent(calibrated.FUSED_LEFT.value)} % of their time
({percent(calibrated.FUSED_LEFT.low)} to {percent(calibrated.FUSED_LEFT.high)} %, assumed): one pass over what the ops
go over one after another. From a loop over parameters, the Python and the small ops between them become what
`optimizer` leaves of them on the GPU. Where hooks around each module copy weights or activations, what the CPU does
between two kernels becomes what it usually is where nothing is copied in between (at worst
{percent(calibrated.HOOKS_STAY.high)} % of it stays, assumed). Hooks run around modules that have nothing to copy, too:
next to copies it becomes what it is before the same op far from them. What autograd's engine does outside of ops
becomes what it usually does, where it freed activations in host memory. Where hooks empty the allocator's cache,
allocation is removed as well. Copies of weights that come in one step of {STEPS_BETWEEN_COPIES} leave that share of
what is removed, with a probability of {calibrated.RARER_COPIES.value:g} (assumed): what the CPU computes may be needed
in each step. How long the CPU computes differs from one process to the next by a factor of 1.7
(assumed), or by the difference between timed and recorded steps of the run, if that is more.
""",
    wrong="""
Memory must suffice for the longest batch. Offloading is needed where other ranks have less memory, or the state of
all parameters does not fit. With ZeRO each rank has its share of the states.
""",
    applies=("training",),
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to keep everything on the GPU if it fits, and for an optimizer on the CPU a fused step there."""
    found = find_offload(case)
    if found is not None:
        yield from on_gpu(case, found)
        yield from _rarer(case, found)
        yield from _fused(case, found)
    yield from _unpaged(case)


def on_gpu(case: Analysis, found: Offload) -> Iterator[Proposal]:
    """All on the GPU, where that fits."""
    free, _ = free_bytes(case)
    if free is None or found.needed_bytes > free:
        return
    graph = case.graph
    copies_ns = case.per_step(float(graph.duration_ns[found.copies].sum()))
    cpu_ns = case.per_step(float(graph.duration_ns[found.stretches].sum()))
    text = (
        f"{found.down_bytes / GIB:,.2f} GiB a step go to host memory and {found.up_bytes / GIB:,.2f} GiB come back"
        f" ({duration(copies_ns)} of copies)"
        + (f"; the CPU then works for {duration(cpu_ns)} and launches nothing" if cpu_ns else "")
        + f". It would take {found.needed_bytes / GIB:,.1f} GiB more on the GPU, of {free / GIB:,.0f} GiB that are free"
    )
    yield Proposal(
        title=_TITLES[found.kind],
        evidence=spans(case, text, found.copies | found.stretches),
        fix=_fix(case, found.kind),
        change=_change(case, found, 1),
        best=_change(case, found, 0),
        worst=_change(case, found, 2),
        claims=("offloaded_copies",),
    )


def _fused(case: Analysis, found: Offload) -> Iterator[Proposal]:
    """One pass over the optimizer's states on the CPU, where it takes one for each op."""
    passes = case.ops_named(PASSES.search)
    computing = found.stretches & computed(case) & np.append(passes, False)[case.graph.scope]
    took = float(case.graph.duration_ns[computing].sum())
    if found.kind != "optimizer" or took < calibrated.LEAST_SILENCE.value * case.step_ns * case.steps:
        return
    count = len(np.unique(case.graph.scope[computing]))
    text = (
        f"the optimizer goes over its states in host memory in {case.per_step(count):,.0f} ops, which take "
        f"{duration(case.per_step(took))}; a fused one reads and writes them once"
    )
    best, usual, worst = (_fused_left(case, computing, way) for way in range(3))
    yield Proposal(
        title="a fused optimizer step on the CPU",
        evidence=spans(case, text, computing),
        fix=as_fix(call("torch.optim.AdamW", ..., fused=True)) + "  # over parameters in host memory, too",
        change=usual,
        best=best,
        worst=worst,
        claims=("optimizer_step",),
    )


def _fused_left(case: Analysis, computing: Mask, way: int) -> Change:
    """The step with a fused kernel on the CPU. What a loop runs between the ops of each parameter (Python, and ops that
    compute nothing large) shrinks as on the GPU; optimizers over lists have little of it."""
    graph = case.graph
    left = np.where(computing, calibrated.FUSED_LEFT.rising[way], 1.0)
    if not case.ops_named(lambda name: name.startswith("aten::_foreach_")).any():
        rest = (graph.phase == OPTIMIZER) & without_launches(graph) & ~computing & ~graph.waits
        in_op = np.append(case.trace.ops.kind != ANNOTATION, False)[graph.scope]
        left = np.where(rest & in_op, kernels.OPTIMIZER_LOOP_HOST.rising[way], left)
        left = np.where(rest & ~in_op, kernels.OPTIMIZER_LOOP_PYTHON.rising[way], left)
    return partial(scaled, nodes=left < 1.0, factor=left)


def _rarer(case: Analysis, found: Offload) -> Iterator[Proposal]:
    """Copies of weights that come in some steps only, whatever fits on the GPU."""
    if found.kind != "copies":
        return
    copies_ns = case.per_step(float(case.graph.duration_ns[found.copies].sum()))
    text = (
        f"{found.down_bytes / GIB:,.2f} GiB of weights or gradients go to host memory in each step"
        f" ({duration(copies_ns)} of copies), and the CPU computes with them: nothing of it comes back, so no step"
        " needs it before the next"
    )

    def rarely(graph: Graph, level: int) -> Graph:
        left = _change(case, found, level)(graph)
        more = (graph.duration_ns - left.duration_ns).clip(0) / STEPS_BETWEEN_COPIES
        return left.with_durations(left.duration_ns + more)

    yield Proposal(
        title=f"copies of weights every {STEPS_BETWEEN_COPIES} steps",
        evidence=spans(case, text, found.copies | found.stretches),
        fix=code(f"if step % {STEPS_BETWEEN_COPIES} == 0:\n    averaged.update_parameters(model)")
        + f"  # with decay ** {STEPS_BETWEEN_COPIES} for an exponential average; likewise norms and statistics",
        change=partial(rarely, level=1),
        best=partial(rarely, level=0),
        worst=partial(rarely, level=2),
        odds=calibrated.RARER_COPIES.value,
        needs="nothing but an average, a log or a check uses what the CPU computes",
        claims=("offloaded_copies",),
        key="rarer",
    )


def _unpaged(case: Analysis) -> Iterator[Proposal]:
    """States that stay on the GPU, where those of a paged optimizer fit and its kernels wait for pages."""
    optimizer = (case.run.optimizer or {}) if case.run else {}
    name, trained = str(optimizer.get("class") or ""), trained_parameters(case)
    free, _ = free_bytes(case)
    if not _PAGED.match(name) or not trained or case.roofline is None or free is None:
        return
    graph = case.graph
    nodes = graph.on_gpu & (graph.phase == OPTIMIZER)
    took = case.per_step(float(graph.duration_ns[nodes].sum()))
    eighth = EIGHT_BIT_MOMENTS if "8bit" in name else 1.0
    needed = float(optimizer.get("state_bytes") or 0) or trained * _MOMENTS_BYTES * eighth
    rate = case.roofline.ceilings.memory_bytes_per_s
    best, usual, worst = (
        (each - _MOMENTS_TRAFFIC * (1 - eighth)) * trained / rate * 1e9 for each in calibrated.TRAFFIC_BYTES.rising
    )
    if needed > free or took < PAGING_SLOWER * worst:
        return
    text = (
        f"{name} keeps its states in unified memory: its kernels take {duration(took)} {case.unit.a}, and with the"
        f" states on the GPU {duration(usual)}. The states need {needed / GIB:,.1f} of {free / GIB:,.0f} GiB that"
        " are free"
    )
    low, likely, high = (partial(scaled, nodes=nodes, factor=ns / took) for ns in (best, usual, worst))
    yield Proposal(
        title="an optimizer that is not paged",
        evidence=spans(case, text, nodes),
        fix=case.stack.fix(
            f"the same optimizer without pages: {name.removeprefix('Paged')}",
            trl=case.stack.setting({"optim": "adamw_8bit" if eighth < 1 else "adamw_torch_fused"}),
        ),
        change=likely,
        best=low,
        worst=high,
        claims=("optimizer_step",),
    )


_TITLES = {
    "optimizer": "the optimizer on the GPU",
    "weights": "all weights on the GPU",
    "activations": "checkpoints of activations on the GPU",
    "ops": "ops of the CPU on the GPU",
    "copies": "copies of weights on the GPU",
}


def _change(case: Analysis, found: Offload, level: int) -> Change:
    stays = calibrated.STAYS.rising[level]
    on_gpu_ns = 0.0
    if found.kind == "optimizer" and case.roofline is not None:
        trained = found.needed_bytes / calibrated.STATE_BYTES.value
        traffic = calibrated.TRAFFIC_BYTES.rising[level] * trained
        on_gpu_ns = traffic / case.roofline.ceilings.memory_bytes_per_s * 1e9
    copying = np.append(np.zeros(len(case.trace.calls), bool), False)
    copying[case.graph.call[found.copies]] = True
    copying[-1] = False
    computing = found.stretches & computed(case) | _in_copies(case, copying)
    hooks = np.ones(len(case.graph))
    if found.kind in ("weights", "activations"):
        hooks = left_around(case.graph, found.copies, copying[case.graph.call] & ~case.graph.on_gpu)
        if found.kind == "activations":
            hooks *= left_of_freeing(case.graph)
        hooks = np.maximum(hooks, np.where(hooks < 1, calibrated.HOOKS_STAY.rising[level], 1.0))

    def change(graph: Graph) -> Graph:
        waits = copying[graph.call] & graph.waits
        free = without_edges(graph, waits[graph.edges.target] & np.isin(graph.edges.kind, (SYNC, COPY)))
        duration = np.where(found.copies, 0.0, free.duration_ns)
        duration = np.where(found.stretches, stays * duration, duration)
        duration = np.where(computing, 0.0, duration * hooks)
        return free.with_durations(_with_step(duration, free, found, on_gpu_ns))

    return change


def _in_copies(case: Analysis, copying: Mask) -> Mask:
    """The CPU's own work in the calls that copy, and in the ops around them that only copy: these allocate host memory,
    write it page by page, and have no reason without the copy."""
    graph, parent = case.graph, case.timeline.nesting.parent
    copies = case.ops_named(COPIES.search)
    ops = np.zeros(len(parent) + 1, bool)
    at = np.unique(graph.scope[copying[graph.call] & ~graph.on_gpu])
    at = at[at >= 0]
    while len(at := at[copies[at]]):
        ops[at] = True
        at = np.unique(parent[at])
        at = at[(at >= 0) & ~ops[at]]
    inside = np.append(case.ops_within(ops[:-1]), False)
    return (inside[graph.scope] | copying[graph.call]) & ~graph.on_gpu & ~graph.waits


def _with_step(duration: F64, graph: Graph, found: Offload, ns: float) -> F64:
    """The optimizer's step on the GPU, in each step in the place of the longest stretch."""
    if ns <= 0:
        return duration
    for step in range(graph.steps):
        mine = np.flatnonzero(found.stretches & (graph.step == step))
        if len(mine):
            duration[mine[graph.duration_ns[mine].argmax()]] += ns
    return duration


def _fix(case: Analysis, kind: Kind) -> Fix:
    """The fix for the libraries that the run imported."""
    packages = {str(name).lower() for name in case.versions}
    if kind == "activations":
        return case.stack.fix(
            "keep checkpoints on the GPU: torch.autograd.graph.save_on_cpu() off, offload_to_cpu=False",
            unsloth=call("FastLanguageModel.get_peft_model", ..., use_gradient_checkpointing=True),
            trl=case.stack.setting({"activation_offloading": False}),
        )
    if kind == "ops":
        where = as_fix("compute where the model's outputs are, for instance the loss; move the small tensors there:\n")
        return where + code("labels = labels.to(logits.device)") + "  # not logits.cpu()"
    if kind == "copies":
        kept = call(
            "torch.optim.swa_utils.AveragedModel", Code("model"), device=Code("next(model.parameters()).device")
        )
        return as_fix(kept) + "  # averages and statistics of weights stay where the weights are, or come less often"
    if kind == "weights":
        loaded = call("from_pretrained", ..., device_map={"": 0})
        return (
            "load the model on one GPU: " + loaded + "\nFSDP: " + call("CPUOffload", offload_params=False).otherwise()
        )
    ways = {
        "deepspeed": "in the DeepSpeed configuration: "
        + code('"zero_optimization": {"offload_optimizer": {"device": "none"}}'),
        "fsdp": code("fsdp_offload_params: false") + ", or " + call("CPUOffload", offload_params=False) + "  # FSDP",
        "accelerate": "in accelerate's configuration: " + code("offload_optimizer_device: none"),
    }
    first, *others = [way for name, way in ways.items() if name in packages] or list(ways.values())
    return joined((first, *(other.otherwise() for other in others)), "\nor ")


def _absent(case: Analysis) -> str | None:
    found, (free, _) = find_offload(case), free_bytes(case)
    if found is None:
        return None
    needed = f"{_TITLES[found.kind]} would take about {found.needed_bytes / GIB:,.0f} GiB more"
    return f"{needed}, and {free / GIB:,.0f} GiB are free" if free is not None else f"{needed}; the peak is not known"


ABSENT = Absent("no offloading to the CPU", _absent)


_ITEMS: dict[Kind, tuple[str, str]] = {
    "optimizer": ("the optimizer in host memory", "its states are computed there, although they fit on the GPU"),
    "weights": ("weights in host memory", "they are copied to the GPU for each use, although it has room for them"),
    "activations": ("activations in host memory", "they are copied there and back, although they fit on the GPU"),
    "ops": ("ops that the CPU computes between two copies", "the GPU has their inputs, and could compute them"),
    "copies": (
        "weights copied to the CPU, which computes with them",
        "for an average, norms or statistics; all fit on the GPU, or could come less often",
    ),
}
"""What the ledger calls each kind, and why it is above reach."""
_MOVING, _COMPUTING = "MOVING OFFLOADED DATA to and from the GPU", "COPYING TO THE CPU to compute there"
_HEADLINES = {what: _COMPUTING if kind in ("ops", "copies") else _MOVING for kind, (what, _) in _ITEMS.items()}


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """Data kept in host memory although the GPU has room: its copies, and the optimizer on the CPU."""
    found = find_offload(case)
    if found is None:
        return
    for proposal in on_gpu(case, found):
        yield part_of(case.graph, proposal.change, *_ITEMS[found.kind], kind="memory")


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    ledger=LedgerParts(ledger_parts, stage="moved", unadvised=False, headlines=_HEADLINES),
    lowers=("computing_on_cpu",),
    synonyms=(
        "paged_states",
        "cpu_offload",
        "zero_offload",
        "offload_optimizer",
        "deepspeed",
        "cpuoffload",
        "activation_offloading",
        "weight_averaging",
        "ema_on_cpu",
    ),
    titles=(
        "an_optimizer_that_is_not_paged",
        "a_fused_optimizer_step_on_the_cpu",
        "the_optimizer_on_the_gpu",
        "all_weights_on_the_gpu",
        "checkpoints_of_activations_on_the_gpu",
        "ops_of_the_cpu_on_the_gpu",
        "copies_of_weights_on_the_gpu",
        "copies_of_weights_every_steps",
    ),
)
