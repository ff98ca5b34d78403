"""How close the replay, the unprofiled step, the verdicts and the predicted fixes come to what was measured.

    python -m benchmarks.accuracy [--shared FOLDER] [--only NAME]

Recordings and their truths: tests/data/pairs (each program timed without a profiler before and after a change, in fresh
processes that took turns), tests/data/runs (recorded by `gpuprof trace`, with a measured baseline), and the H200
recordings in FOLDER (../shared), if it exists. A truth is an interval; inside it the error is 0.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import numpy as np

import gpuprof
from benchmarks.fit_or_test import Role, role_of
from benchmarks.same_steps import as_timed
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.findings import larger_batch
from gpuprof.diagnosis.fixes.predicted_step import PredictedSteps, prediction
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.finding_model import Considered, Finding
from gpuprof.replay.build.build import build
from gpuprof.replay.simulate import simulate
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.recording import resolve
from gpuprof.value_range import Range
from scenarios import catalogue

ROOT = Path(__file__).parents[1]
DEVICE = ("compute", "memory", "latency", "balanced")
MS = 1e6


SAME_WORK = 0.2
"""Amounts of work that differ by less count as equal in a recording of a few steps: the share of padding varies."""


@dataclass(frozen=True)
class Fix:
    """A change that was timed: the finding that proposes it, and the step after it."""

    finding: str
    step_ms: tuple[float, float]
    work: float = 1.0
    gains: bool = True
    """False: it was measured to gain nothing, and must not be advised."""
    name: str = ""
    title: str | None = None
    """Title of the proposal, if the finding proposes several things."""
    of_ms: float | None = None
    """The recorded mean step, if `step_ms` is what the measured gain leaves of that and not what was timed."""


@dataclass(frozen=True)
class Case:
    """A recording and its measured truth."""

    name: str
    path: Path
    unprofiled_ms: tuple[float, float] | None
    verdict: tuple[str, ...] | None
    cause: str | None = None
    fixes: tuple[Fix, ...] = ()
    run: bool = False
    """Whether it is a run of `gpuprof trace`, diagnosed with the steps that it timed before it recorded."""
    steps_differ: bool = False
    """Whether the recorded step is not the mean one; then only the gains of fixes are compared."""


@dataclass
class Result:
    """What gpuprof says about a case."""

    case: Case
    diagnosis: Diagnosis
    step_error: float
    """Error of the unchanged replay, as a share of the window; `start_error`: of kernel starts, as a share of the
    step."""
    start_error: float
    fixes: list[tuple[Fix, Finding | None]] = field(default_factory=list)
    considered: list[tuple[Fix, Considered]] = field(default_factory=list)
    """Fixes for the same work that were predicted, but are not advised."""

    @property
    def estimate_error(self) -> float | None:
        """Error of the unprofiled step from the trace alone, signed."""
        steps = self.diagnosis.steps
        if self.case.unprofiled_ms is None or steps is None or steps.estimated_ns is None or self.case.steps_differ:
            return None
        return error(steps.estimated_ns / MS, self.case.unprofiled_ms)

    @property
    def covered(self) -> bool | None:
        """Whether the 80 % interval of the unprofiled step meets the truth."""
        d = self.diagnosis
        if self.case.unprofiled_ms is None or d.profiler is None or d.steps is None or self.case.steps_differ:
            return None
        low, high = unprofiled_ms(d)
        return low <= self.case.unprofiled_ms[1] and high >= self.case.unprofiled_ms[0]

    @property
    def right(self) -> bool | None:
        verdict = self.diagnosis.verdict
        if self.case.verdict is None:
            return None
        return verdict.bound in self.case.verdict and self.case.cause in (None, verdict.cause)


def error(value: float, truth: tuple[float, float]) -> float:
    """Relative distance from an interval, 0 inside."""
    low, high = truth
    return value / high - 1 if value > high else value / low - 1 if value < low else 0.0


def unprofiled_ms(diagnosis: Diagnosis) -> tuple[float, float]:
    """The 80 % interval of the unprofiled step, ms."""
    steps, cost = diagnosis.steps, diagnosis.profiler
    assert steps is not None and cost is not None
    # The cost counts from the replayed step if the step is an estimate.
    estimated = steps.unprofiled_ns is None and steps.estimated_ns is not None
    slowed_ns = (steps.estimated_ns or 0) + cost.typical_ns if estimated else steps.recorded_ns
    return (slowed_ns - cost.high_ns) / MS, (slowed_ns - cost.low_ns) / MS


def pairs(folder: Path = ROOT / "tests" / "data" / "pairs", role: Role | None = None) -> Iterator[Case]:
    """Programs that were timed before and after a change; of one role, or all."""
    for name, run in json.loads((folder / "truth.json").read_text())["runs"].items():
        path = folder / run["trace"]
        if path.exists() and role in (None, run["role"]):
            fixes = tuple(Fix(f["finding"], tuple(f["step_ms"]), f["work"]) for f in run["fixes"])
            verdict = tuple(run["verdict"]) if run["verdict"] else None
            yield Case(name, path, tuple(run["unprofiled_ms"]), verdict, None, fixes)


def shared(folder: Path) -> Iterator[Case]:
    """The recordings of ../shared/traces/h200."""
    truth = json.loads((folder / "truth.json").read_text())["runs"]
    known: dict[str, tuple[tuple[str, ...], str | None, dict[str, tuple[str, float]]]] = {
        "dense8b_lora_compute": (DEVICE, None, {}),
        "tiny_lora_small_batch": (("host",), "launch", {
            "batch_x8_ms": ("larger_batch", 8.0), "fix_fused_adamw_ms": ("optimizer", 1.0),
            "fix_torch_compile_ms": ("compile", 1.0)}),
        "moe_gptoss_expert_loop": (("host",), "launch", {"fix_grouped_mm_ms": ("expert_loop", 1.0)}),
        "tiny_lora_dataloader": (("input",), None, {"fix_workers8_ms": ("input_workers", 1.0)}),
        "unsloth_llama1b": (("host",), "launch", {}),
        "hf_trainer_lora": (("host",), "launch", {}),
    }  # fmt: skip
    for name, (verdict, cause, fixes) in known.items():
        run = truth[name]
        timed = tuple(Fix(finding, tuple(run[key]), work) for key, (finding, work) in fixes.items())
        step = tuple(run["unprofiled_ms"]) if "unprofiled_ms" in run else None
        yield Case(name, folder / f"{name}.json.gz", step, verdict, cause, timed)
    stacks = "tiny_lora_small_batch"
    yield Case(f"{stacks}_stack", folder / f"{stacks}_stack.json.gz", tuple(truth[stacks]["unprofiled_ms"]), ("host",))
    step = tuple(truth["ddp_straggler"]["unprofiled_ms"])
    yield Case("ddp_straggler_rank0", folder / "ddp_straggler_rank0.json.gz", step, ("communication",), "peer_wait")
    yield Case("ddp_straggler_rank1", folder / "ddp_straggler_rank1.json.gz", step, ("host",))


def scenarios(role: Role | None = None) -> Iterator[Case]:
    """The recorded scenarios, as runs; of one role, or all."""
    for entry in catalogue.scenarios():
        if role not in (None, entry.role):
            continue
        step = entry.measured_ms()
        if entry.recording is None or step is None:
            continue
        timed = ((fix, entry.measured_ms(fix.name)) for fix in entry.fixes if fix.finding is not None)
        fixes = tuple(Fix(f.finding or "", ms, f.work, f.gains, f.name, f.title) for f, ms in timed if ms is not None)
        yield Case(entry.name, entry.recording, step, entry.says, entry.cause, fixes, True, entry.steps_differ)


def run(case: Case) -> Result:
    """Diagnoses one recording: a run as it is, all others from their trace alone."""
    diagnosis = gpuprof.diagnose(case.path)
    timeline = first_rank(case.path) if diagnosis.ranks else diagnosis.tables.timeline
    graph = build(timeline)
    replayed = simulate(graph)
    low, high = timeline.window
    gpu = graph.on_gpu
    starts = np.abs(replayed.start_ns - graph.recorded_start_ns)[gpu]
    found, considered, about = [], [], of_timed_steps(case) or diagnosis
    for fix in case.fixes:
        same = [f for f in about.findings if is_of(fix, f)]
        nearest = min(same, key=lambda f, fix=fix: abs(f.work - fix.work), default=None) or other_batch(about, fix)
        meant = of_recorded(fix, case, about, nearest.work) if case.steps_differ and nearest else fix
        found.append((meant, nearest))
        others = (one for one in about.considered if one.id == fix.finding and fix.title in (None, one.title))
        other = next((one for one in others if one.speedup is not None), None)
        if not same and other is not None and abs(fix.work - 1) < SAME_WORK:
            considered.append((of_recorded(fix, case, about, fix.work) if case.steps_differ else fix, other))
    return Result(
        case=case,
        diagnosis=diagnosis,
        step_error=abs(float(replayed.step_end_ns[-1]) - (high - low)) / (high - low),
        start_error=float(np.median(starts)) / ((high - low) / graph.steps),
        fixes=found,
        considered=considered,
    )


def first_rank(run: Path) -> Timeline:
    """The timeline of the rank that the diagnosis of a run of several ranks is about: the one that the others wait
    for."""
    trace = resolve(run).read().trace
    assert trace is not None
    timeline = build_timeline(trace)
    assert timeline is not None
    return timeline


class Timed(Protocol):
    """A fix that was timed."""

    @property
    def finding(self) -> str | None: ...

    @property
    def work(self) -> float: ...


def other_batch(diagnosis: Diagnosis, fix: Timed) -> Finding | None:
    """What gpuprof predicts for the timed batch if it advises another one; None if it advises none."""
    advised = next((one for one in diagnosis.findings if one.id == larger_batch.PAGE.id == fix.finding), None)
    case = analysis_of(diagnosis)
    if advised is None or case is None:
        return None
    found = prediction(PredictedSteps(case), [larger_batch.of_factor(case, fix.work)])
    return replace(advised, work=fix.work, step_ns=found.step, speedup=found.speedup)


def is_of(fix: Fix, found: Finding) -> bool:
    """Whether a finding proposes what was timed."""
    named = found.id == fix.finding and fix.title in (None, found.title)
    # For rare steps a finding compares the mean step with the usual one: its `work` is the gain itself.
    return named and (found.id == "rare_steps" or abs(found.work / fix.work - 1) < SAME_WORK)


def of_timed_steps(case: Case) -> Diagnosis | None:
    """What gpuprof says about the timed steps, if a scenario's recording contains many of them."""
    if not case.run or case.name not in catalogue.names():
        return None
    with tempfile.TemporaryDirectory() as folder:
        path = as_timed(catalogue.scenario(case.name), Path(folder))
        return None if path is None else gpuprof.diagnose(path)


