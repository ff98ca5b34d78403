"""A step that takes no longer for more tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from gpuprof.calibration import batch as calibrated
from gpuprof.diagnosis.analysis import Analysis, Change
from gpuprof.diagnosis.evidence import spans
from gpuprof.diagnosis.passes import shapes_in
from gpuprof.diagnosis.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.stack import Code
from gpuprof.projection.batch import (
    GROWS,
    another_batch,
    communication_at_worst,
    event_growth,
    model_phases,
)
from gpuprof.projection.per_sample_attention import ROUND
from gpuprof.replay.graph import DEVICE, Graph
from gpuprof.replay.transform import scaled
from gpuprof.timeline.categories import TENSOR_CATEGORIES
from gpuprof.tracefile.trace import F64

FACTORS = (2, 4, 8)
DOUBLING = 1.2
"""What the last doubling of a batch has to gain to be advised: less is not worth the memory."""
MEMORY_SHARE = 0.9
"""Of a GPU's memory what an allocator can give out before it begins to search for room."""
HOST_WORST = calibrated.HOST_WORST.value
"""At worst the host is slower as well."""

PAGE = Page(
    id="larger_batch",
    applies=("training",),
    title="A step takes no longer for more tokens",
    means="""
Launching a kernel takes the CPU the same time whatever the kernel's size, and a small kernel takes the GPU the same
time until it fills the chip. A step limited by either processes twice the tokens in nearly the same time.
""",
    detected="""
The step is replayed with its kernels scaled to 2, 4 and 8 times the tokens. Proposed is the largest factor whose last
doubling still gains 20 % in tokens per second and that fits in 90 % of the GPU's memory (if a run reports what it
uses).
""",
    gain="""
In forward, backward and recomputation the arithmetic and the traffic of each kernel grow with the tokens, except for
reading the weights of matrix multiplications. A kernel that does not fill the chip takes no longer until it does; one
limited by reading weights takes no longer until its arithmetic does. Work done once per weight stays the same (the
optimizer, dequantising, accumulating gradients, casting weights and their gradients, recognised by tensor shapes).
Copying and preparing batches grows with the tokens. CPU work stays the same, except where attention is called for one
sample after another (no padding, and an attention without variable lengths): each additional sample then costs 0.5 to
1 times a recorded call. Collectives that exchange tokens between ranks grow, too. One rank's recording does not say how
much of them is waiting for another rank, nor why that is late: at the slow end all of it is moving data, and waits in
other collectives grow with the batch.
""",
    wrong="""
With more samples per optimizer step there are fewer steps: the learning rate may have to be tuned again. With
gradient accumulation, accumulate fewer batches instead, and the training stays the same. Memory for activations grows
with the tokens. Memory use is known only for recordings made with `gpuprof trace`.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """The batch that gains, if one does."""
    found = best_factor(case)
    if found is None:
        return
    chosen, step_ns = found
    graph = case.graph
    samples = micro_size(case)
    tokens = micro_tokens(case)
    size = f"{samples * chosen}" if samples else f"{chosen} * batch_size"
    busy = case.per_step(float(graph.duration_ns[graph.resource == DEVICE].sum()))
    said = f"{tokens:,} tokens a batch" if tokens else f"{samples:,} samples a batch" if samples else "a batch"
    text = (
        f"{said}: the GPU works {busy / 1e6:,.1f} of {case.step_ns / 1e6:,.1f} ms a step; "
        f"{chosen} times as much would take {step_ns / 1e6:,.1f} ms"
    )
    room = room_note(case)
    setting = case.stack.setting({"per_device_train_batch_size": Code(size)}, note=room)
    yield Proposal(
        title=f"batch {samples} → {samples * chosen}" if samples else f"{chosen} × the batch",
        evidence=spans(case, text, graph.resource == DEVICE),
        fix=case.stack.fix(
            f"DataLoader(..., batch_size={size}){room}",
            setting,
            trl=f"{setting}\nor, with short samples: SFTConfig(packing=True)" if case.trains_on_tokens else setting,
        ),
        change=scaled_batch(case, chosen),
        best=scaled_batch(case, chosen, 0),
        worst=slower_host(case, _at_worst(case, chosen)),
        work=float(chosen),
        changes=f"{chosen} times the samples in an optimizer step",
    )


def best_factor(case: Analysis) -> tuple[int, float] | None:
    """The largest of the factors whose last doubling gains enough and fits in memory, and the step with it, ns; None
    where none does."""
    graph = case.graph
    if not (model_phases(graph) & case.nodes_of_gpu(case.category(*TENSOR_CATEGORIES))).any():
        return None  # what multiplies nothing is no model
    limit = largest_factor(case)
    chosen, before = 1, case.step_ns
    for factor in FACTORS:
        if limit is not None and factor > limit:
            break
        step = case.step_of(scaled_batch(case, factor)(graph))
        if (factor // chosen) * before < DOUBLING * step:
            break
        chosen, before = factor, step
    return None if chosen == 1 else (chosen, before)


def _absent(case: Analysis) -> str | None:
    limit = largest_factor(case)
    if limit is not None and limit < FACTORS[0]:
        return "twice the batch does not fit in the GPU's memory"
    if not model_phases(case.graph).any():
        return None
    twice = case.step_of(scaled_batch(case, FACTORS[0])(case.graph))
    return f"twice the samples take {twice / case.step_ns:.2f} times as long"


ABSENT = Absent("larger batch", _absent)


def slower_host(case: Analysis, then: Change) -> Change:
    """A change at worst: the host is slower as well."""
    host = (case.graph.lane >= 0) & ~case.graph.waits

    def change(graph: Graph) -> Graph:
        return then(scaled(graph, host, HOST_WORST))

    return change


def scaled_batch(case: Analysis, factor: float, level: int = 1) -> Change:
    """The same step with `factor` times the tokens in each batch; level: 0 at best, 1 usually, 2 at worst."""
    return another_batch(case.graph, _growth(case, factor) ** GROWS[level], factor, of_a_round=ROUND[level])


def _at_worst(case: Analysis, factor: float) -> Change:
    """Kernels grow most, and so does communication."""
    grown, moving = scaled_batch(case, factor, 2), communication_at_worst(case.graph, factor)
    return lambda graph: moving(grown(graph))


def _growth(case: Analysis, factor: float) -> F64:
    """`event_growth` of a factor, found once."""
    name = f"growth {factor}"
    if name not in case.memo:
        case.memo[name] = event_growth(case.timeline, case.roofline, factor, micro_tokens(case))
    return case.memo[name]


def micro_tokens(case: Analysis) -> int | None:
    """Tokens of one forward pass: as the run counts them, else the indices of the embedding; None if not known, or if
    the model is not trained on tokens."""
    if not case.trains_on_tokens:
        return None
    work = case.run.work if case.run else None
    if work and work.tokens:
        return round(work.tokens / (work.micro_steps or 1))
    shape = indices(case)
    return math.prod(shape) or None if shape else None


def micro_size(case: Analysis) -> int | None:
    """Samples that the loader hands out for one forward and backward pass; None where no run reports it. Rows of the
    forward tensors are something else: a preference pair has two, a packed batch one."""
    work = case.run.work if case.run else None
    return round(work.samples / (work.micro_steps or 1)) if work and work.samples else None


def indices(case: Analysis) -> tuple[int, ...] | None:
    """Shape of the indices that one forward pass embeds, the largest; None where it is not known."""
    ops = case.trace.ops
    low, high = case.timeline.window
    rows = np.flatnonzero(
        case.ops_named(lambda text: text == "aten::embedding") & (ops.start_ns >= low) & (ops.end_ns <= high)
    )
    shapes = (shapes_in(case, dims)[1:2] for dims in np.unique(ops.dims[rows]).tolist())
    return max((shape[0] for shape in shapes if shape and shape[0]), key=math.prod, default=None)


def room_note(case: Analysis) -> str:
    """A comment behind a larger batch where it is not known whether that fits."""
    if largest_factor(case) is not None:
        return ""
    return "  # if memory allows" if len(case.trace.memory) else "  # if memory allows: its use was not recorded"


def largest_factor(case: Analysis) -> float | None:
    """How many times as large a batch may be; None where the run does not record what it uses."""
    run = case.run
    totals = [info.memory_bytes for info in case.trace.meta.gpus if info.memory_bytes]
    if run is None or not totals or not run.memory.peak_bytes or run.memory.allocated_bytes is None:
        return None
    fixed = min(run.memory.allocated_bytes, run.memory.peak_bytes)
    activations = run.memory.peak_bytes - fixed
    return (MEMORY_SHARE * min(totals) - fixed) / activations if activations else None
