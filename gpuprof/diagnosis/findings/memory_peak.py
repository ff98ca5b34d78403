"""Changes that lower the memory peak, as `gpuprof memory` lists them: the effect of each on the footprint, and its time
from a replay of the recorded steps or, if they contain nothing similar, from published measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import allocator
from gpuprof.calibration import memory as calibrated
from gpuprof.diagnosis.detect.batches.batch_scaling import scaled_batch
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.memory_remedy import MemoryRemedy, Priced
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.losses.loss_head import ops_of_logits
from gpuprof.diagnosis.result.fix import Fix
from gpuprof.projection.changes.batch import model_phases
from gpuprof.projection.memory import memory_changes as changes
from gpuprof.projection.memory.memory_fixes import CHECKPOINTING, OPTIMIZER, MemoryFix, recorded_footprint
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import BACKWARD, FORWARD
from gpuprof.timeline.phases import OPTIMIZER as OPTIMIZER_PHASE
from gpuprof.units import Assumed, Bytes, Convention, Elements, Published, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.projection.memory.activations import RecordedPeak
    from gpuprof.projection.memory.recorded_memory import RecordedMemory, Trained

REPEATED_FORWARD: Assumed[tuple[Ratio, Ratio, Ratio]] = (0.85, 1.0, 1.1)
"""What checkpointing adds, as a share of the forward pass, at best, as expected, at worst: it repeats neither head nor
loss, but has work of its own."""
STATE_MOVED: Published[dict[str, Bytes]] = {
    "eight_bit_optimizer": 4,
    "paged_eight_bit_optimizer": 4,
    "paged_optimizer": 16,
}
"""bitsandbytes' optimizers, which update tensor by tensor → bytes per parameter of state that is read and written."""
HALF_OF_LAYERS: Convention[Share] = 0.5
LEAST_WIDE_STATE: Assumed[Share] = 0.9
"""Smallest state, as a share of twice the bytes in 8 bits, that is not in 8 bits yet."""
PAGED_STATE_BYTES: Published[Ratio] = 8.0
"""Bytes per parameter of two moments in single precision, in which bitsandbytes keeps those that are not in 8 bits."""
LEAST_PAGED: Published[Elements] = 100_000
"""Fewest parameters of a tensor whose state bitsandbytes pages. (Adapters are often smaller.)"""

PAGE = Page(
    id="memory_peak",
    applies=("training",),
    title="The peak of memory is larger than it needs to be",
    means="""
A training runs out of memory at its peak: in the loss, when the activations of all layers and the logits exist, in the
backward pass of the last layer, or in the optimizer's step. Only what exists at that moment counts. The name of a
change, and where to make it:

- *checkpoint all layers*, *checkpoint every 2nd layer*: layers keep their input and compute the rest again;
  `gradient_checkpointing=True`, or `torch.utils.checkpoint` around every second block. For every third block:
  `gpuprof memory --with checkpointing_every_3`.
- *activations on the CPU*: what layers keep is moved to the CPU and back; `activation_offloading=True` in TRL.
- *chunked or fused loss*: the logits of all rows never exist at once; Liger's fused linear cross entropy
  (`use_liger_kernel=True`), or a loss over slices of the rows.
- *half micro-batch, 2× passes*: half of `per_device_train_batch_size`, twice `gradient_accumulation_steps`.
- *8-bit optimizer*: `optim="adamw_bnb_8bit"`. *paged optimizer*, *paged 8-bit optimizer*: `optim="paged_adamw_32bit"`,
  `optim="paged_adamw_8bit"`; the driver moves their state to the CPU's memory when the GPU's runs short.
  *optimizer state on the CPU*: DeepSpeed's or torchao's offload, where the CPU updates the parameters.
- *fused optimizer*: `optim="adamw_torch_fused"`; no temporary copy of the parameters.
- *adapters in bf16*: `autocast_adapter_dtype=False`. *fused attention*: `attn_implementation="sdpa"`.
- *expandable segments*: `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; less is reserved that no tensor uses.
- *cut sequences in half*: `max_length`. *packing*: passes of equal length instead of one long one among short ones.
""",
    detected="""
The peak that the allocator reported without the profiler, the model and the optimizer as the run recorded them, and the
recorded ops with their shapes. `gpuprof memory` lists the changes that the recording offers; those that save less than
1 % are only in its JSON.
""",
    gain="""
Memory: the peak is split into what stays between steps, the logits (12 bytes each), what all layers keep for the
backward pass, written-out scores of attention, and what one layer's backward pass takes. What layers keep is counted op
by op: each saved tensor of torch's backward formulas once. A change acts on its part, and the peak is the larger of the
moments that are left. Time: the recorded step is replayed with the change. docs/memory_changes.md compares predicted
peaks with measured ones.
""",
    wrong=f"""
What layers keep is not counted for functions of their own (Unsloth, Liger), experts, compiled models, and dropout
inside a model that is trained whole: then nothing is said about removing checkpointing. The time of expandable segments
is not in a recording, and is not estimated. The time of paging and of an optimizer on the CPU is not in it either: it
comes from published measurements and the GPU's link, and its interval is wide, as are those of activations on the CPU,
which may move next to the GPU's work or after it, and of a chunked or fused loss, whose share of the recorded loss's
kernels is assumed. Paged optimizers are offered where tensors are large enough for bitsandbytes to page their state
({LEAST_PAGED:,} parameters), so not for small adapters. The largest batch assumes that passes of the run differ as the
recorded ones do.
""",
)


