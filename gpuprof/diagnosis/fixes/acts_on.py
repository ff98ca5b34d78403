"""Which resources a fix relieves, to compare the first fix with the verdict."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import Proposal
from gpuprof.replay.graph import COMMUNICATION, DEVICE, HOST, INPUT, TRANSFER
from gpuprof.replay.mean_step import resource_of_lump
from gpuprof.units import Assumed, Share

LEAST_SAVED_SHARE: Assumed[Share] = 0.03
"""Smallest share of the step that a fix must take off a resource to count as acting on it."""
CODES = {"host": HOST, "input": INPUT, "transfer": TRANSFER, "communication": COMMUNICATION, "device": DEVICE}


def acts_on(case: Analysis, proposal: Proposal) -> tuple[str, ...]:
    """Resources that a fix relieves for the same number of samples, the most relieved first."""
    graph, found = case.graph, dict[str, float]()
    then = proposal.change(graph)
    if len(then) == len(graph):
        for name, code in CODES.items():
            mask = graph.resource == code
            saved = float(graph.duration_ns[mask].sum()) - float(then.duration_ns[mask].sum()) / proposal.work
            found[name] = saved / max(graph.steps, 1)
        # Without a wait the CPU gets to its next work earlier.
        if not np.array_equal(then.edges.lag_ns, graph.edges.lag_ns):
            found["host"] = max(found["host"], LEAST_SAVED_SHARE * case.mean_ns)
    for cause, left in proposal.lumps.items():
        resource = resource_of_lump(cause) or "host"  # saving, evaluating and logging are the program's own doing
        found[resource] = found.get(resource, 0.0) + (1 - left) * case.mean.lumps_ns.get(cause, 0.0)
    if proposal.loader is not None:
        found["input"] = max(found.get("input", 0.0), LEAST_SAVED_SHARE * case.mean_ns)
    named = [name for name, ns in found.items() if ns >= LEAST_SAVED_SHARE * case.mean_ns]
    return tuple(sorted(named, key=lambda name: -found[name]))
