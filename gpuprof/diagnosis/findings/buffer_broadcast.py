"""DistributedDataParallel sends the model's buffers from one rank to all others before every forward pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.result.fix import Code, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import removed, without_waits
from gpuprof.tracefile.trace import I64

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

FORWARD = "DistributedDataParallel.forward"
"""Range of the wrapper's forward pass, which begins with the broadcast."""
BROADCAST = "c10d::broadcast_"
PARTS = frozenset(
    {
        *(BROADCAST, "nccl:broadcast", "nccl:_broadcast_oop", "gloo:broadcast", "record_param_comms"),
        *("aten::flatten_dense_tensors", "aten::unflatten_dense_tensors", "aten::copy_"),
    }
)
"""Ops of a broadcast of many tensors: they are flattened into one, sent, and copied back one by one."""

PAGE = Page(
    id="buffer_broadcast",
    applies=("training",),
    title="Buffers are broadcast before every forward pass",
    means="""
DistributedDataParallel with `broadcast_buffers=True`, its default, sends all buffers of the model from rank 0 to the
other ranks before each forward pass in training: running statistics of batch norm, position ids, masks, tables of
rotary embeddings. The buffers are joined to one tensor, sent, split into views again and copied back one after another:
one small copy for each buffer, and all ranks wait for rank 0.
""",
    detected=f"""
Forward passes of DistributedDataParallel that begin with `{BROADCAST}`, in a job of several processes.
""",
    gain="""
The ops from the first broadcast to the last copy, their kernels and copies and the waits for them are removed.
""",
    wrong="""
Batch norm does not read its running statistics in training, so ranks compute the same without the broadcast; rank 0
saves its own, as before. Evaluation on several ranks reads each rank's own statistics. Buffers that the model changes
from its data and reads in training (a queue of features, a codebook updated by moving averages) need the broadcast, or
a synchronisation of their own.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to leave the buffers to each rank."""
    if case.trace.meta.world_size == 1:  # see the finding one_process_wrapper
        return
    found, copies = broadcasts(case)
    if not len(found):
        return
    graph = case.graph
    nodes = nodes_in(graph, found) >= 0
    on_cpu = case.per_step(float(graph.duration_ns[nodes & ~graph.on_gpu & ~graph.waits].sum()))
    text = (
        f"{case.per_step(len(found)):,.0f} forward passes {case.unit.a} begin with a broadcast of buffers, and"
        f" {case.per_step(copies):,.0f} copies of them: {duration(on_cpu)} of CPU time"
    )

    def without(graph: Graph) -> Graph:
        return removed(without_waits(graph, nodes & graph.waits), nodes)

    yield Proposal(
        title="no broadcast of buffers",
        evidence=spans(case, text, nodes),
        fix=case.stack.fix(
            call("DistributedDataParallel", Code("model"), ..., broadcast_buffers=False),
            case.stack.setting({"ddp_broadcast_buffers": False}),
            lightning=call("DDPStrategy", broadcast_buffers=False) + "  # the Trainer's strategy",
        ),
        change=without,
    )


def broadcasts(case: Analysis) -> tuple[Stretches, int]:
    """The broadcasts that forward passes begin with, and the number of copies in them."""
    trace, parent = case.trace, case.timeline.nesting.parent
    ops = trace.ops
    found: list[tuple[int, int, int]] = []
    copies = 0
    for forward in np.flatnonzero(case.ops_named(FORWARD.__eq__)).tolist():
        children = np.flatnonzero(parent == forward)
        children = children[np.argsort(ops.start_ns[children], kind="stable")]
        rows = _first_parts(case, children)
        names = [trace.text(int(name)) for name in ops.name[rows]]
        if BROADCAST in names:
            found.append((int(ops.thread[forward]), int(ops.start_ns[rows[0]]), int(ops.end_ns[rows[-1]])))
            copies += names.count("aten::copy_")
    thread, start_ns, end_ns = np.array(found, np.int64).reshape(-1, 3).T
    return Stretches(thread, start_ns, end_ns), copies


def _first_parts(case: Analysis, rows: I64) -> I64:
    """The first run of a broadcast's parts among these ops."""
    of_it = np.array([case.trace.text(int(name)) in PARTS for name in case.trace.ops.name[rows]], bool)
    begin = int(of_it.argmax()) if of_it.any() else len(rows)
    others = np.flatnonzero(~of_it[begin:])
    return rows[begin : begin + int(others[0])] if len(others) else rows[begin:]


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "a broadcast of buffers before each forward pass", "each rank has them already", stage="discarded"
    ),
    synonyms=("broadcast_buffers", "ddp_buffers", "sync_buffers", "batch_norm_statistics"),
    titles=("no_broadcast_of_buffers",),
)