def of_recorded(fix: Fix, case: Case, diagnosis: Diagnosis, work: float) -> Fix:
    """The measured fix, applied to the run's own mean step: its gain per work, times what that step takes.

    `work`: that of the finding that proposes it."""
    if not diagnosis.step_ns or case.unprofiled_ms is None:
        return fix
    factor = diagnosis.step_ns / MS * work / (statistics.mean(case.unprofiled_ms) * fix.work)
    ms = fix.step_ms[0] * factor, fix.step_ms[1] * factor
    return replace(fix, step_ms=ms, work=work, of_ms=diagnosis.step_ns / MS)


def predicted(found: Finding | Considered, fix: Fix) -> Range:
    """The predicted step with its interval, ms; from the gain alone if a gain was measured and not a step."""
    step, gain = found.step_ns, found.speedup
    assert step is not None and gain is not None, "it was predicted"
    if fix.of_ms is None:
        return Range(*(ns / MS for ns in (step.low, step.expected, step.high)))
    return Range(*(fix.work * fix.of_ms / times for times in (gain.high, gain.expected, gain.low)))


def cases(folder: Path | None, role: Role | None = None) -> Iterator[Case]:
    """All cases, or all of one role."""
    yield from scenarios(role)
    yield from pairs(role=role)
    of_role = role in (None, role_of("shared/traces/h200"))
    if of_role and folder is not None and (folder / "traces" / "h200" / "truth.json").exists():
        yield from shared(folder / "traces" / "h200")


