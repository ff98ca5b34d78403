"""Issues of a run, in sentences: its unprofiled steps, its end, its GPU's clock, and why it has no trace."""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuprof.calibration import thresholds as thresholds_calibrated
from gpuprof.diagnosis.mean_step.baseline import StepTime
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.result.diagnosis import Issue
from gpuprof.diagnosis.result.run_model import Run, Telemetry
from gpuprof.diagnosis.run.run_facts import FEWEST_AFTER, RunFacts
from gpuprof.diagnosis.sentences import capital, duration
from gpuprof.runfile import LOG, NSYS, STAGES, WINDOWS
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.tracefile.run_folder.run import UNKNOWN_STAGE, RunFolder
from gpuprof.units import Assumed, Samples, Share

WIDE_SPREAD: Assumed[Share] = 0.30
"""If the 80 % interval of the steps is wider than this share of the median, the median says little; on a quiet machine
it is 10–20 %."""
SKEWED_MEAN: Assumed[Share] = 0.10
"""If the mean exceeds the usual step by more than this share without a measured cause, a note says so."""
THROTTLED_SAMPLES: Assumed[Share] = 0.10
"""Smallest share of samples with a throttled clock for an issue: from there on the mean clock drops noticeably."""
FEWEST_SAMPLES: Assumed[Samples] = 2
"""Fewest throttled samples: a single one in a short baseline may be chance."""

_SEVERE = re.compile(r"thermal|brake|hw_slowdown", re.IGNORECASE)
_POWER_CAP = re.compile(r"power_?cap", re.IGNORECASE)


def run_issues(facts: RunFacts, unit: Unit = STEP) -> tuple[Issue, ...]:
    """All issues of a run except a missing trace; `unit`: what its steps are called."""
    return (
        *_waiting_issue(facts, unit),
        *_baseline_issues(facts, unit),
        *_after_issues(facts.free, facts.after, unit),
        *_throttling(facts.run.telemetry, unit),
        *_run_issues(facts.folder, facts.run, unit),
    )


def no_trace(folder: RunFolder, run: Run, failure: str) -> Issue:
    """Why a run has no trace that can be read, and what to do."""
    if failure:
        return Issue("no_trace", "error", f"The trace of this run cannot be read: {failure}.")
    last = _last_stage(folder)
    where = f" in the {_STAGE_NAMES.get(last, last)}" if last else ""
    if folder.status == "running":
        text = (
            f"This run has no trace yet: it is at {_so_far(run)}{where}. Diagnose it again when gpuprof reports that"
            " the steps are recorded; if the training is over, it was killed together with gpuprof."
        )
    elif not run.steps_seen:
        text = (
            f"This run has no trace: {_ended(folder)} before a step was seen. A step ends with an optimizer's step(),"
            f" or where a loop without one calls gpuprof.Recorder.step(); {LOG} in the run folder lists what was seen."
        )
    elif last == "after" or _stages(folder) & set(WINDOWS):
        text = (
            f"This run has no trace: {_ended(folder)} after {_so_far(run)}, and the recording was not written or"
            f" is gone. {LOG} in the run folder says why; record again."
        )
    else:
        text = (
            f"This run has no trace: {_ended(folder)} after {_so_far(run)}{where}, before the recording began. Let it"
            f" run longer, or record sooner: {how_to_record_sooner(run)}"
        )
    return Issue("no_trace", "error", text)


def how_to_record_sooner(run: Run | None) -> str:
    """What to type for a shorter baseline; a run without a command comes from a notebook cell or a Recorder."""
    if run is not None and not run.command:
        return "%%gpuprof --settle 2 --baseline 3, or gpuprof.Recorder(settle=2, baseline=3)"
    return "gpuprof trace --settle 2 --baseline 3 …"


_STAGE_NAMES = {
    "settle": "settling stage",
    "baseline_free": "baseline",
    "baseline_sync": "baseline",
    "sampling": "sampling of Python functions",
    "warmup": "profiler's warm-up",
    "trace": "recording",
    NSYS: "recording",
}


def _own_stages(folder: RunFolder) -> list[int]:
    """Stage of each step of this rank, as an index of STAGES."""
    steps = folder.steps
    return steps.stage[(steps.rank == folder.rank) & (steps.stage != UNKNOWN_STAGE)].tolist()


def _stages(folder: RunFolder) -> set[str]:
    return {STAGES[i] for i in set(_own_stages(folder))}


def _last_stage(folder: RunFolder) -> str | None:
    own = _own_stages(folder)
    return STAGES[own[-1]] if own else None


def _so_far(run: Run) -> str:
    of = f" of {run.steps_total:,}" if run.steps_total else ""
    return f"step {run.steps_seen:,}{of}"


def _ended(folder: RunFolder) -> str:
    if folder.exit_signal:
        return f"the training was ended by {folder.exit_signal}"
    if folder.exit_code:
        return f"the training ended with exit code {folder.exit_code}"
    return "the training ended"


