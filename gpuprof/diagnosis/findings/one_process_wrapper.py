"""A wrapper for several processes around the model of a run with one process: DDP, FSDP."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprof.calibration import collectives as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.cpu.offloaded import find_offload
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, as_fix, call, code, in_file
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import COMMUNICATION, Graph
from gpuprof.replay.transform import removed, scaled, without_waits
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

WRAPPER = re.compile(
    r"^(FSDP::|FullyShardedDataParallel\.(?!forward$)|c10d::|nccl:|torch::distributed::reducer::|"
    r"torch\.distributed\.ddp\.reducer::)"
)
"""Ranges and ops of DDP's and FSDP's own work; their `forward` ranges contain the model."""
LEAST_WRAPPER_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step in such work, on the CPU or on the GPU, for a proposal."""

PAGE = Page(
    id="one_process_wrapper",
    applies=("training",),
    title="A single process wraps its model for several",
    means="""
`torchrun --nproc_per_node 1`, a launcher's default configuration or code that was written for eight GPUs wraps the
model in DistributedDataParallel or FSDP although one process runs. Nothing is exchanged and nothing is sharded: FSDP
with one rank keeps the whole model. The work stays: gradients are copied into buckets and scaled, weights are copied
into flat tensors and out of them for each layer, collectives start, and hooks run around every module and gradient.
""",
    detected=f"""
A recording whose number of processes is 1, with ranges or ops of DDP's reducer, of FSDP or of collectives that take at
least {percent(LEAST_WRAPPER_SHARE)} % of the step on the CPU or on the GPU. Not where data is kept in host memory: that
may be what the wrapper is for (see [offload](offload.md)).
""",
    gain=f"""
These ranges and ops, their kernels and waits are removed; {percent(calibrated.WRAPPER_CASTS.value)} % of their kernels'
time stays ({percent(calibrated.WRAPPER_CASTS.low)} to {percent(calibrated.WRAPPER_CASTS.high)} %, assumed), because
weights in fp32 have to be cast for mixed precision without FSDP, too. What hooks cost outside of these ranges is not
counted.
""",
    wrong=f"""
A test of a job that will run on more GPUs has a reason for the wrapper. The probability that it can go is
{percent(calibrated.NO_WRAPPER_ODDS.value)} % (assumed).
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes the model without its wrapper."""
    nodes = _nodes(case)
    if nodes is None or find_offload(case) is not None:
        return
    graph = case.graph
    on_cpu, on_gpu = (
        case.per_step(float(graph.duration_ns[nodes & side & ~graph.waits].sum()))
        for side in (~graph.on_gpu, graph.on_gpu)
    )
    if max(on_cpu, on_gpu) < LEAST_WRAPPER_SHARE * case.step_ns:
        return
    text = (
        f"one process, and {duration(on_cpu)} of CPU time and {duration(on_gpu)} of GPU time {case.unit.a} in DDP, FSDP"
        f" or collectives: {case.per_step(float((nodes & graph.on_gpu).sum())):,.0f} kernels and copies"
    )
    best, usual, worst = (_without(nodes, left) for left in calibrated.WRAPPER_CASTS.rising)
    yield Proposal(
        title="no wrapper for several processes around one",
        evidence=spans(case, text, nodes),
        fix=case.stack.fix(
            code("if torch.distributed.get_world_size() > 1:\n    ")
            + call("DistributedDataParallel", Code("model"))
            + "  # or fully_shard(model); else the model as it is\n"
            + in_file("distributed_type: 'NO'", "distributed_type", "NO", "accelerate's configuration").otherwise()
            + "  # with accelerate",
            lightning=call("Trainer", ..., strategy="auto") + "  # not ddp or fsdp",
            transformers=as_fix(
                "start the program with python, not with torchrun or a configuration for several processes"
            )
            + "\n"
            + case.stack.setting({"fsdp": ""}).otherwise(),
        ),
        change=usual,
        best=best,
        worst=worst,
        odds=calibrated.NO_WRAPPER_ODDS.value,
        needs="the program keeps running in one process",
    )


def _nodes(case: Analysis) -> Mask | None:
    """Nodes of the wrapper; None with several processes, or if their number is not known."""
    trace = case.trace
    if trace.meta.world_size != 1:
        return None
    nodes = case.nodes_within(case.ops_named(WRAPPER.match))
    return nodes | (case.graph.resource == COMMUNICATION) if nodes.any() else None


def _without(nodes: Mask, left: float) -> Change:
    """The step without the wrapper; `left`: share of its kernels' time that stays."""

    def change(graph: Graph) -> Graph:
        stays = nodes & graph.on_gpu & (left > 0)
        free = without_waits(graph, nodes & graph.waits)
        return scaled(removed(free, nodes & ~stays), stays, left)

    return change


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "DDP or FSDP around a single process", "nothing is exchanged with other processes", stage="discarded"
    ),
    synonyms=("single_process_ddp", "single_gpu_fsdp", "world_size_1", "torchrun", "distributed_data_parallel"),
    titles=("no_wrapper_for_several_processes_around_one",),
)
