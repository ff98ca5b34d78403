"""Texts of a Diagnosis that the terminal and the notebook share."""

from __future__ import annotations

import re
from collections import Counter

from gpuprof.diagnosis.result.diagnosis import Diagnosis, Environment, Gap, PhaseGaps
from gpuprof.diagnosis.run.run_issues import how_to_record_sooner
from gpuprof.diagnosis.sentences import Sentences
from gpuprof.diagnosis.verdict.headline import headline, key, lacks_trace, limit_of_usual, ran_on_cpu
from gpuprof.report.names import shown
from gpuprof.report.numbers import amount, duration, duration_range
from gpuprof.report.words.settle import fitting
from gpuprof.timeline.frames import MODULE
from gpuprof.timeline.unit import Unit
from gpuprof.units import Cells, Convention, Share

USUAL_LINE: Convention[Cells] = 66
"""Width of a command that is named as the next step: the room next to the labels on an 80-column terminal."""
WORTH_MENTIONING: Convention[Share] = 0.05
"""Share of a step below which the profiler's cost does not matter to the reader."""


_SHORTEST_PATH: Convention[Cells] = 24


def label(diagnosis: Diagnosis) -> str:
    """The verdict's key, `HOST-BOUND · launch`, or why there is no verdict."""
    return key(diagnosis) or headline(diagnosis)


def summary(diagnosis: Diagnosis) -> str:
    """The verdict's explanation, without what an issue of the recording already says."""
    return " ".join(sentences(diagnosis))


def sentences(diagnosis: Diagnosis) -> Sentences:
    """The same, sentence by sentence."""
    messages = {issue.message for issue in diagnosis.quality.issues}
    return tuple(one for one in diagnosis.verdict.sentences if one not in messages)


def of_iteration(diagnosis: Diagnosis) -> bool:
    """Whether iterations were timed and nothing is concluded on steps: then the iteration is the time to state."""
    return diagnosis.iteration is not None and diagnosis.verdict.bound is None


def step_time(diagnosis: Diagnosis) -> str:
    """`148 ms a step`: the mean step, and whether it is estimated or only recorded."""
    steps, budget, unit = diagnosis.steps, diagnosis.budget, diagnosis.unit
    if of_iteration(diagnosis) and diagnosis.iteration is not None:
        return f"{duration(diagnosis.iteration.mean_ns)} an iteration"
    if steps is None and budget is not None:
        return f"{duration(budget.mean_ns)} {unit.a}"
    if steps is None:
        baseline = diagnosis.run.baseline if diagnosis.run else None
        unprofiled = (baseline.free_ns or baseline.synchronised_ns) if baseline else None
        return f"{duration(unprofiled)} {unit.a}" if unprofiled else ""
    taken = duration(headline_ns(diagnosis))
    if diagnosis.iteration is not None and diagnosis.iteration.steps > 1:
        return f"{duration(diagnosis.iteration.mean_ns)} an iteration, {taken} {unit.a}"
    if steps.source == "none":
        return f"{taken} recorded, no {unit}s"
    if steps.unprofiled_ns is not None or (budget is not None and budget.source == "free"):
        return f"{taken} {unit.a}"
    return f"about {taken} {unit.a}" if steps.estimated_ns is not None else f"{taken} {unit.a}, as recorded"


def usual_step(diagnosis: Diagnosis) -> str:
    """`usually 54 ms, limited by the GPU's own work`: how the usual step differs from the mean; empty if it hardly
    does."""
    budget = diagnosis.budget
    if budget is None or not budget.has_usual_step or (diagnosis.steps and diagnosis.steps.source == "none"):
        return ""
    if budget.mean_ns == headline_ns(diagnosis):
        limit = limit_of_usual(diagnosis)
        return f"usually {duration(budget.usual_ns)}{limit and f', limited by {limit}'}"
    return f"the recorded ones {duration(budget.mean_ns)} on average"


