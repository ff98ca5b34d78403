"""A step that takes hardly longer for more tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import batch as calibrated
from gpuprof.diagnosis.detect.batches.batch_scaling import (
    FACTORS,
    best_factor,
    largest_factor,
    micro_size,
    micro_tokens,
    room_note,
    scaled_batch,
    slower_host,
)
from gpuprof.diagnosis.detect.batches.longest_samples import longer_batches
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.result.fix import Code, Fix, arguments, as_fix, assigned, call
from gpuprof.diagnosis.sentences import GIB, duration
from gpuprof.projection.changes.batch import (
    communication_at_worst,
    model_phases,
)
from gpuprof.replay.graph import DEVICE, Graph
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE

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
    detected=f"""
The step is replayed with its kernels scaled to 2, 4 and 8 times the tokens. The factor proposed is the largest that
fits in 90 % of the GPU's memory and whose last doubling still gains 20 % in tokens per second. Where a run does not
report its memory, a fit is likely, not certain ({calibrated.ROOM_ODDS.value:g}, assumed). A factor that does not fit is
proposed after a change that frees memory, as a chain ({calibrated.FREED_ODDS.value:g}, assumed).
""",
    gain=f"""
In forward, backward and recomputation the arithmetic and the traffic of each kernel grow with the tokens, except for
reading the weights of matrix multiplications. A kernel that does not fill the chip takes no longer until it does; one
limited by reading weights takes no longer until its arithmetic does. Work done once per weight stays the same (the
optimizer, dequantising, accumulating gradients, casting weights and their gradients, recognised by tensor shapes).
Copying and preparing batches grows with the tokens. Rows of an expert's matrices are the tokens that it gets. Where
batches are padded and their lengths differ, a larger batch is padded to a longer sample: with 4 times the batch, the
longest of 4 timed batches. New lengths, which have to be planned or compiled, become rarer accordingly. In the chain
the backward passes recompute the forward passes (except in the best case). CPU work stays the same, except where
attention is called for one sample after another (no padding, and an attention without variable lengths): each
additional sample then costs {calibrated.ROUND.low:g} to {calibrated.ROUND.high:g} times a recorded call, and except
where a model is called on one row after another that the CPU copies (`python_loop`): those calls grow with the samples.
Collectives that exchange tokens between ranks grow, too. One rank's recording does not show how much of them is waiting
for another rank, nor why that rank is late: in the worst case all of it is data transfer, and waits in other
collectives grow with the batch.
""",
    wrong="""
With more samples per optimizer step there are fewer steps: the learning rate may have to be tuned again. With
gradient accumulation, accumulate fewer batches instead, and the training stays the same. Memory for activations grows
with the tokens. Memory use is known only for recordings made with `gpuprof trace`.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes a larger batch if that gains; if it does not fit, as a chain after a change that frees memory."""
    found = best_factor(case)
    if found is not None:
        yield _larger(case, *found)
    free = best_factor(case, whatever_fits=False)
    if free is not None and free[0] > (found[0] if found else 1) and not (case.graph.phase == RECOMPUTE).any():
        yield _after_freeing(case, *free)


def of_factor(case: Analysis, factor: float) -> Proposal:
    """A batch of `factor` times the samples, whether it gains or not: to compare with one that was timed."""
    longer = longer_batches(case, factor).tokens
    return _larger(case, factor, case.step_of(scaled_batch(case, factor, longer=longer)(case.graph)))


def _after_freeing(case: Analysis, chosen: float, step_ns: float) -> Proposal:
    """The proposal for a batch that does not fit: checkpointing makes room for it at the price of a second forward
    pass; at best another change does so for free."""
    alone = _larger(case, chosen, step_ns)
    change, worst = alone.change, alone.worst or alone.change
    memory = case.run.memory if case.run else None
    total = min(info.memory_bytes for info in case.trace.meta.gpus if info.memory_bytes)
    peak = memory.peak_bytes if memory and memory.peak_bytes else 0
    return replace(
        alone,
        title=f"{alone.title}, once memory is freed",
        fix=FREE + alone.fix,
        change=lambda graph: change(_computed_again(graph)),
        best=change,
        worst=lambda graph: worst(_computed_again(graph)),
        needs=f"memory: {peak / GIB:,.1f} of {total / GIB:,.1f} GiB are used at the peak (gpuprof memory says what "
        "frees how much)",
        odds=calibrated.FREED_ODDS.value,
        parts=("free memory: gradient checkpointing, a chunked loss, an 8-bit or paged optimizer", alone.title),
        key="freed",
    )


FREE = as_fix("first free memory: gpuprof memory lists what saves how much, and what it costs\n")


def _computed_again(graph: Graph) -> Graph:
    """The graph with the forward passes' CPU and GPU time added to the backward passes."""
    own = ~graph.waits
    longer = np.ones(len(graph))
    for side in (graph.on_gpu, ~graph.on_gpu):
        forward, backward = (own & side & (graph.phase == phase) for phase in (FORWARD, BACKWARD))
        took = float(graph.duration_ns[backward].sum())
        longer[backward] = 1 + (float(graph.duration_ns[forward].sum()) / took if took else 0.0)
    return graph.with_durations(graph.duration_ns * longer)


