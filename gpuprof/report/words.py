"""What a Diagnosis says in a few words: the sentences that the terminal and the notebook share."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence

from gpuprof.diagnosis.budget_model import Budget
from gpuprof.diagnosis.diagnosis import Diagnosis, Environment, Gap, PhaseGaps
from gpuprof.replay.bound import PARTS, RESOURCES, SMALL, largest
from gpuprof.report.names import shown
from gpuprof.report.numbers import amount, duration, duration_range
from gpuprof.report.settle import settle
from gpuprof.timeline.frames import MODULE
from gpuprof.timeline.unit_words import in_unit

WORTH_MENTIONING = 0.05
"""Share of a step below which the profiler's cost changes nothing that a person would do."""

SAME = 0.03
"""Share by which steps of one process differ for no reason."""

_SHORTEST_PATH = 24


def label(diagnosis: Diagnosis) -> str:
    """The verdict in two words: `HOST-BOUND · launch`."""
    verdict = diagnosis.verdict
    if _lacks_trace(diagnosis):
        return "NO TRACE"
    if _ran_on_cpu(diagnosis):
        return "NO GPU"
    if diagnosis.quality.status == "unusable":
        return "UNUSABLE RECORDING"
    if verdict.bound is None:
        return "NO VERDICT"
    if verdict.second is not None:
        return f"UNCLEAR: {verdict.bound.upper()} OR {verdict.second.upper()}"
    text = _balanced(diagnosis) if verdict.bound == "balanced" else f"{verdict.bound.upper()}-BOUND"
    return f"{text} · {verdict.cause.replace('_', ' ')}" if verdict.cause else text


def summary(diagnosis: Diagnosis) -> str:
    """What the verdict says, without what an issue of the recording says as well."""
    text = diagnosis.verdict.summary
    for issue in diagnosis.quality.issues:
        text = text.replace(issue.message, "")
    return text.strip()


def _balanced(diagnosis: Diagnosis) -> str:
    """Between what a balanced step is balanced: `GPU-BOUND: compute and memory` where only the GPU limits it."""
    found = diagnosis.sensitivities
    if found is None:
        return "BALANCED"
    values = {name: getattr(found, name) for name in RESOURCES}
    if max(values.values()) < SMALL:
        return "BALANCED"
    if largest(values) != ["device"]:
        return f"BALANCED: {_listed(['GPU' if name == 'device' else name for name in largest(values)])}"
    parts = {name: value for name in PARTS if (value := getattr(found, name)) is not None}
    return f"GPU-BOUND: {_listed(largest(parts))}" if parts else "GPU-BOUND"


