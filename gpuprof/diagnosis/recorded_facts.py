"""Everything that is known about one recording and its run before it is replayed; each fact is computed once, when
first needed. `analysis` adds the replay.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

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
from gpuprof.diagnosis.recorded.gpu_work import kernel_summary
from gpuprof.diagnosis.recorded.input_kind import trains_on_tokens, without_tokens
from gpuprof.diagnosis.recorded.quality import judged, quality_of, with_issue
from gpuprof.diagnosis.recorded.shares import Shares, average_step, devices, profiler_cost
from gpuprof.diagnosis.result.cpu_step import CpuStep
from gpuprof.diagnosis.result.diagnosis import (
    Device,
    Environment,
    Issue,
    Kernels,
    Profiler,
    Quality,
    Source,
    Steps,
)
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.diagnosis.result.tables import Tables
from gpuprof.diagnosis.run.cpu_times import cpu_step, on_cpu
from gpuprof.diagnosis.run.run_facts import RunFacts, run_facts
from gpuprof.diagnosis.run.run_issues import run_issues
from gpuprof.timeline.cpu.syncs import end_in_sync
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.timeline.unit import ITERATION, STEP, Unit
from gpuprof.timeline.workload import Workload
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.tracefile.trace import Trace

if TYPE_CHECKING:
    from gpuprof.projection.projection import Projection


@dataclass(frozen=True, slots=True)
class RecordingQuestion:
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
class RecordedFacts:
    """The facts about one recording that need no replay. Those about steps exist only if `recorded` is not None."""

    question: RecordingQuestion
    given: Mapping[str, Any] = field(default_factory=dict)
    """Facts that are given instead of computed, by name; all others are computed from these and the question."""

    def __post_init__(self) -> None:
        unknown = [name for name in self.given if not hasattr(type(self), name)]
        if unknown:
            raise TypeError(f"an Analysis has no {', '.join(unknown)}")
        self.__dict__.update(self.given)

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
        """The run that the trace belongs to; None for a trace without a run."""
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

    @property
    def unit(self) -> Unit:
        """What one of its steps is called."""
        return STEP if self.recorded is None else self.recorded.unit
