"""The mean iteration of a job from its framework's logs: phases, and how long each role waits for the other."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from pathlib import Path

from gpuprof.calibration import iterations as calibrated
from gpuprof.diagnosis.iterations.logged_changes import changes
from gpuprof.diagnosis.iterations.logged_model import LoggedIterations, LoggedQuantity, LoggedRole, LogSource
from gpuprof.diagnosis.iterations.percentile import usual_range
from gpuprof.diagnosis.result.iteration_model import PhaseBudget
from gpuprof.errors import GpuprofError
from gpuprof.record.phases.phase_names import (
    ADVANTAGE,
    DATA,
    ENVIRONMENT,
    GENERATION,
    LOG_PROBABILITIES,
    OTHER,
    REWARD,
    SAVE,
    TRAINING,
    VALIDATION,
    WEIGHT_SYNC,
)
from gpuprof.tracefile.source import Issue
from gpuprof.tracefile.training_logs.frameworks import Framework
from gpuprof.tracefile.training_logs.read import TrainingLog, read_training_log, total_s
from gpuprof.tracefile.training_logs.record import LoggedIteration
from gpuprof.units import Assumed, Count, Entries, Iterations, Ratio, Share

ORDER = (
    DATA, GENERATION, ENVIRONMENT, REWARD, LOG_PROBABILITIES, ADVANTAGE, TRAINING, WEIGHT_SYNC, VALIDATION, SAVE, OTHER,
)  # fmt: skip
"""The phases that logs distinguish."""
WARM_UP: Assumed[Iterations] = 1
"""First iterations to leave out if there are enough others: they compile and fill caches."""
_FEWEST_AFTER_WARM_UP: Assumed[Iterations] = 3
_FEWEST_PAIRS: Assumed[Entries] = 2
"""Fewest pairs of iterations for a mean distance."""
_BREAK_RATIO: Assumed[Count] = 10
"""If iterations are this many times further apart than usual, the training was resumed in between."""
BUSY_BEYOND_WAIT: Assumed[Ratio] = 1.05
"""A generator that works for more than this multiple of the trainer's wait for it works while the trainer trains."""
OVERLAPPING_SHARE: Assumed[Share] = 0.02
"""Phases overlap if their sum exceeds the iteration by more than this share; less is rounding."""
Times = dict[str, float]
"""Phase → seconds of one iteration."""


def diagnose_logs(paths: Sequence[str]) -> LoggedIterations:
    """The iterations of a job from its logs: one file, or one of the trainer and one of the generator.

    Raises GpuprofError, one line, for a log without iterations and for logs of different jobs.
    """
    logs = [read_training_log(Path(path)) for path in paths]
    names = list(dict.fromkeys(log.framework.name for log in logs))
    if len(names) > 1:
        raise GpuprofError(f"these logs are from {' and '.join(names)}: give those of one job")
    by_role = {log.framework.role: log for log in logs}
    if len(by_role) < len(logs):
        role = logs[0].framework.role
        raise GpuprofError(f"{len(logs)} logs of a {role}: give one of the trainer, and one of the generator")
    own = by_role.get("trainer", logs[0])
    return _diagnosed(own, by_role)


def logged_quantities(path: Path) -> tuple[LoggedQuantity, ...]:
    """What a log has in addition to times: queues, staleness, lengths. Raises GpuprofError, one line, for other
    files."""
    return _quantities(read_training_log(path))


def _diagnosed(own: TrainingLog, by_role: dict[str, TrainingLog]) -> LoggedIterations:
    framework, used = own.framework, _used(own.iterations)
    outside = _outside(framework, used)
    times = [_times(framework, one, outside) for one in used]
    totals = [_whole(framework, one, outside) for one in used]
    mean_ns = round(1e9 * statistics.fmean(totals))
    low_ns, high_ns = usual_range([round(1e9 * s) for s in totals])
    phases, overlap_ns = _budget(times, totals, mean_ns)
    quantities = tuple(one for log in by_role.values() for one in _quantities(log))
    found = LoggedIterations(
        sources=tuple(_source(log) for log in by_role.values()),
        framework=framework.name,
        asynchronous=_is_asynchronous(framework, used),
        count=len(used),
        skipped=len(own.iterations) - len(used),
        mean_ns=mean_ns,
        low_ns=low_ns,
        high_ns=high_ns,
        phases=phases,
        training_ns=sum(one.ns for one in phases if one.phase == TRAINING),
        overlap_ns=overlap_ns,
        between_ns=_between(used, mean_ns),
        lag_ns=_lag(by_role),
        roles=(),
        quantities=quantities,
        limit="",
        changes=(),
        issues=(),
    )
    found = replace(found, roles=_roles(found))
    return replace(found, limit=_limit(found), changes=changes(found, framework), issues=_issues(found))