def _baseline_issues(facts: RunFacts, unit: Unit) -> Iterator[Issue]:
    profiled, steps, unprofiled, found = facts.profiled, facts.unprofiled_steps, facts.unprofiled, facts.budget
    if profiled:
        yield Issue(
            "baseline_profiled",
            "warning",
            f"A profiler of the training's own was active in {profiled:,} of the {profiled + steps:,} {unit}s that were"
            f" to be timed without one; they do not count. Turn it off to get the true {unit} time.",
        )
    if unprofiled is None:
        if steps:
            yield Issue(
                "baseline_work",
                "warning",
                f"The unprofiled {unit}s did other work than the recorded ones (longer or shorter sequences), and too"
                " few"
                " are alike to estimate the recorded ones without the profiler. A longer baseline helps:"
                " gpuprof trace --baseline 30 …",
            )
        elif not profiled:
            yield Issue(
                "no_baseline",
                "info",
                f"No {unit} of this run was timed without the profiler, so its cost is only estimated.",
            )
        return
    if unprofiled.fitted:
        yield Issue(
            "baseline_fitted",
            "info",
            f"The {unit}s' lengths vary: the unprofiled {unit} of {duration(unprofiled.ns)} is interpolated from"
            f" {unprofiled.steps:,} {unit}s (time against work).",
        )
    spread = unprofiled.high_ns - unprofiled.low_ns
    if spread > WIDE_SPREAD * unprofiled.ns and not _explained(found):
        yield Issue(
            "baseline_varies",
            "warning",
            f"Unprofiled {unit}s of the same work take between {duration(unprofiled.low_ns)} and"
            f" {duration(unprofiled.high_ns)}, and recorded {unit}s may differ as well. Something else may be using"
            f" the machine, or some {unit}s do more (logging, input).",
        )
        return
    if found is not None and found.residual_ns > SKEWED_MEAN * found.usual_ns:
        yield Issue(
            "baseline_skewed",
            "info",
            f"Of what the mean unprofiled {unit} takes beyond the usual one, no measured cause explains"
            f" {duration(found.residual_ns)}.",
        )


def _explained(found: Budget | None) -> bool:
    """Whether measured causes explain how steps differ."""
    if found is None:
        return False
    excess = sum(one.mean_ns or 0 for one in found.excess)
    return excess > SKEWED_MEAN * found.usual_ns and excess > abs(found.residual_ns)


def _waiting_issue(facts: RunFacts, unit: Unit) -> Iterator[Issue]:
    if facts.under_nsys and facts.unprofiled:
        yield Issue(
            "baseline_under_nsys",
            "info",
            f"The unprofiled {unit}s were timed with Nsight Systems attached, which makes launch-bound {unit}s 0 to"
            " 15 %"
            " longer. A run without --nsys times them without it.",
        )


def _after_issues(free: StepTime | None, after: StepTime | None, unit: Unit) -> Iterator[Issue]:
    if free is None or after is None or after.steps < FEWEST_AFTER:
        return
    if after.ns > (1 + thresholds_calibrated.STILL_SLOW.value) * free.ns and after.ns > free.high_ns:
        yield Issue(
            "slower_after",
            "warning",
            f"{unit.capitalize()}s take {duration(after.ns)} since the recording, {duration(free.ns)} before it: the"
            " profiler may"
            f" still be active in the process, the machine may have become busier or hotter, or the {unit}s may do more"
            " (longer samples, for instance).",
        )


def _throttling(telemetry: Telemetry | None, unit: Unit) -> Iterator[Issue]:
    if telemetry is None:
        return
    for gpu in telemetry.gpus:
        name = f"GPU {gpu.index}" if len(telemetry.gpus) > 1 else "The GPU"
        for pattern, severity in ((_SEVERE, "warning"), (_POWER_CAP, "info")):
            held = {reason: share for reason, share in gpu.throttled.items() if pattern.search(reason)}
            share = max(held.values(), default=0.0)
            if share <= THROTTLED_SAMPLES or share * telemetry.samples < FEWEST_SAMPLES:
                continue
            often = f"in {100 * share:.0f} % of the samples"
            if severity == "info":
                limit = f" of {gpu.limit_w:,.0f} W" if gpu.limit_w else ""
                text = f"{name} was at its power limit{limit} {often}, which lowers its clock."
            else:
                text = (
                    f"{name} was slowed down by heat or its power supply {often} ({', '.join(sorted(held))}):"
                    f" with better cooling and power the same {unit} is faster."
                )
            yield Issue("throttled", severity, text)  # type: ignore[arg-type]


def _run_issues(folder: RunFolder, run: Run, unit: Unit) -> Iterator[Issue]:
    if folder.status in ("failed", "killed", "interrupted"):
        yield Issue("run_ended", "info", f"{capital(_ended(folder))} after {_so_far(run)}.")
    if any(one.window == folder.window and one.steps == 0 for one in folder.own.windows):
        yield Issue(
            "no_whole_step",
            "warning",
            f"The recording ended within its first {unit}: it holds a part of {unit.a}, whose time and work are less"
            " than a"
            f" {unit}'s.",
        )
    if folder.damaged:
        yield Issue("run_damaged", "warning", f"Damaged files in the run folder: {', '.join(folder.damaged[:5])}.")
    missing = _not_adapted(run.model)
    if missing:
        yield Issue(
            "lora_not_adapted",
            "info",
            f"LoRA was requested for {', '.join(missing[:8])}, but the model has no adapters there: those weights"
            " are not trained.",
        )


def _not_adapted(model: dict | None) -> list[str]:
    """Modules that were requested for LoRA by name and have no adapters."""
    lora = (model or {}).get("lora")
    if not isinstance(lora, dict):
        return []
    requested, adapted = lora.get("requested"), lora.get("adapted")
    if not isinstance(requested, list) or not isinstance(adapted, dict) or not adapted:
        return []
    got = {str(name).rpartition(".")[2] for name in adapted}
    plain = [name for name in requested if isinstance(name, str) and re.fullmatch(r"[\w.]+", name)]
    return [name for name in plain if name.rpartition(".")[2] not in got]