def _larger(case: Analysis, chosen: float, step_ns: float) -> Proposal:
    """`chosen` times the samples in a batch, for which the replayed step takes `step_ns`."""
    graph, longer = case.graph, longer_batches(case, chosen)
    samples = micro_size(case)
    tokens = micro_tokens(case)
    size = f"{samples * chosen:g}" if samples else f"{chosen:g} * batch_size"
    busy = case.per_step(float(graph.duration_ns[graph.resource == DEVICE].sum()))
    said = f"{tokens:,} tokens a batch" if tokens else f"{samples:,} samples a batch" if samples else "a batch"
    text = (
        f"{said}: the GPU works {duration(busy)} of {case.usual_step}; "
        f"{chosen:g} times as much would take {duration(case.stated(step_ns))}"
    ) + (f", padded to {longer.tokens:.2f} times the length" if longer.tokens > 1 else "")
    room = room_note(case)
    setting = case.stack.setting({"per_device_train_batch_size": Code(size)}, note=room)
    return Proposal(
        title=f"batch {samples} → {samples * chosen:g}" if samples else f"batch × {chosen:g}",
        evidence=spans(case, text, graph.resource == DEVICE),
        fix=case.stack.fix(
            _loading(case, size) + room,
            setting,
            trl=setting + "\nor, with short samples: " + arguments("SFTConfig", {"packing": True}).otherwise()
            if case.trains_on_tokens
            else setting,
        ),
        change=scaled_batch(case, chosen, longer=longer.tokens),
        best=scaled_batch(case, chosen, 0, longer.tokens),
        worst=slower_host(case, _at_worst(case, chosen, longer.tokens)),
        lumps={"new_shapes": longer.new_shapes} if longer.new_shapes < 1 else {},
        work=float(chosen),
        claims=("free_memory", "padded_rows"),
        odds=1.0 if largest_factor(case) is not None else calibrated.ROOM_ODDS.value,
        changes=f"{chosen:g} times the samples in an optimizer step",
    )


def _loading(case: Analysis, size: str) -> Fix:
    """Where the samples of a batch come from: a DataLoader, unless a run recorded none."""
    if case.run is not None and case.run.loader is None:
        return assigned("batch_size", Code(size)) + "  # where the program makes its batches: it uses no DataLoader"
    return call("DataLoader", ..., batch_size=Code(size))


def _absent(case: Analysis) -> str | None:
    limit = largest_factor(case)
    if limit is not None and limit < FACTORS[0]:
        return "twice the batch does not fit in the GPU's memory"
    if not model_phases(case.graph).any():
        return None
    twice = case.step_of(scaled_batch(case, FACTORS[0])(case.graph))
    return f"twice the samples take {twice / case.step_ns:.2f} times as long"


ABSENT = Absent("larger batch", _absent)


def _at_worst(case: Analysis, factor: float, longer: float) -> Change:
    """The worst case: kernels and communication grow most."""
    grown, moving = scaled_batch(case, factor, 2, longer), communication_at_worst(case.graph, factor * longer)
    return lambda graph: moving(grown(graph))


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    role="batch_size",
    again=True,
    synonyms=("batch", "batch_size", "per_device_train_batch_size"),
    titles=("the_batch", "once_memory_is_freed", "batch_once_memory_is_freed", "the_batch_once_memory_is_freed"),
)