def _source(log: TrainingLog) -> LogSource:
    return LogSource(log.path, log.framework.name, log.framework.role, len(log.iterations))


def _used(iterations: Sequence[LoggedIteration]) -> Sequence[LoggedIteration]:
    return iterations[WARM_UP:] if len(iterations) >= WARM_UP + _FEWEST_AFTER_WARM_UP else iterations


def _times(framework: Framework, one: LoggedIteration, outside: bool) -> Times:
    """Seconds of an iteration by phase; nested phases are subtracted from those that include them."""
    seconds = {key: max(one.values[key], 0.0) for key in framework.phases if key in one.values}
    for part, whole in framework.inside.items():
        if part in seconds and whole in seconds:
            seconds[whole] = max(seconds[whole] - seconds[part], 0.0)
    found: Times = {}
    for key, value in seconds.items():
        found[framework.phases[key]] = found.get(framework.phases[key], 0.0) + value
    rest = _whole(framework, one, outside) - sum(found.values())
    return {**found, OTHER: found.get(OTHER, 0.0) + rest} if rest > 0 else found


def _named(framework: Framework, one: LoggedIteration) -> tuple[float, float]:
    """(seconds of all phases, seconds of the phases that some versions run between iterations)."""
    times = _times(framework, one, False)
    named = sum(ns for phase, ns in times.items() if phase != OTHER)
    return named, times.get(VALIDATION, 0.0) + times.get(SAVE, 0.0)


def _outside(framework: Framework, used: Sequence[LoggedIteration]) -> bool:
    """Whether validation and saving are outside the logged iteration: the phases only fit into it without them."""
    for one in used:
        named, apart = _named(framework, one)
        total = total_s(framework, one) * (1 + OVERLAPPING_SHARE)
        if apart and named > total and named - apart <= total:
            return True
    return False


def _whole(framework: Framework, one: LoggedIteration, outside: bool) -> float:
    total = total_s(framework, one)
    if not outside:
        return total
    seconds = (one.values.get(key, 0.0) for key, phase in framework.phases.items() if phase in (VALIDATION, SAVE))
    return total + sum(seconds)


def _budget(times: list[Times], totals: list[float], mean_ns: int) -> tuple[tuple[PhaseBudget, ...], int]:
    """(phases of the mean iteration, ns by which they exceed it); sums are exact, because the running sum is
    rounded."""
    names = [name for name in ORDER if any(name in one for one in times)]
    each = {name: [round(1e9 * one.get(name, 0.0)) for one in times] for name in names}
    excess = sum(sum(one.values()) for one in times) - sum(totals)
    overlap_ns = round(1e9 * excess / len(times)) if excess > 0 else 0
    until = [0, *(round(ns / len(times)) for ns in accumulate(sum(ns) for ns in each.values()))]
    until[-1] = mean_ns + overlap_ns
    phases = (
        PhaseBudget(name, max(until[i + 1] - until[i], 0), *usual_range(ns))
        for i, (name, ns) in enumerate(each.items())
    )
    return tuple(phases), overlap_ns


def _is_asynchronous(framework: Framework, used: Sequence[LoggedIteration]) -> bool:
    if any(key in one.values for one in used for key in framework.asynchronous):
        return True
    # If the generator works longer than the trainer waits for it, it works while the trainer trains.
    busy = [key for key, kind in framework.quantities.items() if kind == "generator_busy_s"]
    overlapping = [
        one.values[key] > BUSY_BEYOND_WAIT * _times(framework, one, False).get(GENERATION, 0.0)
        for one in used
        for key in busy
        if key in one.values
    ]
    return bool(overlapping) and sum(overlapping) > len(overlapping) / 2


def _between(used: Sequence[LoggedIteration], mean_ns: int) -> int | None:
    """Mean time between the ends of consecutive iterations − the logged time, by the log's clock, ns."""
    apart = [
        (b.at_s - a.at_s) / (b.step - a.step)
        for a, b in pairwise(used)
        if a.at_s is not None and b.at_s is not None and b.step > a.step and b.at_s >= a.at_s
    ]
    if len(apart) < _FEWEST_PAIRS:
        return None
    usual = [one for one in apart if one <= _BREAK_RATIO * statistics.median(apart)]
    return round(1e9 * statistics.fmean(usual)) - mean_ns


def _lag(by_role: dict[str, TrainingLog]) -> int | None:
    """How much later the trainer logs a step than the generator, by a common clock, ns."""
    if len(by_role) < 2:
        return None
    generated = {one.step: one.at_s for one in by_role["generator"].iterations if one.at_s is not None}
    apart = [
        one.at_s - generated[one.step]
        for one in by_role["trainer"].iterations
        if one.at_s is not None and one.step in generated
    ]
    mean = statistics.fmean(apart) if apart else -1.0
    return round(1e9 * mean) if mean >= 0 else None


