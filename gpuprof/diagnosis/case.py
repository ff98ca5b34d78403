"""What a finding looks at: the timeline, the step's graph without the profiler's cost, and what is known of the run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from gpuprof.costs.roofline import Roofline
from gpuprof.diagnosis.budget_model import Budget
from gpuprof.diagnosis.frozen_passes import FrozenPasses, find_frozen_passes
from gpuprof.diagnosis.input_kind import trains_on_tokens
from gpuprof.diagnosis.run_budget import Feed
from gpuprof.diagnosis.run_model import Run
from gpuprof.diagnosis.stack import Stack
from gpuprof.replay.graph import Graph
from gpuprof.replay.mean_step import MeanStep
from gpuprof.replay.profiler_fit import Removal
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.replay.simulate import ROUNDS, Schedule, simulate, step_of
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.nesting import climb, inside
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.workload import Workload
from gpuprof.tracefile.trace import I64, Mask, Trace

Change = Callable[[Graph], Graph]


@dataclass(frozen=True)
class Case:
    """One recording with everything that is known about it."""

    timeline: Timeline
    """The steps that are replayed: all, or some of many."""
    origin_ns: int
    """Start of the diagnosed window, which what is shown counts from, on the trace's own clock."""
    removal: Removal
    sensitivities: Sensitivities
    roofline: Roofline | None
    run: Run | None
    stack: Stack
    mean_step: MeanStep | None = None
    """How the mean step follows from a graph; None: it is the usual step."""
    budget: Budget | None = None
    """Of the mean step, where steps of a run were timed."""
    feed: Feed | None = None
    """The workers that prepare batches, where their pace is known."""
    versions: Mapping[str, str | int | float] = field(default_factory=dict)
    """Of torch (`torch_version`), CUDA and packages, from the trace and the run."""
    memo: dict[str, Any] = field(default_factory=dict, repr=False)
    """What several findings look for, found once."""

    @property
    def trace(self) -> Trace:
        return self.timeline.trace

    @property
    def workload(self) -> Workload:
        """Whether it is training or inference."""
        return self.timeline.workload

    @property
    def graph(self) -> Graph:
        """The recorded steps without the profiler's cost."""
        return self.removal.graph

    @property
    def step_ns(self) -> float:
        """The usual step."""
        return self.removal.step_ns

    @cached_property
    def mean(self) -> MeanStep:
        """From a graph to the mean step."""
        return self.mean_step or MeanStep(self.graph)

    @cached_property
    def mean_ns(self) -> float:
        """The mean step as it is: what every gain is measured against."""
        return self.mean.now_ns()

    @property
    def steps(self) -> int:
        return self.graph.steps

    @cached_property
    def trains_on_tokens(self) -> bool:
        """Whether the trained model takes the tokens of a text: advice for language models is for nothing else."""
        return trains_on_tokens(self.timeline, self.run)

    @cached_property
    def frozen_passes(self) -> FrozenPasses | None:
        """Modules that run in a step and are not trained by it, where the recording tells modules."""
        return find_frozen_passes(self.timeline)

    def step_of(self, graph: Graph) -> float:
        """What a step takes of a changed graph, ns."""
        return step_of(graph)

    @cached_property
    def schedule(self) -> Schedule:
        """The unchanged graph in its loop."""
        return simulate(self.graph, ROUNDS)

    @property
    def devices(self) -> int:
        """GPUs that did work."""
        return max(len(self.timeline.devices), 1)

    # -- where things are, as masks

    def ops_named(self, test: Callable[[str], object]) -> Mask:
        """Rows of ops (annotations too) whose name passes."""
        return self.trace.rows_named(self.trace.ops.name, test)

    def ops_within(self, ops: Mask) -> Mask:
        """Rows of ops that are, or lie in, one of the ops of a mask."""
        return inside(self.timeline.nesting, ops)

    def outermost(self, ops: Mask) -> I64:
        """Rows of the mask that lie in no other of its rows."""
        rows = np.flatnonzero(ops)
        above = climb(self.timeline.nesting.parent[rows], self.timeline.nesting.parent, ops)
        return rows[above < 0]

    def nodes_within(self, ops: Mask) -> Mask:
        """Nodes of the graph, host work and what it launched, that lie in the ops of a mask or in what those hold."""
        inside = np.append(self.ops_within(ops), False)
        return inside[self.graph.scope]

    def nodes_of_gpu(self, rows: Mask) -> Mask:
        """Nodes of the GPU events of a mask over the trace's."""
        return np.append(rows, False)[self.graph.gpu_row]

    def nodes_in_calls(self, calls: Mask) -> Mask:
        """Host nodes (own work and waits) of the calls of a mask over the trace's."""
        return np.append(calls, False)[self.graph.call] & ~self.graph.on_gpu

    def category(self, *names: str) -> Mask:
        """GPU events of the trace of some categories."""
        return np.isin(self.timeline.category, [CATEGORIES.index(name) for name in names])

    def per_step(self, ns_or_count: float) -> float:
        return ns_or_count / self.steps

    def gpu_ns(self, rows: Mask) -> float:
        """Summed duration of GPU events."""
        gpu = self.trace.gpu
        return float((gpu.end_ns - gpu.start_ns)[rows].clip(0).sum())