def _listed(names: Sequence[str]) -> str:
    """`compute, memory and latency`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))


def _ran_on_cpu(diagnosis: Diagnosis) -> bool:
    """A run that was recorded as it should be, and that used no GPU."""
    issues = {issue.id for issue in diagnosis.quality.issues}
    return diagnosis.run is not None and not diagnosis.environment.gpus and "no_gpu_events" in issues


def _lacks_trace(diagnosis: Diagnosis) -> bool:
    """A run without its trace: all that is known is what its steps tell."""
    return any(issue.id == "no_trace" for issue in diagnosis.quality.issues)


def step_time(diagnosis: Diagnosis) -> str:
    """How long a step takes, and whether that is with the profiler or without."""
    return in_unit(_step_time(diagnosis), diagnosis.unit)


def _step_time(diagnosis: Diagnosis) -> str:
    steps = diagnosis.steps
    if steps is None and diagnosis.budget is not None:
        found = diagnosis.budget
        return f"{duration(found.mean_ns)} a step{f' (usually {duration(found.usual_ns)})' if differs(found) else ''}"
    if steps is None:
        baseline = diagnosis.run.baseline if diagnosis.run else None
        unprofiled = (baseline.free_ns or baseline.synchronised_ns) if baseline else None
        return f"{duration(unprofiled)} a step" if unprofiled else ""
    recorded, budget, taken = duration(steps.recorded_ns), diagnosis.budget, duration(headline_ns(diagnosis))
    if steps.source == "none":
        return f"{recorded} recorded, no steps"
    mean = budget is not None and differs(budget)
    if budget is not None and budget.source == "free":
        usually = f"usually {duration(budget.usual_ns)}, " if mean else ""
        return f"{taken} a step ({usually}{as_recorded(diagnosis, budget.usual_ns)})"
    if steps.unprofiled_ns is not None:
        return f"{taken} a step ({as_recorded(diagnosis, steps.unprofiled_ns)})"
    if steps.estimated_ns is not None:
        also = f"{duration(budget.mean_ns)} in the mean, " if budget is not None and mean else ""
        return f"about {taken} a step ({also}{as_recorded(diagnosis, steps.estimated_ns)})"
    return f"{taken} a step{f' (usually {recorded})' if mean else ''}, as recorded"


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


def as_recorded(diagnosis: Diagnosis, without_ns: int) -> str:
    """`168 ms under the profiler`. Recording makes no step shorter: a recorded step that is, is the CPU's, which ran
    ahead of the GPU, or of less work than the others. Nor is all of a longer one the profiler's: a single step also
    contains what the step before it overlaps in a loop."""
    steps, cost = diagnosis.steps, diagnosis.profiler
    assert steps is not None
    taken = duration(steps.recorded_ns)
    if steps.recorded_ns < (1 - SAME) * without_ns:
        return f"{taken} on the CPU as recorded"
    if steps.unprofiled_ns is None and cost is not None and steps.inflation is not None:
        rest = steps.recorded_ns - without_ns * steps.inflation
        if rest > max(SAME * without_ns, cost.typical_ns):
            return f"{taken} as recorded"
    return f"{taken} under the profiler"


def differs(budget: Budget) -> bool:
    """Whether the mean step is so far from the usual one that both are worth a number."""
    return abs(budget.mean_ns - budget.usual_ns) >= WORTH_MENTIONING * budget.mean_ns


def gpus(diagnosis: Diagnosis) -> str:
    """`2 × NVIDIA H200`."""
    names = Counter(shown(gpu.name, 40) for gpu in diagnosis.environment.gpus if gpu.name)
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in names.items())


def versions(diagnosis: Diagnosis) -> str:
    """What matters of the versions that the file states: `torch 2.11, CUDA 13.0`."""
    known = diagnosis.environment.versions
    found = []
    for key in ("torch_version", "pytorch_version"):
        if key in known:
            found.append(f"torch {shown(_release(str(known[key])), 20)}")
            break
    if cuda := _cuda(known.get("cuda_runtime_version")):
        found.append(f"CUDA {cuda}")
    return ", ".join(found)


def version(name: str, value: object) -> str:
    """A version as people write it: `13.0` of the 13000 that CUDA counts."""
    counted = name in ("cuda_runtime_version", "cuda_driver_version")
    return (_cuda(value) if counted else "") or str(value)


def _cuda(value: object) -> str:
    return f"{value // 1000}.{value % 1000 // 10}" if isinstance(value, int) and value >= 1000 else ""


def _release(version: str) -> str:
    """`2.11` of `2.11.0+cu130`: what people call it."""
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
    """Whether it is one rank of several: one alone has no number worth saying."""
    return (where.world_size or (where.rank or 0) + 1) > 1


_WITHOUT = "Step time, verdict and fixes exclude it; single waits and places are shown as recorded."


def profiler(diagnosis: Diagnosis) -> str | None:
    """What the recording itself did to the step; None where that is not known."""
    text = _profiler(diagnosis)
    return text and in_unit(text, diagnosis.unit)


def _profiler(diagnosis: Diagnosis) -> str | None:
    steps, cost = diagnosis.steps, diagnosis.profiler
    if steps is None or steps.source == "none" or diagnosis.quality.status == "unusable":
        return None
    if steps.unprofiled_ns is not None:
        times = steps.recorded_ns / max(steps.unprofiled_ns, 1)
        if times < 1 + WORTH_MENTIONING:
            return "Recording did not noticeably slow the step down."
        return f"Recording made the step {times:.1f}× as long. {_WITHOUT}"
    if cost is None:
        return None
    if steps.estimated_ns is not None:
        if cost.typical_ns < WORTH_MENTIONING * steps.recorded_ns:
            return "Recording did not noticeably slow the step down."
        times = duration_range(cost.low_ns, cost.high_ns)
        events = amount(cost.events_per_step, "recorded event")
        return f"Recording cost {times} per step, likely {duration(cost.typical_ns)} ({events} a step). {_WITHOUT}"
    if cost.high_ns < WORTH_MENTIONING * steps.recorded_ns:
        if diagnosis.quality.status != "ok":
            return None
        reliable = "" if diagnosis.verdict.doubts else ": these times are reliable"
        return f"Recording cost at most {duration(cost.high_ns)} per step{reliable}."
    events = amount(cost.events_per_step, "recorded event")
    if cost.low_ns == cost.high_ns:
        return f"{events} a step, which may have added up to {duration(cost.high_ns)} to it."
    times = duration_range(cost.low_ns, cost.high_ns)
    return f"{events} a step, which may have added {times} to it, likely about {duration(cost.typical_ns)}."


def next_step(diagnosis: Diagnosis) -> str:
    """The one thing to do now that would show more."""
    return in_unit(_next_step(diagnosis), diagnosis.unit)


def _next_step(diagnosis: Diagnosis) -> str:
    steps, cost = diagnosis.steps, diagnosis.profiler
    if _lacks_trace(diagnosis) and diagnosis.run and diagnosis.run.status == "running":
        return "gpuprof diagnose, once the window is recorded"
    if _ran_on_cpu(diagnosis):
        return "gpuprof trace on a machine with a GPU"
    if diagnosis.quality.status == "unusable":
        return "record again as described above"
    if steps is None or steps.source == "none":
        return "add --step REGEX with the name of the range or op that is a step"
    if diagnosis.findings:
        return f"gpuprof explain {diagnosis.findings[0].id}"
    if diagnosis.worth_trying:
        first = diagnosis.worth_trying[0]
        return settle(first) if first.settle else f"gpuprof explain {first.id}"
    if diagnosis.verdict.bound is None and any(issue.id == "truncated" for issue in diagnosis.quality.issues):
        return "record again as described above"
    slowed = cost is not None and cost.high_ns >= WORTH_MENTIONING * steps.recorded_ns
    if steps.unprofiled_ns is None and slowed:
        return "time a step without the profiler, then add --step-ms MS"
    return "add --json for every number"


def more(diagnosis: Diagnosis) -> str:
    """Where the rest of the diagnosis is; nothing where there is none."""
    if diagnosis.quality.status == "unusable" or _lacks_trace(diagnosis) or _ran_on_cpu(diagnosis):
        return ""
    return "-v shows the run, waits, kernels, phases and notes; gpuprof report draws them"


def waits_for(gap: Gap | PhaseGaps) -> str:
    """`aten::mul ← lora.Linear`: the op that a gap ends with, and the module that called it."""
    module = shown(gap.module.removeprefix(MODULE), 120) if gap.module else ""
    if gap.op is None:
        return module or "–"
    return f"{shown(gap.op, 120)} ← {module}" if module else shown(gap.op, 120)