def _quantities(log: TrainingLog) -> tuple[LoggedQuantity, ...]:
    used, found = _used(log.iterations), []
    for key, kind in log.framework.quantities.items():
        values = [one.values[key] for one in used if key in one.values]
        if values and kind not in {one.kind for one in found}:
            found.append(LoggedQuantity(kind, key, statistics.fmean(values), min(values), max(values)))
    return tuple(found)


def _roles(found: LoggedIterations) -> tuple[LoggedRole, ...]:
    """The side that trains and the side that generates. None for a job that does one after the other: if both use the
    same GPUs neither waits, and the logs do not say whether they do."""
    if not found.asynchronous:
        return ()
    return (_trainer(found), _generator(found))


def _trainer(found: LoggedIterations) -> LoggedRole:
    if any(source.role == "trainer" for source in found.sources):
        wait = found.ns_of(GENERATION)
        known = found.quantity("trainer_wait_s") or found.quantity("trainer_idle_share")
        return _role("trainer", found.mean_ns, wait, "completions", known.key if known else "the phase generation")
    return LoggedRole("trainer", None, None, None, None, "no log of the trainer")


def _generator(found: LoggedIterations) -> LoggedRole:
    share, wait = found.quantity("generator_idle_share"), found.quantity("generator_wait_s")
    busy = found.quantity("generator_busy_s")
    if share is not None:
        return _role("generator", found.mean_ns, round(min(share.mean, 1.0) * found.mean_ns), "training", share.key)
    if wait is not None:
        return _role("generator", found.mean_ns, round(1e9 * wait.mean), "training", wait.key)
    if busy is not None:
        waits = max(found.mean_ns - round(1e9 * busy.mean), 0)
        return _role("generator", found.mean_ns, waits, "training", busy.key)
    return LoggedRole("generator", None, None, None, None, "not logged")


def _role(role: str, mean_ns: int, wait_ns: int, waits_for: str, source: str) -> LoggedRole:
    wait_ns = min(max(wait_ns, 0), mean_ns)
    return LoggedRole(role, mean_ns - wait_ns, wait_ns, wait_ns / mean_ns, waits_for if wait_ns else None, source)


def _limit(found: LoggedIterations) -> str:
    if not found.asynchronous:
        generating, whole = found.ns_of(GENERATION), max(found.mean_ns, 1)
        return (
            f"Generation and training take turns: {100 * generating / whole:.0f} % of the iteration generates,"
            f" {100 * found.training_ns / whole:.0f} % trains. If each side has its own GPUs, it is idle meanwhile."
        )
    trainer, generator = (one.wait_share for one in found.roles)
    if trainer is None or generator is None:
        known, other = ("trainer", trainer) if trainer is not None else ("generator", generator)
        if other is None:
            return "The logs do not say which side waits for the other."
        feeds = "generation" if known == "trainer" else "training"
        limits = f"{feeds} limits the job" if other >= calibrated.BOUND.value else f"{feeds} does not limit the job"
        return f"The {known} waits {100 * other:.0f} % of the time: {limits}. The other side's waiting is not logged."
    said = f"The trainer waits {100 * trainer:.0f} % of the time for completions, the generator {100 * generator:.0f} %"
    if max(trainer, generator) < calibrated.BOUND.value:
        return f"{said} for training: the two sides are balanced."
    if min(trainer, generator) >= calibrated.BOUND.value:
        return f"{said} for training: both wait, so what is between them (weight sync, queue, limits) costs time."
    return f"{said} for training: {'generation' if trainer > generator else 'training'} limits the job."


def _issues(found: LoggedIterations) -> tuple[Issue, ...]:
    said: list[Issue] = []
    if found.count < _FEWEST_AFTER_WARM_UP:
        said.append(Issue("few_iterations", "warning", f"only {found.count} timed: the mean may be far off"))
    if found.overlap_ns > OVERLAPPING_SHARE * found.mean_ns:
        text = f"the phases exceed the iteration by {100 * found.overlap_ns / found.mean_ns:.0f} %: some overlap"
        said.append(Issue("phases_overlap", "info", text))
    if found.between_ns is not None and found.between_ns > OVERLAPPING_SHARE * found.mean_ns:
        text = (
            f"iterations end {(found.mean_ns + found.between_ns) / 1e9:.1f} s apart, and {found.mean_ns / 1e9:.1f} s of"
            " that are logged: what happens in between (validation, saving, other work) is unknown"
        )
        said.append(Issue("unlogged_time", "warning", text))
    return tuple(said)
