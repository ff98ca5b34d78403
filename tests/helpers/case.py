"""The analysis that findings get, made from a recording."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import Proposal
from gpuprof.diagnosis.fixes.predict import LEAST_GAIN
from gpuprof.diagnosis.fixes.predicted_step import predict
from gpuprof.diagnosis.recorded_facts import RecordingQuestion
from gpuprof.diagnosis.result.run_model import Baseline, Run, RunMemory, StepWork, Telemetry, Throughput
from gpuprof.diagnosis.run.stack import stack_of
from gpuprof.replay.build.build import build
from gpuprof.replay.graph import Graph
from gpuprof.replay.sensitivity import sensitivities
from gpuprof.replay.simulate import ROUNDS, simulate
from gpuprof.replay.unprofiled.profiler_fit import Removal, remove_profiler
from gpuprof.timeline.timeline import build_timeline
from gpuprof.tracefile.recording import resolve


def case_of(path: Path, *, ms: float | None = None, as_recorded: bool = False, run: Run | None = None) -> Analysis:
    """The analysis that findings get. ms: a measured unprofiled step; as_recorded: the profiler cost nothing."""
    trace = resolve(str(path)).read().trace
    assert trace is not None
    timeline = build_timeline(trace)
    assert timeline is not None
    graph = build(timeline)
    removal = _nothing_removed(graph) if as_recorded else remove_profiler(graph, ms * 1e6 if ms else None)
    return Analysis(
        RecordingQuestion(trace),
        {
            "recorded": timeline,
            "timeline": timeline,
            "removal": removal,
            "sensitivities": sensitivities(removal.graph),
            "run": run,
            "stack": stack_of(trace, None, inference=timeline.workload.is_inference),
            "versions": {},
        },
    )


def with_facts(case: Analysis, **facts: Any) -> Analysis:
    """A copy of an analysis with some facts given; what depends on them is computed again."""
    return Analysis(case.question, {**case.given, **facts})


def _nothing_removed(graph: Graph) -> Removal:
    step_ns = simulate(graph, ROUNDS).step_ns
    return Removal(graph, step_ns, step_ns, step_ns, True, 0.0, 1.0, graph, graph, step_ns)


def only(module: ModuleType, case: Analysis, key: str = "") -> Proposal:
    """The single proposal of a finding (of that key)."""
    found = [proposal for proposal in module.find(case) if proposal.key == key]
    assert len(found) == 1, f"{module.PAGE.id}: {[proposal.title for proposal in found]}"
    return found[0]


def shown(module: ModuleType, case: Analysis) -> list[Proposal]:
    """The proposals of a finding that are worth showing."""
    return [p for p in module.find(case) if p.work * case.step_ns / predict(case, p).expected >= LEAST_GAIN]


def run_of(work: StepWork | None = None, memory: RunMemory | None = None, telemetry: Telemetry | None = None) -> Run:
    """A finished run about which only this is known."""
    nothing = Baseline(None, None, None, 0, None, 0, None, False)
    return Run(
        path="runs/one", status="finished", exit=None, step_source="optimizer", steps_seen=10, steps_total=None,
        remaining_ns=None, baseline=nothing, after_ns=None, throughput=Throughput(None, None, None),
        work=work or StepWork(None, None, None, None), model=None, optimizer=None, loader=None,
        memory=memory or RunMemory(None, None, None), telemetry=telemetry, notes=(),
    )  # fmt: skip