def headline_ns(diagnosis: Diagnosis) -> int:
    """The step time that the headline states first, which other sentences mean by "a step"; 0 without steps.

    The mean step where a run timed its steps; else the unprofiled one, measured or estimated; else the recorded mean.
    """
    steps, budget = diagnosis.steps, diagnosis.budget
    mean = None if budget is None else budget.mean_ns
    if budget is not None and budget.source == "free":
        return budget.mean_ns
    known = () if steps is None else (steps.unprofiled_ns, steps.estimated_ns, mean, steps.recorded_ns)
    return next((ns for ns in known if ns is not None), 0)


def gpus(diagnosis: Diagnosis) -> str:
    """`2 × NVIDIA H200`."""
    names = Counter(shown(gpu.name, 40) for gpu in diagnosis.environment.gpus if gpu.name)
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in names.items())


def versions(diagnosis: Diagnosis) -> str:
    """The relevant versions in the file: `torch 2.11, CUDA 13.0`."""
    known = diagnosis.environment.versions
    found = []
    for name in ("torch_version", "pytorch_version"):
        if name in known:
            found.append(f"torch {shown(_release(str(known[name])), 20)}")
            break
    if cuda := _cuda(known.get("cuda_runtime_version")):
        found.append(f"CUDA {cuda}")
    return ", ".join(found)


def version(name: str, value: object) -> str:
    """A version as people write it: `13.0` for CUDA's 13000."""
    counted = name in ("cuda_runtime_version", "cuda_driver_version")
    return (_cuda(value) if counted else "") or str(value)


def _cuda(value: object) -> str:
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) and value >= 1000 else ""


def _release(version: str) -> str:
    """`2.11` for `2.11.0+cu130`."""
    return re.sub(r"^(\d+\.\d+)\.\d+\S*$", r"\1", version)


def source(diagnosis: Diagnosis, width: int = 120) -> str:
    """What was analysed, in one line: the file, its steps, its rank."""
    steps, where = diagnosis.steps, diagnosis.environment
    parts = []
    if steps and steps.source != "none":
        by = f" by {shown(steps.name, 40)}" if steps.name else f" by {steps.source.replace('_', ' ')}"
        cut = f", {steps.cut:,} cut short" if steps.cut else ""
        parts.append(f"{amount(steps.count, diagnosis.unit)}{by}{cut}")
    if where.rank is not None and has_peers(where):
        parts.append(f"rank {where.rank}" + (f" of {where.world_size}" if where.world_size else ""))
    if diagnosis.source.events or not diagnosis.run:
        parts.append(amount(diagnosis.source.events, "event"))
    else:
        parts.append(f"{amount(diagnosis.run.steps_seen, 'step')} seen")
    rest = "".join(f" · {part}" for part in parts)
    if len(rest) > width - _SHORTEST_PATH:
        rest = "".join(f" · {part}" for part in parts[:-1])
    return shown(diagnosis.source.path, max(width - len(rest), _SHORTEST_PATH)) + rest


def has_peers(where: Environment) -> bool:
    """Whether it is one rank of several; a single rank's number is not shown."""
    return (where.world_size or (where.rank or 0) + 1) > 1


def _excluded(unit: Unit) -> str:
    return f"{unit.capitalize()} time, verdict and fixes exclude it; single waits and places are shown as recorded."


