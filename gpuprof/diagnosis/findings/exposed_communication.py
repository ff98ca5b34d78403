"""Collectives without overlapping computation."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import collectives as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, Fix, call, code
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import COMMUNICATION, DEVICE
from gpuprof.replay.split_collectives import estimate_transfers, waiting
from gpuprof.replay.transform import removed, scaled
from gpuprof.timeline.intervals import Cover, union
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import MB, Assumed, Convention, Copies, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_EXPOSED_SHARE: Assumed[Share] = 0.03
"""Smallest share of the step of exposed transfers: with less, the fix would gain less than the noise of a step."""
FEWEST_BUCKETS: Assumed[Copies] = 4
"""Fewest exchanges per step; with fewer, each waits for most of the gradients and has little left to overlap with."""
SMALLER_MB: Convention[MB] = 5
LARGER_MB: Convention[MB] = 100
"""Bucket sizes to propose: a fifth and four times DistributedDataParallel's 25 MB."""

PAGE = Page(
    id="exposed_communication",
    removes="communication",
    applies=("training",),
    title="Communication does not overlap with computation",
    means="""
Ranks exchange gradients (DDP) or weights and gradients (FSDP) on a separate stream so that the GPU can compute at the
same time. Communication that does not overlap is exposed and lengthens the step. Typical causes: buckets that fill
only at the end of the backward pass, weights that are requested only when they are needed, gradients that are
exchanged after every micro-step of an accumulation.
""",
    detected=f"""
In the replayed step, the time in which a collective transfers data and no kernel runs, at least
{percent(LEAST_EXPOSED_SHARE)} % of the step. Waiting for a late peer is not transfer: that is covered by comparing the
ranks. All-reduces in more than one backward pass of a step are counted separately.
""",
    gain=f"""
{percent(calibrated.HIDDEN.value)} % of the exposed transfers are hidden behind computation
({percent(calibrated.HIDDEN.low)} to {percent(calibrated.HIDDEN.high)} %), and {percent(calibrated.GIVEN_BACK.value)} %
of the hidden time comes back as longer kernels ({percent(calibrated.GIVEN_BACK.low)} % to all of it), because transfers
take SMs, bandwidth and power from the kernels they overlap with. Where only the last micro-step has to exchange
gradients (`no_sync`), the other collectives are removed from the graph.
""",
    wrong="""
From the recording of one rank the transfer time is known only roughly. If the network is saturated, overlapping does
not help further; then exchange less: larger batches per step, fewer gradients (train adapters only), or gradients in
lower precision.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes overlap, and no exchange between micro-steps."""
    graph = case.graph
    collective = graph.on_gpu & (graph.resource == COMMUNICATION)
    transfers = collective & ~waiting(graph)
    if not transfers.any():
        return
    exposed = _exposed_share(case, transfers)
    exposed_ns = case.per_step(float((graph.duration_ns * exposed)[transfers].sum()))
    if exposed_ns < LEAST_EXPOSED_SHARE * case.step_ns:
        return
    sharded = _named(case, collective, ("AllGather", "ReduceScatter"))
    between = _between_micro_steps(case, collective & _named(case, collective, ("AllReduce",)))
    text = (
        f"{case.per_step(transfers.sum()):,.0f} collectives a step, "
        f"{duration(exposed_ns)} of transfers without overlapping computation"
    )
    if between.any():
        yield Proposal(
            title="gradients exchanged once per optimizer step",
            evidence=spans(
                case, f"{case.per_step(between.sum()):,.0f} all-reduces a step belong to earlier micro-steps", between
            ),
            fix=code("with ")
            + call("model.no_sync")
            + code(":")
            + "  # around forward and backward of all but the last micro-step",
            change=partial(removed, nodes=between),
            key="no_sync",
        )

    few = case.per_step(float(transfers.sum())) < FEWEST_BUCKETS

    def change(level: int):
        saved = calibrated.HIDDEN.falling[level] * (1 - calibrated.GIVEN_BACK.rising[level])
        return partial(scaled, nodes=transfers, factor=1 - saved * exposed)

    yield Proposal(
        title="communication overlapped with computation",
        evidence=spans(case, text, transfers & (exposed > 0)),
        fix=_fix(case, bool(sharded.any()), SMALLER_MB if few else LARGER_MB),
        change=change(1),
        best=change(0),
        worst=change(2),
        key="overlap",
    )


def _fix(case: Analysis, sharded: bool, bucket_mb: int) -> Fix:
    if sharded:
        return case.stack.fix(
            call("fully_shard", Code("layer"), reshard_after_forward=False)
            + "  # where memory allows\n"
            + call("layer.set_modules_to_forward_prefetch", Code("[next]"))
            + ", "
            + call("layer.set_modules_to_backward_prefetch", Code("[previous]")),
            case.stack.setting({"fsdp_config": {"reshard_after_forward": False}}, note="  # where memory allows"),
        )
    return case.stack.fix(
        call("DistributedDataParallel", ..., bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True, static_graph=True),
        case.stack.setting({"ddp_bucket_cap_mb": bucket_mb}, {"ddp_find_unused_parameters": False}),
    )


def _exposed_share(case: Analysis, transfers: Mask) -> F64:
    """Per node the part of its time that is a transfer without an overlapping compute kernel on its device, in the
    replayed step: a collective's transfer is its last part, after waiting for peers."""
    graph, schedule = case.graph, case.schedule
    moving = _moving_ns(case, transfers)
    end = np.round(schedule.end_ns).astype(np.int64)
    start = np.round(schedule.end_ns - moving).astype(np.int64)
    device = np.where(graph.on_gpu, case.trace.gpu.device[graph.gpu_row], -1)
    share = np.zeros(len(graph))
    for one in np.unique(device[transfers]).tolist():
        kernels = graph.on_gpu & (graph.resource == DEVICE) & (device == one)
        rows = np.flatnonzero(transfers & (device == one) & (end > start))
        begun = np.round(schedule.start_ns[kernels]).astype(np.int64)
        covered = Cover(union(begun, end[kernels])).between(start[rows], end[rows])
        share[rows] = (end[rows] - start[rows] - covered) / np.maximum(graph.duration_ns[rows], 1.0)
    return share.clip(0.0, 1.0)


def _moving_ns(case: Analysis, transfers: Mask) -> F64:
    """Per node how long it moves data, ns: by message size and link, or else as long as the shortest kernel of its
    name."""
    graph, names = case.graph, case.trace.gpu.name
    known = np.append(estimate_transfers(case.timeline), np.nan)[graph.gpu_row]
    rows = np.flatnonzero(transfers)
    shortest = np.full(len(case.trace.strings), np.inf)
    np.minimum.at(shortest, names[graph.gpu_row[rows]], graph.duration_ns[rows])
    moving = np.zeros(len(graph))
    guess = shortest[names[graph.gpu_row[rows]]]
    moving[rows] = np.fmin(np.where(np.isnan(known[rows]), guess, known[rows]), graph.duration_ns[rows])
    return moving


def _named(case: Analysis, nodes: Mask, names: tuple[str, ...]) -> Mask:
    """Nodes of collectives whose kernel has one of these names."""
    trace = case.trace
    wanted = trace.rows_named(trace.gpu.name, lambda text: any(name in text for name in names))
    return nodes & case.nodes_of_gpu(wanted)


def _between_micro_steps(case: Analysis, reductions: Mask) -> Mask:
    """Reductions launched in a backward pass that is not the last of its step."""
    graph, timeline = case.graph, case.timeline
    passes, ends = timeline.host.backward, timeline.steps.end_ns
    calls = case.trace.calls
    rows = np.flatnonzero(reductions & (graph.call >= 0))
    found = np.zeros(len(graph), bool)
    if len(passes) <= case.steps or not len(rows):
        return found
    launched = calls.start_ns[graph.call[rows]]
    mine = np.searchsorted(passes.start, launched, side="right") - 1
    inside = (mine >= 0) & (launched <= passes.end[np.maximum(mine, 0)])
    step = np.searchsorted(ends, passes.start, side="right")
    last = np.append(step[1:] != step[:-1], True)
    found[rows[inside & ~last[np.maximum(mine, 0)]]] = True
    return found


FINDING = Declaration(
    page=PAGE,
    find=find,
    lowers=("later_ranks",),
    role="communication",
    synonyms=("communication", "nccl", "all_reduce", "no_sync", "ddp", "fsdp", "overlap"),
    titles=("gradients_exchanged_once_per_optimizer_step", "communication_overlapped_with_computation"),
)
