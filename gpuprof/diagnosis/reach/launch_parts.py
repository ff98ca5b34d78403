"""Small kernels that the CPU launches one by one, where the GPU waits for that in most of the step."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import partial

import numpy as np

from gpuprof.calibration import compile as calibrated
from gpuprof.calibration import slow as slow_calibrated
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.compiled_code import COMPILED_SHARE, compiled_share
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart
from gpuprof.diagnosis.idle.gaps import CAUSES
from gpuprof.diagnosis.sentences import duration
from gpuprof.diagnosis.verdict.estimate import host_causes
from gpuprof.replay.graph import HOST
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import Mask
from gpuprof.units import Assumed, Share

LEAST_LAUNCHING: Assumed[Share] = 0.5
"""Smallest share of the step that is gone if launches cost next to nothing, for them to be an item. Below it the reach
is that of this CPU, which launches the kernels at its own pace."""


def launches(case: Analysis, advised: Collection[str]) -> Iterator[LedgerPart]:
    """Launching, and the short Python in between; the reach is the time from one kernel of a CUDA graph to the next."""
    graph, nodes = case.graph, _launching(case)
    spent, kernels = float(graph.duration_ns[nodes].sum()), int(graph.on_gpu.sum())
    if case.per_step(spent) < LEAST_LAUNCHING * case.step_ns:
        return
    left = min(calibrated.NEXT_NS.value * kernels / spent, 1.0)
    change = partial(scaled, nodes=nodes, factor=left)
    if case.step_of(change(graph)) > (1 - LEAST_LAUNCHING) * case.step_ns:
        return
    usual = float(np.median(graph.duration_ns[graph.on_gpu]))
    fewer = "" if compiled_share(case.timeline) >= COMPILED_SHARE else ", and a compiler makes fewer of them"
    yield LedgerPart(
        kind="host",
        what="small kernels, launched one by one",
        nodes=nodes,
        change=change,
        reach=left,
        why=f"{case.per_step(kernels):,.0f} {case.unit.a}, half of them under {duration(usual)}, and the GPU waits for"
        f" the next; a CUDA graph launches all at once{fewer}",
        cost="launching",
    )


def _launching(case: Analysis) -> Mask:
    """Nodes of CPU threads that launch, and short Python between ops."""
    graph = case.graph
    causes = host_causes(graph)
    short = (causes == CAUSES.index("python")) & (graph.duration_ns < slow_calibrated.STRETCH_NS.value)
    host = (graph.resource == HOST) & (graph.lane >= 0) & ~graph.waits
    return host & ((causes == CAUSES.index("launch")) | short)
