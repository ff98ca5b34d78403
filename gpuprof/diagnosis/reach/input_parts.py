"""Waits for batches and for other ranks."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

from gpuprof.calibration import loader as loader_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.batches.loader_workers import workers_of
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart
from gpuprof.replay.graph import INPUT, Graph
from gpuprof.replay.split_collectives import waiting, without_waiting
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.run_folder.samples import read_samples


def batches(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Making batches in the training process, or waiting for loader workers; the reach is the time to take a batch that
    is ready."""
    nodes = case.graph.resource == INPUT
    total = case.per_step(float(case.graph.duration_ns[nodes].sum()))
    if total <= loader_calibrated.FETCH_NS.value:
        return
    left = loader_calibrated.FETCH_NS.value / total
    yield LedgerPart(
        kind="input",
        what="getting the next batch",
        nodes=nodes,
        change=lambda graph: scaled(graph, nodes, left),
        reach=left,
        why=_why(case),
        cost="batches",
    )


def _why(case: Analysis) -> str | None:
    """Why the training gets its batches late; None if samples of its workers tell, which are shown elsewhere."""
    if workers_of(case) == 0:
        return f"the {'' if case.workload.is_inference else 'training '}process makes its batches itself"
    samples = read_samples(Path(case.folder.path), case.folder.rank) if case.folder else None
    if samples is not None and len(samples.worker_node):
        return None
    return "what its workers do is not recorded (gpuprof trace --sample-workers)"


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