def report(results: list[Result]) -> Iterator[str]:
    """The table, line by line, and the summary that the tests check."""
    yield f"{'recording':27}{'recorded':>9}{'estimated':>10}{'measured':>14}{'error':>7}  verdict"
    for r in results:
        steps = r.diagnosis.steps
        assert steps is not None
        truth = "–" if r.case.unprofiled_ms is None else "–".join(f"{ms:.4g}" for ms in r.case.unprofiled_ms)
        off = "" if r.estimate_error is None else f"{100 * r.estimate_error:+.0f} %"
        verdict = r.diagnosis.verdict
        mark = "" if r.right is not False else f"  WRONG: is {' or '.join(r.case.verdict or ())}"
        estimate = "–" if steps.estimated_ns is None else f"{steps.estimated_ns / MS:.1f}"
        yield (
            f"{r.case.name:27}{steps.recorded_ns / MS:9.1f}{estimate:>10}{truth:>14}{off:>7}  {verdict.bound}"
            f"{f' ({verdict.cause})' if verdict.cause else ''}{mark}"
        )
        for fix, found in r.fixes:
            measured = "–".join(f"{ms:.4g}" for ms in fix.step_ms)
            if found is None:
                yield f"    {fix.finding:18} measured {measured}: not advised"
                continue
            step = predicted(found, fix)
            off = f"{100 * error(step.expected, fix.step_ms):+.0f} %"
            inside = "" if meets(found, fix) else "  OUTSIDE"
            interval = f"{step.expected:.1f} ({step.low:.1f}–{step.high:.1f})"
            yield f"    {fix.finding:18} measured {measured}: predicted {interval} {off}{inside}"
    yield ""
    yield from summary(results)


