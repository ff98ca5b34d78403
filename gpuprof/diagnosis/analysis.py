"""One recording with everything that is known about it; each fact is computed once, when first needed.

Findings, the verdict, comparisons, projections and reports all read the same object. `diagnose` turns it into a plain
`Diagnosis`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gpuprof.calibration import profiler as calibrated
from gpuprof.costs.roofline import Roofline, roofline
from gpuprof.diagnosis.asked import NOTHING_ASKED, Asked
from gpuprof.diagnosis.idle.gaps import GapColumns, find_gaps
from gpuprof.diagnosis.mean_step.baseline import RareStep
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.mean_step.iteration_steps import steps_per_iteration
from gpuprof.diagnosis.mean_step.run_budget import Feed
from gpuprof.diagnosis.mean_step.timed_steps import TimedSteps
from gpuprof.diagnosis.recorded.baseline_mismatch import fits_the_gpu, mismatch
from gpuprof.diagnosis.recorded.environment import environment_of, source_of
from gpuprof.diagnosis.recorded.frozen_passes import FrozenPasses, find_frozen_passes
from gpuprof.diagnosis.recorded.input_kind import trains_on_tokens, without_tokens
from gpuprof.diagnosis.recorded.kernels import kernel_summary
from gpuprof.diagnosis.recorded.limits import bound_parts
from gpuprof.diagnosis.recorded.quality import judged, quality_of, with_issue
from gpuprof.diagnosis.recorded.replayed import replayed
from gpuprof.diagnosis.recorded.representative_steps import representative
from gpuprof.diagnosis.recorded.shares import Shares, average_step, devices, profiler_cost
from gpuprof.diagnosis.result.cpu_step import CpuStep
from gpuprof.diagnosis.result.diagnosis import (
    Device,
    Diagnosis,
    Environment,
    Issue,
    Kernels,
    Profiler,
    Quality,
    Replay,
    Source,
    Steps,
)
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.diagnosis.result.tables import Tables
from gpuprof.diagnosis.run.cpu_times import cpu_step, on_cpu
from gpuprof.diagnosis.run.run import RunFacts, run_facts
from gpuprof.diagnosis.run.run_issues import run_issues
from gpuprof.diagnosis.run.sampled_phases import sampled_parts
from gpuprof.diagnosis.run.stack import Stack, stack_of
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.build.build import build
from gpuprof.replay.graph import Graph
from gpuprof.replay.mean_step import MeanStep
from gpuprof.replay.sensitivity import Sensitivities, sensitivities
from gpuprof.replay.simulate import Schedule, in_loop, step_of
from gpuprof.replay.unprofiled.profiler_fit import Removal
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.cpu.syncs import end_in_sync
from gpuprof.timeline.nesting import climb, inside
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.timeline.unit import ITERATION, STEP, Unit
from gpuprof.timeline.workload import Workload
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.run_folder.samples import read_samples
from gpuprof.tracefile.trace import F64, I64, Mask, Trace
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.projection.projection import Projection

Change = Callable[[Graph], Graph]

NOT_REPLAYED = Replay(None, False)

GPU_BOUND_SLOWED: Assumed[Share] = 0.05
"""A step that recording slows down by less than this share is limited by the GPU, not by the tool's delays."""


