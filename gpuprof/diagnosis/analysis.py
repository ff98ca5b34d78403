"""One recording with everything that is known about it; each fact is computed once, when first needed.

Findings, the verdict, comparisons, projections and reports all read the same object. `diagnose` turns it into a plain
`Diagnosis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.calibration import profiler as calibrated
from gpuprof.diagnosis.mean_step.steps_ahead import cpu_at_most_ns
from gpuprof.diagnosis.recorded.frozen_passes import FrozenPasses, find_frozen_passes
from gpuprof.diagnosis.recorded.input_kind import trains_on_tokens
from gpuprof.diagnosis.recorded.limits import bound_parts
from gpuprof.diagnosis.recorded.replayed import replayed
from gpuprof.diagnosis.recorded.representative_steps import representative
from gpuprof.diagnosis.recorded_facts import RecordedFacts
from gpuprof.diagnosis.result.diagnosis import (
    Diagnosis,
    Replay,
)
from gpuprof.diagnosis.run.sampled_phases import sampled_parts
from gpuprof.diagnosis.run.stack import Stack, stack_of
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.build.build import build
from gpuprof.replay.graph import Graph
from gpuprof.replay.mean_step import MeanStep
from gpuprof.replay.sensitivity import Sensitivities, sensitivities
from gpuprof.replay.several_steps import steps_of
from gpuprof.replay.simulate import Schedule, in_loop, step_of
from gpuprof.replay.unprofiled.profiler_fit import Removal
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.nesting import climb, inside
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.workload import Workload
from gpuprof.tracefile.run_folder.samples import read_samples
from gpuprof.tracefile.trace import F64, I64, Mask, Trace
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    pass

Change = Callable[[Graph], Graph]

NOT_REPLAYED = Replay(None, False)

GPU_BOUND_SLOWED: Assumed[Share] = 0.05
"""A step that recording slows down by less than this share is limited by the GPU, not by the tool's delays."""


