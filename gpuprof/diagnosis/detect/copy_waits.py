"""Waits of the host for copies to the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.tracefile.trace import Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


def copies_to_device(case: Analysis, waits: Mask) -> Mask:
    """Waits in ops that copy from the host to the device."""
    trace, graph, links = case.trace, case.graph, case.timeline.links
    up = trace.rows_named(trace.gpu.name, lambda text: "HtoD" in text)
    copying = np.zeros(len(trace.ops) + 1, bool)
    copying[links.op[up]] = True
    copying[-1] = False
    calls = np.zeros(len(trace.calls) + 1, bool)
    calls[links.call[up]] = True
    calls[-1] = False
    return waits & (copying[graph.scope] | calls[graph.call])