def profiler(diagnosis: Diagnosis) -> str | None:
    """How recording changed the step; None if not known."""
    steps, cost, unit = diagnosis.steps, diagnosis.profiler, diagnosis.unit
    if steps is None or steps.source == "none" or diagnosis.quality.status == "unusable":
        return None
    if steps.unprofiled_ns is not None:
        times = steps.recorded_ns / max(steps.unprofiled_ns, 1)
        if times < 1 + WORTH_MENTIONING:
            return f"Recording did not noticeably slow the {unit} down."
        recorded = duration(steps.recorded_ns)
        return f"Recording made the {unit} {times:.1f}× as long ({recorded} as recorded). {_excluded(unit)}"
    if cost is None:
        return None
    if steps.estimated_ns is not None:
        if cost.typical_ns < WORTH_MENTIONING * steps.recorded_ns:
            return f"Recording did not noticeably slow the {unit} down."
        times = duration_range(cost.low_ns, cost.high_ns)
        events = amount(cost.events_per_step, "recorded event")
        return (
            f"Recording cost {times} per {unit}, likely {duration(cost.typical_ns)} ({events} {unit.a})."
            f" {_excluded(unit)}"
        )
    if cost.high_ns < WORTH_MENTIONING * steps.recorded_ns:
        if diagnosis.quality.status != "ok":
            return None
        reliable = "" if diagnosis.verdict.doubts else ": these times are reliable"
        return f"Recording cost at most {duration(cost.high_ns)} per {unit}{reliable}."
    events = amount(cost.events_per_step, "recorded event")
    if cost.low_ns == cost.high_ns:
        return f"{events} {unit.a}, which may have added up to {duration(cost.high_ns)} to it."
    times = duration_range(cost.low_ns, cost.high_ns)
    return f"{events} {unit.a}, which may have added {times} to it, likely about {duration(cost.typical_ns)}."


def next_step(diagnosis: Diagnosis) -> str:
    """The next thing to do to learn more."""
    steps, cost, unit = diagnosis.steps, diagnosis.profiler, diagnosis.unit
    if lacks_trace(diagnosis) and diagnosis.run and diagnosis.run.status == "running":
        return "gpuprof diagnose, once the window is recorded"
    if ran_on_cpu(diagnosis) and diagnosis.cpu_step is None and diagnosis.iteration is None:
        return f"let the training run longer, or record sooner: {how_to_record_sooner(diagnosis.run)}"
    if diagnosis.quality.status == "unusable":
        return "record again as described above"
    if not diagnosis.findings and diagnosis.iteration is not None and diagnosis.iteration.changes:
        return f"gpuprof explain {diagnosis.iteration.changes[0].id}"
    if steps is None or steps.source == "none":
        return f"add --step REGEX with the name of the range or op that is {unit.a}"
    if diagnosis.findings:
        return f"gpuprof explain {diagnosis.findings[0].id}"
    if diagnosis.worth_trying:
        first = diagnosis.worth_trying[0]
        return fitting(first, USUAL_LINE) if first.settle else f"gpuprof explain {first.id}"
    if diagnosis.verdict.bound is None and any(issue.id == "truncated" for issue in diagnosis.quality.issues):
        return "record again as described above"
    slowed = cost is not None and cost.high_ns >= WORTH_MENTIONING * steps.recorded_ns
    if steps.unprofiled_ns is None and slowed:
        return f"time {unit.a} without the profiler, then add --step-ms MS"
    return "add --json for every number"


def more(diagnosis: Diagnosis) -> str:
    """Where the rest of the diagnosis is; empty if there is none."""
    if diagnosis.quality.status == "unusable" or lacks_trace(diagnosis) or ran_on_cpu(diagnosis):
        return "" if diagnosis.cpu_step is None else "-v shows the run and its functions; gpuprof report draws them"
    return "-v shows waits, kernels and phases; gpuprof report draws them"


def after_recording(diagnosis: Diagnosis) -> str:
    """The command that shows more of a run that has just been recorded."""
    on_cpu = diagnosis.cpu_step is not None
    return f"gpuprof diagnose -v shows {'the run and its functions' if on_cpu else 'waits, kernels, phases and notes'}"


def waits_for(gap: Gap | PhaseGaps) -> str:
    """`aten::mul ← lora.Linear`: the op that a gap ends with, and the module that called it."""
    module = shown(gap.module.removeprefix(MODULE), 120) if gap.module else ""
    if gap.op is None:
        return module or "–"
    return f"{shown(gap.op, 120)} ← {module}" if module else shown(gap.op, 120)