def offers(memory: RecordedMemory, _: float | None) -> Iterator[MemoryFix]:
    """Changes that no other finding has."""
    yield from _checkpointing(memory.recorded)
    yield from _loss(memory.recorded)
    yield from _optimizer(memory)
    yield from _passes(memory)


def _checkpointing(recorded: RecordedPeak) -> list[MemoryFix]:
    layers, hidden = recorded.layers, recorded.hidden
    if not layers or not hidden or recorded.checkpointing:
        return []
    return [
        MemoryFix("checkpointing", "checkpoint all layers", changes.checkpointed(layers, hidden),
                  replaces=CHECKPOINTING, share=1.0),
        MemoryFix("checkpointing_half", "checkpoint every 2nd layer",
                  changes.checkpointed(layers, hidden, HALF_OF_LAYERS), replaces=CHECKPOINTING, share=HALF_OF_LAYERS),
        MemoryFix("offloaded_activations", "activations on the CPU", changes.offloaded_activations(layers, hidden),
                  replaces=CHECKPOINTING),
    ]  # fmt: skip


def _loss(recorded: RecordedPeak) -> list[MemoryFix]:
    if not recorded.hidden or recorded.loss is None or not recorded.loss.whole:
        return []
    return [MemoryFix("chunked_loss", "chunked or fused loss", changes.chunked_loss(recorded.hidden))]


def _optimizer(memory: RecordedMemory) -> list[MemoryFix]:
    trained, found = memory.trained, []
    if trained is None or not trained.state_bytes:
        return found
    away = changes.less_static(trained.state_bytes, without_temporaries=True)
    if trained.adam:
        eight_bytes = calibrated.EIGHT_BIT_STATE.value * trained.parameters
        rounded = "the optimizer's state is rounded"
        wide = trained.state_bytes > 2 * eight_bytes * LEAST_WIDE_STATE
        if wide:
            eight = changes.eight_bit_state(trained.state_bytes, trained.parameters)
            found.append(MemoryFix("eight_bit_optimizer", "8-bit optimizer", eight, rounded, replaces=OPTIMIZER))
        if trained.tensors and trained.parameters / trained.tensors >= LEAST_PAGED:
            moved = PAGED_STATE_BYTES * trained.parameters
            if wide:
                found.append(MemoryFix("paged_optimizer", "paged optimizer", away, replaces=OPTIMIZER,
                                       moved_bytes=moved))  # fmt: skip
            found.append(MemoryFix("paged_eight_bit_optimizer", "paged 8-bit optimizer", away, rounded,
                                   replaces=OPTIMIZER, moved_bytes=eight_bytes))  # fmt: skip
    offloaded = MemoryFix("offloaded_optimizer", "optimizer state on the CPU", away, replaces=OPTIMIZER)
    return [*found, offloaded]


def _passes(memory: RecordedMemory) -> list[MemoryFix]:
    gradients = memory.trained.gradient_bytes if memory.trained else 0.0
    return [
        MemoryFix("half_micro_batch", "half micro-batch, 2× passes", changes.smaller_passes(2, gradients)),
        MemoryFix("half_length", "cut sequences in half", changes.shorter_passes(0.5), "longer samples lose their end"),
    ]


def price(fix: MemoryFix, case: Analysis, memory: RecordedMemory) -> Priced | str:
    """What one of them does to the step, or why that is not known."""
    if fix.id == "offloaded_optimizer":
        return _offloaded(memory.trained)
    if fix.id == "offloaded_activations":
        return _offloaded_activations(case, memory)
    if fix.id in STATE_MOVED:
        make = _per_tensor_step(fix.id, case, memory.trained)
    elif fix.id == "chunked_loss":
        make = _chunked_loss(case, memory)
    else:
        make = _of_passes(fix, case)
    if make is None:
        return "nothing in the recording says what it would take"
    return Priced((Proposal(fix.title, (), Fix(), make(1), make(0), make(2)),))


def _offloaded(trained: Trained | None) -> Priced | str:
    """The state of Adam on the CPU, which updates the parameters."""
    if trained is None or not trained.adam:
        return "how fast this CPU updates the parameters is not in the recording"
    low, usual, high = (each * trained.parameters for each in calibrated.OFFLOAD_NS.rising)
    return Priced(more_ns=(low, usual, high))


