"""Waits of the CPU for copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.tracefile.trace import Mask

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis


def copies_to_device(case: Analysis, waits: Mask) -> Mask:
    """Waits in ops that copy from the CPU to the device."""
    return in_copies(case, waits, case.trace.rows_named(case.trace.gpu.name, lambda text: "HtoD" in text))


def in_copies(case: Analysis, waits: Mask, copies: Mask) -> Mask:
    """Waits in the calls that launch these copies, or in the ops around them. `copies`: mask of GPU events."""
    trace, graph, links = case.trace, case.graph, case.timeline.links
    copying = np.zeros(len(trace.ops) + 1, bool)
    copying[links.op[copies]] = True
    copying[-1] = False
    calls = np.zeros(len(trace.calls) + 1, bool)
    calls[links.call[copies]] = True
    calls[-1] = False
    return waits & (copying[graph.scope] | calls[graph.call])