@dataclass(frozen=True, slots=True)
class Question:
    """A recording as it was read, and the options of its diagnosis."""

    trace: Trace | None
    """None for a run that was not recorded."""
    folder: RunFolder | None = None
    """The run that it belongs to, whose unprofiled steps it is compared with."""
    named: Trace | None = None
    """The same program recorded by torch.profiler: its ops are added to a trace from Nsight Systems."""
    failure: str = ""
    """Why a recording of the run could not be read."""
    asked: Asked = NOTHING_ASKED
    ranks: int = 1
    """Number of ranks with a recording."""
    of_all_ns: float | None = None
    """The step of these ranks replayed together, ns."""
    project: Callable[..., Projection] | None = None
    """Projects a diagnosis: its arguments are the diagnosis, the names of GPUs, and options."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """All facts about one recording. Those about the replay (`removal`, `graph`, `mean`, …) exist only if
    `replay.shown`; those about steps only if `recorded` is not None."""

    question: Question
    given: Mapping[str, Any] = field(default_factory=dict)
    """Facts that are given instead of computed, by name; all others are computed from these and the question."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.given if not hasattr(type(self), name)]
        if unknown:
            raise TypeError(f"an Analysis has no {', '.join(unknown)}")
        self.__dict__.update(self.given)

    def with_facts(self, **facts: Any) -> Analysis:
        """A copy with some facts given; what depends on them is computed again."""
        return Analysis(self.question, {**self.given, **facts})

    # -- what was recorded

    @cached_property
    def recorded(self) -> Timeline | None:
        """All recorded steps, with what the run says about them; None if there is neither GPU work nor a step."""
        found = self._read[0]
        run = None if found is None else self.run
        # The run says that there is an optimizer or a trainer, even if its window shows none.
        if found is not None and run is not None and (run.optimizer or run.step_source in ("optimizer", "trainer")):
            # Training on its own generations, with one optimizer step for each: a step is a whole iteration.
            unit = ITERATION if self.folder is not None and steps_per_iteration(self.folder) == 1 else STEP
            return replace(found, workload=Workload("training", unit=unit, reason="the run has an optimizer"))
        return found

    @property
    def whole(self) -> Timeline:
        """All recorded steps; there must be some."""
        assert self.recorded is not None
        return self.recorded

    @cached_property
    def _read(self) -> tuple[Timeline | None, tuple[Issue, ...]]:
        """The timeline without what the run adds, and what is wrong with its recordings."""
        read = self.question
        if read.trace is None:
            return None, ()
        timeline = build_timeline(read.trace, read.asked.step, read.asked.skip)
        if read.named is not None:
            from gpuprof.diagnosis.recorded.paired_recordings import both_kinds

            timeline, said = both_kinds(timeline, read.named, read.asked.step, read.asked.skip)
            return timeline, tuple(said)
        text = f"Another recording of this run could not be read: {read.failure}."
        return timeline, (Issue("recording_unread", "warning", text),) if read.failure else ()

    @cached_property
    def run_facts(self) -> RunFacts | None:
        """What the run's files say; None for a trace without a run."""
        if self.question.folder is None:
            return None
        timeline = self._read[0]
        synchronised = timeline is not None and end_in_sync(timeline.trace, timeline)
        devices = 1 if timeline is None else len(timeline.devices)
        facts = run_facts(self.question.folder, synchronised, devices)
        if timeline is not None and not trains_on_tokens(timeline, facts.run):
            return replace(facts, run=without_tokens(facts.run))
        return facts

    @cached_property
    def run(self) -> Run | None:
        return self.run_facts and self.run_facts.run

    @cached_property
    def run_issues(self) -> tuple[Issue, ...]:
        """What is wrong with the run; nothing for a trace without a run."""
        return () if self.run_facts is None else run_issues(self.run_facts, self.unit)

    @property
    def folder(self) -> RunFolder | None:
        """Its steps and samples over time."""
        return self.question.folder

    @cached_property
    def source(self) -> Source:
        trace, folder = self._trace, self.folder
        if trace is None:
            assert folder is not None
            return Source(folder.path, "run", 0, 0)
        return source_of(trace, folder)

    @cached_property
    def environment(self) -> Environment:
        return environment_of(self._trace, self.folder)

    @cached_property
    def versions(self) -> Mapping[str, str | int | float]:
        """Versions of torch (`torch_version`), CUDA and packages, from the trace and the run."""
        return self.environment.versions

    @property
    def _trace(self) -> Trace | None:
        timeline = self._read[0]
        return self.question.trace if timeline is None else timeline.trace

    @cached_property
    def quality(self) -> Quality:
        """How far the recording can be relied on."""
        trace, folder = self._trace, self.folder
        assert trace is not None
        timed = self.cpu_step is not None
        found, said = quality_of(trace, self.recorded, self.run_issues, on_cpu(folder), timed), self._read[1]
        found = judged((*found.issues, *said)) if said else found
        if self.recorded is None or not self.device_times:
            return found
        rest = tuple(one for one in found.issues if one.id != "host_ahead")
        if len(rest) < len(found.issues) and fits_the_gpu(self.step_times, self.recorded):
            return judged(rest)
        asked = self.question.asked.step_ms is not None
        return with_issue(found, mismatch(self.step_times, self.averages, self.rare, self.unit, of_run=not asked))

    @property
    def is_whole(self) -> bool:
        """Whether the file was read to its end."""
        return not self.whole.trace.reading.truncated

    # -- where the steps' time went

    @cached_property
    def gaps(self) -> GapColumns:
        return find_gaps(self.whole)

    @cached_property
    def device_times(self) -> tuple[Device, ...]:
        """How each device that worked spent the window."""
        return devices(self.whole, self.gaps)

    @cached_property
    def profiler(self) -> Profiler | None:
        """Cost of recording, estimated from the number of recorded events."""
        return profiler_cost(self.whole, self.device_times)

    @cached_property
    def step_times(self) -> Steps:
        """The recorded steps and the measured unprofiled step, without an estimate."""
        steps, unprofiled = self.whole.steps, self._unprofiled_ns
        each = tuple((steps.end_ns - steps.start_ns).tolist())
        recorded = int(np.median(each))
        return Steps(
            source=steps.source,
            name=steps.name,
            count=len(each),
            each_ns=each,
            recorded_ns=recorded,
            unprofiled_ns=unprofiled,
            estimated_ns=None,
            inflation=None if unprofiled is None else recorded / unprofiled,
            cut=steps.cut,
        )

    @property
    def _unprofiled_ns(self) -> int | None:
        """The step without the profiler: as given by the user, or else as timed by the run."""
        if self.question.asked.step_ms is not None:
            return round(self.question.asked.step_ms * 1e6)
        facts = self.run_facts
        if facts is None or facts.unprofiled is None or self.whole.steps.source == "none":
            return None  # without step boundaries the window is not a step and cannot be compared with one
        return facts.unprofiled.ns

    @cached_property
    def averages(self) -> list[Shares]:
        """The mean step of each device."""
        return [average_step(device, self.step_times.count) for device in self.device_times]

    @cached_property
    def roofline(self) -> Roofline | None:
        return roofline(self.whole)

    @cached_property
    def kernels(self) -> Kernels:
        return kernel_summary(self.whole, self.question.asked.top, self.roofline)

    @property
    def alone(self) -> bool:
        """Whether there is one GPU and one rank."""
        talks = any(device.communication_ns for device in self.device_times)
        ranks = self.environment.world_size or (2 if talks else 1)
        return ranks == 1 and len(self.device_times) <= 1

    @cached_property
    def tables(self) -> Tables:
        """The columns behind the summaries."""
        return Tables(self.whole, self.gaps, self.roofline if self.device_times else None, self.question.project)

    # -- the mean step of the run

    @property
    def _of_run(self) -> RunFacts | None:
        """The run, if its mean step can be used for the recorded steps."""
        by_user = self.question.asked.step_ms is not None
        return None if by_user or self.recorded is None or self.recorded.steps.source == "none" else self.run_facts

    @cached_property
    def budget(self) -> Budget | None:
        """The budget of the mean step; None unless a run timed enough steps."""
        facts = self.run_facts if self.question.trace is None else self._of_run
        return facts and facts.budget

    @cached_property
    def cpu_step(self) -> CpuStep | None:
        """The mean step of a run without a GPU; None if it was not timed."""
        folder = self.folder
        if folder is None or not on_cpu(folder) or (self.recorded is not None and self.device_times):
            return None
        return cpu_step(folder, self.budget, self.recorded)

    @cached_property
    def timed(self) -> TimedSteps | None:
        """The timed steps that the budget describes."""
        return self._of_run and self._of_run.timed

    @cached_property
    def feed(self) -> Feed | None:
        """The workers that prepare batches; None if their pace is unknown."""
        return self.run_facts and self.run_facts.feed

    @property
    def plans_apart(self) -> bool:
        """Whether the budget lists planning for new shapes, so that the usual step has none."""
        found = self.budget
        return found is not None and any(one.cause == "new_shapes" for one in (*found.excess, *found.once))

    @property
    def rare(self) -> RareStep | None:
        return self.run.baseline.rare if self.run else None

    @property
    def free_ns(self) -> int | None:
        """The usual free-running step, scaled to the work of the recorded ones; None if it was not timed."""
        return self.run.baseline.free_ns if self.run is not None and self.budget is not None else None

    @property
    def ends_ns(self) -> tuple[float, float] | None:
        """Ends of the 80 % interval of the mean step; None if it was not timed."""
        return None if self.budget is None else (float(self.budget.low), float(self.budget.high))

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
        graph = build(self.timeline)
        return replayed(graph, steps.unprofiled_ns, self._spread_ns, asked.of_all_ns, self.plans_apart, shares)

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
        """What a sentence that counts against the usual step calls it: `a step of 190 ms`, or `a usual step of 190 ms`
        where the mean step, which the headline states, is another."""
        stated = duration(self.stated(self.step_ns))
        return f"{self.unit.a if stated == duration(self.mean_ns) else f'a usual {self.unit}'} of {stated}"

    def stated(self, ns: float) -> float:
        """Part of the usual step, ns, in the step that sentences state: scaled to the mean step where both are shown as
        one."""
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

    @property
    def unit(self) -> Unit:
        """What one of its steps is called."""
        return STEP if self.recorded is None else self.recorded.unit

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
        """Without proposals, whose changes are functions."""
        return {name: value for name, value in self.__dict__.items() if name != "_proposals"}

    def step_of(self, graph: Graph) -> float:
        """Step time of a changed graph, ns."""
        return step_of(graph)

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