@dataclass(frozen=True, eq=False)
class Analysis(RecordedFacts):
    """All facts about one recording. Those about the replay (`removal`, `graph`, `mean`, …) exist only if
    `replay.shown`; those about steps only if `recorded` is not None."""

    # -- the replay

    @cached_property
    def timeline(self) -> Timeline:
        """The steps that are replayed: all, or a selection of many."""
        return representative(self.whole)

    @cached_property
    def origin_ns(self) -> int:
        """Start of the diagnosed window on the trace's clock: time zero of everything that is shown."""
        return self.whole.window[0]

    @cached_property
    def _replayed(self) -> tuple[Replay, Removal | None]:
        if self.recorded is None or not self.device_times or self.quality.status == "unusable":
            return NOT_REPLAYED, None
        steps = self.step_times
        asked, run = self.question, self.folder
        samples = read_samples(Path(run.path), run.rank) if run is not None and self.alone else None
        shares = sampled_parts(samples, steps.unprofiled_ns)
        timed = None if self._of_run is None or run is None else cpu_at_most_ns(run)
        graph = build(self.timeline)
        return replayed(graph, steps.unprofiled_ns, self._spread_ns, asked.of_all_ns, self.plans_apart, shares, timed)

    @property
    def _spread_ns(self) -> tuple[float, float] | None:
        """The 80 % interval of the measured step; None if the run did not time it."""
        facts, inflation = self.run_facts, self.step_times.inflation
        if self.question.asked.step_ms is not None or facts is None or facts.unprofiled is None:
            return None
        low, high = float(facts.unprofiled.low_ns), float(facts.unprofiled.high_ns)
        slowed = facts.under_nsys and inflation is not None and inflation > 1 + GPU_BOUND_SLOWED
        return (low / calibrated.NSYS_WAITING.value if slowed else low), high

    @property
    def replay(self) -> Replay:
        """How well the steps could be replayed."""
        return self._replayed[0]

    @property
    def is_replayed(self) -> bool:
        return "removal" in self.given or self._replayed[1] is not None

    @cached_property
    def removal(self) -> Removal:
        """The graph of the steps without the profiler's cost."""
        found = self._replayed[1]
        assert found is not None
        return found

    @property
    def graph(self) -> Graph:
        """The recorded steps without the profiler's cost."""
        return self.removal.graph

    @property
    def step_ns(self) -> float:
        """The usual step."""
        return self.removal.step_ns

    @property
    def usual_step(self) -> str:
        """How a sentence names the usual step that it compares with: `a step of 190 ms`, or `a usual step of 190 ms` if
        the headline states a different mean step."""
        stated = duration(self.stated(self.step_ns))
        return f"{self.unit.a if stated == duration(self.mean_ns) else f'a usual {self.unit}'} of {stated}"

    def stated(self, ns: float) -> float:
        """Part of the usual step, ns, as sentences state it: scaled to the mean step where both are shown as one."""
        if self.budget is None or self.budget.has_usual_step or not self.step_ns:
            return ns
        return ns * self.mean_ns / self.step_ns

    @cached_property
    def mean(self) -> MeanStep:
        """Computes the mean step of a graph; without a budget this is the usual step."""
        if self.budget is None:
            return MeanStep(self.graph)
        mean = MeanStep(
            self.graph,
            usual_ns=self.budget.usual_ns,
            mean_ns=self.budget.mean_ns,
            loader=None if self.feed is None else self.feed.loader,
            batches=1.0 if self.feed is None else self.feed.batches,
            lumps_ns=self.budget.lumps_ns,
            every=self.budget.lumps_every,
            paced=self.feed is not None and self.feed.measured,
        )
        return mean.with_waits()

    @cached_property
    def bound_parts(self) -> dict[str, F64]:
        """Limit → per GPU event its whole time if it has that limit, else 0."""
        return bound_parts(self.timeline, self.roofline)

    @cached_property
    def sensitivities(self) -> Sensitivities:
        return sensitivities(self.graph, self.bound_parts, self.mean)

    @cached_property
    def stack(self) -> Stack:
        """The program's libraries, and how a fix is written for them."""
        packages = frozenset() if self.folder is None else frozenset(self.folder.own.versions)
        whole = self.whole
        return stack_of(whole.trace, self.run, packages, inference=whole.workload.is_inference)

    @cached_property
    def memo(self) -> dict[str, Any]:
        """Cache of what several findings need."""
        return {}

    @property
    def trace(self) -> Trace:
        return self.timeline.trace

    @property
    def workload(self) -> Workload:
        """Whether it is training or inference."""
        return self.timeline.workload

    @cached_property
    def mean_ns(self) -> float:
        """The unchanged mean step, ns: the baseline of every gain."""
        return self.mean.now_ns()

    @property
    def shown_ns(self) -> float:
        """The mean step that reports show, ns: as measured if free-running steps were timed, or else as replayed."""
        timed = self.budget is not None and self.budget.source == "free"
        return float(self.budget.mean_ns) if self.budget is not None and timed else self.mean_ns

    @property
    def steps(self) -> int:
        """Number of replayed steps."""
        return self.graph.steps

    @cached_property
    def trains_on_tokens(self) -> bool:
        """Whether the trained model reads tokens of text; other models get no advice for language models."""
        return trains_on_tokens(self.timeline, self.run)

    @cached_property
    def frozen_passes(self) -> FrozenPasses | None:
        """Modules that run in a step without being trained; None if the recording has no modules."""
        return find_frozen_passes(self.timeline)

    def proposals(self, find: Callable[[Analysis], Iterable[Any]]) -> tuple[Any, ...]:
        """What a finding proposes, each a `Proposal`; found once, as both advice and ledger ask for it."""
        if find not in self._proposals:
            self._proposals[find] = tuple(find(self))
        return self._proposals[find]

    @cached_property
    def _proposals(self) -> dict[Any, tuple[Any, ...]]:
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: everything except the proposals, whose changes are functions."""
        return {name: value for name, value in self.__dict__.items() if name != "_proposals"}

    def step_of(self, graph: Graph) -> float:
        """Step time of a changed graph, ns."""
        return step_of(graph)

    def steps_of(self, graphs: Sequence[Graph]) -> list[float]:
        """Step times of several changed graphs, ns."""
        return steps_of(graphs)

    @cached_property
    def schedule(self) -> Schedule:
        """Schedule of the unchanged graph, repeated in a loop."""
        return in_loop(self.graph)

    @property
    def devices(self) -> int:
        """GPUs that did work."""
        return max(len(self.timeline.devices), 1)

    # -- where things are, as masks

    def ops_named(self, test: Callable[[str], object]) -> Mask:
        """Rows of ops (annotations too) whose name passes."""
        return self.trace.rows_named(self.trace.ops.name, test)

    def ops_at(self, rows: Iterable[int]) -> Mask:
        """These rows of ops as a mask."""
        mask = np.zeros(len(self.trace.ops), bool)
        mask[list(rows)] = True
        return mask

    def ops_within(self, ops: Mask) -> Mask:
        """Rows of the ops of a mask and of all ops nested in them."""
        return inside(self.timeline.nesting, ops)

    def outermost(self, ops: Mask) -> I64:
        """Rows of the mask that are not nested in another of its rows."""
        rows = np.flatnonzero(ops)
        above = climb(self.timeline.nesting.parent[rows], self.timeline.nesting.parent, ops)
        return rows[above < 0]

    def nodes_within(self, ops: Mask) -> Mask:
        """Nodes of the graph, CPU work and what it launched, that lie in the ops of a mask or in ops nested in them."""
        inside = np.append(self.ops_within(ops), False)
        return inside[self.graph.scope]

    def nodes_of_gpu(self, rows: Mask) -> Mask:
        """Nodes of the GPU events of a mask over the trace's GPU events."""
        return np.append(rows, False)[self.graph.gpu_row]

    def nodes_in_calls(self, calls: Mask) -> Mask:
        """CPU nodes (work and waits) of the calls of a mask over the trace's calls."""
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


def analysis_of(diagnosis: Diagnosis) -> Analysis | None:
    """The Analysis behind a diagnosis; None if its steps could not be replayed, or if it was loaded from JSON."""
    found = diagnosis._analysis
    return found if isinstance(found, Analysis) and found.is_replayed else None
