"""Waits for batches and for other ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from gpuprof.calibration import loader as loader_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart
from gpuprof.replay.graph import INPUT, Graph
from gpuprof.replay.split_collectives import waiting, without_waiting
from gpuprof.replay.transform import scaled


def batches(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Making batches in the training process, or waiting for loader workers; the reach is the time to take a batch that
    is ready."""
    nodes = case.graph.resource == INPUT
    total = case.per_step(float(case.graph.duration_ns[nodes].sum()))
    if total <= loader_calibrated.FETCH_NS.value:
        return
    left = loader_calibrated.FETCH_NS.value / total
    workers = case.run.loader.get("num_workers") if case.run and case.run.loader else None
    yield LedgerPart(
        kind="input",
        what="getting the next batch",
        nodes=nodes,
        change=lambda graph: scaled(graph, nodes, left),
        reach=left,
        why="the training process makes its batches itself" if workers == 0 else None,
        cost="batches",
    )


def peers(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Waiting inside collectives for later ranks."""
    nodes = waiting(case.graph)
    if not nodes.any():
        return

    def change(graph: Graph) -> Graph:
        return without_waiting(graph)

    yield LedgerPart(
        kind="communication",
        what="waiting for other ranks in collectives",
        nodes=nodes,
        change=change,
        why="other ranks arrive later",
        cost="later_ranks",
    )
