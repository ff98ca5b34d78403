"""A step that takes no longer for more tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.batch_scaling import (
    FACTORS,
    best_factor,
    largest_factor,
    micro_size,
    micro_tokens,
    room_note,
    scaled_batch,
    slower_host,
)
from gpuprof.diagnosis.detect.declaration import Declaration
from gpuprof.diagnosis.detect.evidence import spans
from gpuprof.diagnosis.detect.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.fix import Code, arguments, call
from gpuprof.projection.batch import (
    communication_at_worst,
    model_phases,
)
from gpuprof.replay.graph import DEVICE

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

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
            call("DataLoader", ..., batch_size=Code(size)) + room,
            setting,
            trl=setting + "\nor, with short samples: " + arguments("SFTConfig", {"packing": True}).otherwise()
            if case.trains_on_tokens
            else setting,
        ),
        change=scaled_batch(case, chosen),
        best=scaled_batch(case, chosen, 0),
        worst=slower_host(case, _at_worst(case, chosen)),
        work=float(chosen),
        changes=f"{chosen} times the samples in an optimizer step",
    )


def _absent(case: Analysis) -> str | None:
    limit = largest_factor(case)
    if limit is not None and limit < FACTORS[0]:
        return "twice the batch does not fit in the GPU's memory"
    if not model_phases(case.graph).any():
        return None
    twice = case.step_of(scaled_batch(case, FACTORS[0])(case.graph))
    return f"twice the samples take {twice / case.step_ns:.2f} times as long"


ABSENT = Absent("larger batch", _absent)


def _at_worst(case: Analysis, factor: float) -> Change:
    """Kernels grow most, and so does communication."""
    grown, moving = scaled_batch(case, factor, 2), communication_at_worst(case.graph, factor)
    return lambda graph: moving(grown(graph))


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    synonyms=("batch", "batch_size", "per_device_train_batch_size"),
    titles=("the_batch",),
)
