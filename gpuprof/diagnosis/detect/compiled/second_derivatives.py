"""Programs that differentiate gradients, and the CUDA graph of a whole step that is left to them: code that
torch.compile generates has a derivative, but no second one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.compiled.captured_graphs import captured, partly_captured
from gpuprof.diagnosis.detect.compiled.compiled_passes import waits_in_passes, within_passes
from gpuprof.diagnosis.detect.compiled.graph_breaks import Breaks, first_links, once_gone
from gpuprof.tracefile.trace import Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change


@dataclass(frozen=True, slots=True)
class CapturedStep:
    """The passes of a step in one CUDA graph, captured by the program itself."""

    chain: Breaks | None
    """What has to be removed first."""
    host: Mask
    """CPU work that launches the passes."""
    kernels: float
    """GPU work of the passes, per step."""
    changes: tuple[Change, Change, Change]
    """At best, as expected, at worst."""


def captured_step(case: Analysis) -> CapturedStep | None:
    """The step with the passes in a graph; None if something waits in them that is not known to go away."""
    chain = first_links(case)
    if chain is None and waits_in_passes(case):
        return None
    graph, (within, _) = case.graph, within_passes(case)
    host, work = within & (graph.lane >= 0) & ~graph.waits, within & graph.on_gpu
    if not host.any():
        return None
    best, usual = (once_gone(chain, captured(graph, host, work, 1, way)) for way in range(2))
    worst = once_gone(chain, partly_captured(host))
    return CapturedStep(chain, host, case.per_step(float(work.sum())), (best, usual, worst))
