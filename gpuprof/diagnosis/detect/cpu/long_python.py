"""Stretches of Python that no other finding is about: on the training thread, in no op and no call, and in autograd's
engine, around the gradients of a node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import slow as calibrated
from gpuprof.diagnosis.detect.cpu.collecting import collecting
from gpuprof.diagnosis.detect.cpu.offloaded import computed_on_cpu, find_offload
from gpuprof.projection.changes.sample_preparation import preparing
from gpuprof.record.phases.phase_names import ENVIRONMENT, PART_RANGE, REWARD, UNRECORDED_RANGE, range_of
from gpuprof.replay.graph import HOST, Graph
from gpuprof.timeline.cpu.silence import holes
from gpuprof.timeline.intervals import Cover
from gpuprof.timeline.phases import OPTIMIZER as PHASE_OF_OPTIMIZER
from gpuprof.tracefile.trace import ANNOTATION, AUTOGRAD_ENGINE, Mask
from gpuprof.units import Assumed, Share, WholeNs

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_STRETCH_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step that each of them takes: a slow CPU takes a millisecond for a trainer's Python code."""
LEAST_OWN_WORK_NS: Assumed[WholeNs] = 100_000
"""Python between two ops of this length, ns, or more is no mere call of a module, and what the engine does around a
node is more than its own bookkeeping: that takes 2 to 50 µs."""
ACCUMULATES = "torch::autograd::AccumulateGrad"
"""The node that adds to a gradient; hooks that are registered for after that run in its op."""
OPTIMIZER = "Optimizer."
"""Prefix of the ranges that torch opens around an optimizer's methods."""
_OTHERS = (UNRECORDED_RANGE, PART_RANGE, range_of(REWARD), range_of(ENVIRONMENT))
"""Prefixes of ranges that other findings, or the changes of an iteration, are about: each iteration needs its
rewards."""


def long_stretches(case: Analysis, least: Share = LEAST_STRETCH_SHARE, shortest_ns: float | None = None) -> Mask:
    """The stretches as nodes of the graph, without unrecorded time that occurs in only a few steps, which may be
    anything. `least`: smallest share of the step of each; `shortest_ns`: its smallest length if not that of work of
    its own."""
    graph = case.graph
    outside = np.append(case.trace.ops.kind == ANNOTATION, True)[graph.scope] & (graph.call < 0)
    python = outside & (graph.resource == HOST) & ~graph.waits & (graph.lane == case.timeline.main_thread)
    shortest_ns = calibrated.STRETCH_NS.value if shortest_ns is None else shortest_ns
    long = graph.duration_ns >= max(shortest_ns, least * case.step_ns)
    nodes = python & long & ~preparing(graph) & ~_silent(graph)
    garbage = collecting(case)
    if garbage is not None:
        nodes[garbage.nodes] = False
    for found in (find_offload(case), computed_on_cpu(case)):
        if found is not None:
            nodes &= ~found.stretches
    others, optimizers = (
        np.append(case.ops_within(case.ops_named(lambda name, of=of: name.startswith(of))), False)[graph.scope]
        for of in (_OTHERS, OPTIMIZER)
    )
    # A closure runs the passes, and whatever else a training step does, in the optimizer's range.
    return nodes & ~others & ~(optimizers & (graph.phase == PHASE_OF_OPTIMIZER))


def in_engine(case: Analysis) -> Mask:
    """What autograd's engine does around a node at a stretch, or in the node that adds to a gradient after it has done
    so, in no op within it and in no call: hooks of gradients, in Python."""
    graph = case.graph
    engine = case.ops_named(lambda name: name.startswith(AUTOGRAD_ENGINE) or name == ACCUMULATES)
    around = np.append(engine, False)[graph.scope]
    host = (graph.resource == HOST) & (graph.lane >= 0) & ~graph.waits & (graph.call < 0)
    return around & host & (graph.duration_ns >= LEAST_OWN_WORK_NS)


def _silent(graph: Graph) -> Mask:
    """Nodes that lie in holes for the most part."""
    found, low = holes(graph.timeline), graph.timeline.window[0]
    if not len(found):
        return np.zeros(len(graph), bool)
    start, end = (np.round(t).astype(np.int64) + low for t in (graph.recorded_start_ns, graph.recorded_end_ns))
    return (end > start) & (2 * Cover(found).between(start, end) > end - start)