def _offloaded_activations(case: Analysis, memory: RecordedMemory) -> Priced | str:
    """What layers keep goes to the CPU during the forward pass and comes back during the backward pass: at best next to
    the GPU's work, at worst after it."""
    link = case.roofline.ceilings.link_bytes_per_s if case.roofline is not None else None
    tokens = case.run.work.tokens if case.run is not None else None
    if not link or not tokens:
        return "the tokens of a step, or the GPU's link to the CPU, are not known"
    now, graph = recorded_footprint(memory).likely, case.graph
    moved = (now.layers + now.scores) * tokens
    quick, usual, slow = (1e9 * moved / (link * rate) for rate in allocator.PINNED_RATE.falling)
    works = [
        float(graph.duration_ns[graph.on_gpu & (graph.phase == phase)].sum()) / graph.steps
        for phase in (FORWARD, BACKWARD)
    ]
    hidden = [sum(max(ns - work, 0.0) for work in works) for ns in (quick, usual)]
    return Priced(more_ns=(hidden[0], (hidden[1] + 2 * usual) / 2, 2 * slow))


def _of_passes(fix: MemoryFix, case: Analysis) -> Callable[[int], Change] | None:
    """What a change of the forward and backward passes does to the graph: 0 at best, 1 usually, 2 at worst."""
    if fix.share:
        return lambda level: partial(_repeats, share=fix.share * REPEATED_FORWARD[level])
    makers: dict[str, Callable[[int], Change]] = {
        "half_micro_batch": lambda level: partial(_twice, smaller=scaled_batch(case, 0.5, level)),
        "half_length": lambda level: scaled_batch(case, 0.5, level),
    }
    return makers.get(fix.id)


def _chunked_loss(case: Analysis, memory: RecordedMemory) -> Callable[[int], Change] | None:
    """The same of a loss that goes through the logits in chunks, or in one fused kernel; None where the recording does
    not show the ops of the head and the loss."""
    loss = memory.recorded.loss
    matmuls, rest = ops_of_logits(case, loss.vocabulary if loss else 0)
    if not matmuls.any() or not rest.any():
        return None
    passes = np.isin(case.graph.phase, (FORWARD, BACKWARD))
    multiplies, others = case.nodes_within(matmuls) & passes, case.nodes_within(rest) & passes

    def change(level: int, graph: Graph) -> Graph:
        host = ~graph.on_gpu & ~graph.waits
        for nodes, number in (
            (multiplies & graph.on_gpu, calibrated.CHUNKED_MATMULS),
            (others & ~multiplies & graph.on_gpu, calibrated.CHUNKED_REST),
            ((multiplies | others) & host, calibrated.CHUNKED_HOST),
        ):
            graph = scaled(graph, nodes, number.rising[level])
        return graph

    return lambda level: partial(change, level)


def _per_tensor_step(name: str, case: Analysis, trained: Trained | None) -> Callable[[int], Change] | None:
    """The same of one of bitsandbytes' optimizers, all of whose state is on the GPU."""
    tensors = float((case.run.optimizer or {}).get("tensors") or 0) if case.run is not None else 0.0
    if not tensors or case.roofline is None or trained is None:
        return None
    # Weights are read and written, gradients and state read and the state written, at the memory's ceiling.
    moved = 3 * trained.gradient_bytes + STATE_MOVED[name] * trained.parameters
    moved_ns = 1e9 * moved / case.roofline.ceilings.memory_bytes_per_s
    paged = calibrated.PAGED_HOST_NS.rising if name.startswith("paged") else (0.0, 0.0, 0.0)
    return lambda level: partial(
        _per_tensor,
        host_ns=tensors * (calibrated.EIGHT_BIT_HOST_NS.rising[level] + paged[level]),
        gpu_ns=tensors * calibrated.EIGHT_BIT_GPU_NS.rising[level] + moved_ns,
    )


def _repeats(graph: Graph, share: float) -> Graph:
    """The forward pass a second time, where the backward pass needs it: as long again, on the CPU and the GPU."""
    return scaled(graph, (graph.phase == FORWARD) & ~graph.waits, 1 + share)


def _twice(graph: Graph, smaller: Change) -> Graph:
    """Each pass twice, with half the batch."""
    less = smaller(graph)
    return scaled(less, model_phases(less) & ~less.waits, 2.0)


def _per_tensor(graph: Graph, host_ns: float, gpu_ns: float) -> Graph:
    """The optimizer's step as a kernel for each tensor."""
    own = graph.phase == OPTIMIZER_PHASE
    for nodes, ns in ((own & graph.on_gpu, gpu_ns), (own & ~graph.on_gpu & ~graph.waits, host_ns)):
        now = float(graph.duration_ns[nodes].sum()) / graph.steps
        if now > 0:
            graph = scaled(graph, nodes, ns / now)
    return graph


FINDING = Declaration(
    page=PAGE,
    memory=MemoryRemedy(
        (
            "checkpointing",
            "checkpointing_half",
            "offloaded_activations",
            "chunked_loss",
            "eight_bit_optimizer",
            "paged_optimizer",
            "paged_eight_bit_optimizer",
            "offloaded_optimizer",
            "half_micro_batch",
            "half_length",
        ),
        offers,
        price,
    ),
    synonyms=("memory", "oom", "out_of_memory", "chunked_loss", "8_bit_optimizer", "paged_optimizer"),
)