def meets(found: Finding, fix: Fix) -> bool:
    """Whether the predicted interval meets the measured one."""
    step = predicted(found, fix)
    return step.low <= fix.step_ms[1] and step.high >= fix.step_ms[0]


def summary(results: list[Result]) -> Iterator[str]:
    def spread(values: list[float]) -> str:
        return f"median {100 * statistics.median(values):.1f} %, worst {100 * max(values):.1f} %"

    yield f"replayed step      {spread([r.step_error for r in results])}"
    yield f"kernel starts      {spread([r.start_error for r in results])} of the step, at the median kernel"
    known = [r for r in results if r.estimate_error is not None]
    if known:
        covered = statistics.mean(bool(r.covered) for r in known)
        yield (
            f"unprofiled step    {spread([abs(r.estimate_error or 0) for r in known])}; the interval meets"
            f" {100 * covered:.0f} %"
        )
    judged = [r for r in results if r.right is not None]
    yield f"verdicts           {sum(bool(r.right) for r in judged)} of {len(judged)} right"
    shown = [(fix, found) for r in results for fix, found in r.fixes if found is not None]
    if shown:
        steps = [predicted(found, fix) for fix, found in shown]
        errors = [abs(error(step.expected, fix.step_ms)) for step, (fix, _) in zip(steps, shown, strict=True)]
        widths = [step.high / step.low for step in steps]
        inside = statistics.mean(meets(found, fix) for fix, found in shown)
        yield (
            f"fixes              {len(shown)} predicted: {spread(errors)}; the interval meets {100 * inside:.0f} %,"
            f" high/low {statistics.median(widths):.2f} at the median, {max(widths):.2f} at most"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--shared", type=Path, default=ROOT.parent / "shared")
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    results = [run(case) for case in cases(args.shared) if args.only in case.name]
    print("\n".join(report(results)))


if __name__ == "__main__":
    main()
