"""Tensor, pipeline and sharded data parallel training on four GPUs: the joint replay against what was timed.

    python -m benchmarks.parallel_jobs

The scenarios of `scenarios/parallel.py`: each recorded on all ranks as it is and with something slow in it, and timed
without a profiler. The replay has to reproduce the recorded steps, name what is slow, and predict the step without it,
which is the timed step of the program as it is. What was not recorded is listed as such.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import gpuprof
from gpuprof.errors import GpuprofError
from gpuprof.ranks.verdicts import WORST_ERROR
from scenarios.catalogue import Scenario, scenario
from scenarios.parallel import PROGRAMS

Culprit = tuple[str | None, tuple[int, ...]]
"""The verdict of the joint replay, and the ranks that it is about."""

RIGHT: dict[str, Culprit] = {
    "": (None, ()),
    "slow_rank": ("straggler", (1,)),
    "long_stage": ("stage_imbalance", (2, 3)),
    "uneven": ("uneven_batches", ()),
}
FAR = 0.05
"""A predicted step further off than this is a miss."""
MS = 1e6


@dataclass(frozen=True, slots=True)
class Outcome:
    """One variant of a program; None where it was not recorded, or not timed."""

    name: str
    change: str
    failed: str = ""
    """Why its recordings have no answer."""
    replay_error: float | None = None
    said: Culprit | None = None
    step_ms: float | None = None
    """As gpuprof estimates it without the profiler."""
    timed_ms: tuple[float, float] | None = None
    without_ms: float | None = None
    """The predicted step without what is slow."""
    plain_ms: tuple[float, float] | None = None
    """The timed step of the program as it is."""

    @property
    def recorded(self) -> bool:
        return self.replay_error is not None

    @property
    def right(self) -> bool:
        """Whether the recorded steps were reproduced, and the right one named."""
        return self.recorded and (self.replay_error or 0) <= WORST_ERROR and self.said == RIGHT[self.change]

    @property
    def error(self) -> float | None:
        """Error of the predicted step from the nearer end of what was timed; 0 within it."""
        if self.without_ms is None or self.plain_ms is None:
            return None
        low, high = self.plain_ms
        near = min(max(self.without_ms, low), high)
        return self.without_ms / near - 1


def outcomes() -> Iterator[Outcome]:
    """Every variant of every program, recorded or not."""
    for name in PROGRAMS:
        entry = scenario(name)
        for change in entry.variants():
            yield outcome(entry, change)


def outcome(entry: Scenario, change: str) -> Outcome:
    """What the joint replay says of one variant, next to what was timed."""
    timed, plain = entry.measured_ms(change), entry.measured_ms()
    recording = entry.recorded(change)
    if recording is None:
        return Outcome(entry.name, change, timed_ms=timed, plain_ms=plain)
    try:
        job = gpuprof.diagnose(recording).job
    except GpuprofError as error:
        return Outcome(entry.name, change, str(error), timed_ms=timed, plain_ms=plain)
    if job is None:
        return Outcome(entry.name, change, "the ranks were not diagnosed together", timed_ms=timed, plain_ms=plain)
    culprit = job.culprit
    return Outcome(
        entry.name, change, "", job.replay_error, (job.verdict, culprit.ranks if culprit else ()), job.step_ns / MS,
        timed, culprit.step_ns / MS if culprit else None, plain,
    )  # fmt: skip


def lines(found: list[Outcome]) -> Iterator[str]:
    """A Markdown table with a row for each that was recorded, and a sentence about the others."""
    recorded = [one for one in found if one.recorded]
    if recorded:
        yield "| program | with | replay | gpuprof says | | step, ms | timed | without it | timed as it is | |\n"
        yield "|---|---|---:|---|---|---:|---:|---:|---:|---:|\n"
    for one in recorded:
        yield f"| {one.name} | {one.change or '–'} | {' | '.join(_cells(one))} |\n"
    missing: dict[str, list[str]] = {}
    for one in found:
        if not one.recorded:
            why = f" ({one.failed})" if one.failed else ""
            missing.setdefault(one.name, []).append((one.change or "as it is") + why)
    if missing:
        yield "\n" if recorded else ""
        yield "Not recorded: " + "; ".join(f"{name} {', '.join(each)}" for name, each in missing.items()) + ".\n"


def _cells(one: Outcome) -> tuple[str, ...]:
    timed, plain = _interval(one.timed_ms), _interval(one.plain_ms)
    verdict, ranks = one.said or (None, ())
    said = (verdict or "even").replace("_", " ") + (f" ({', '.join(map(str, ranks))})" if ranks else "")
    error = one.error
    return (
        f"{100 * (one.replay_error or 0):.1f} % off", said, "✓" if one.right else "✗", _ms(one.step_ms), timed,
        _ms(one.without_ms), plain, "" if error is None else f"{100 * error:+.0f} %",
    )  # fmt: skip


def _ms(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _interval(values: tuple[float, float] | None) -> str:
    return "not timed" if values is None else f"{values[0]:.4g}–{values[1]:.4g}"


def summary(found: list[Outcome]) -> str:
    """The counts in one line."""
    recorded = [one for one in found if one.recorded]
    if not recorded:
        return f"0 of {len(found)} recorded"
    right = sum(one.right for one in recorded)
    errors = [abs(one.error) for one in recorded if one.error is not None]
    near = sum(error <= FAR for error in errors)
    return (
        f"{len(recorded)} of {len(found)} recorded; {right} reproduced to {100 * WORST_ERROR:.0f} % with the right one"
        f" named; {near} of {len(errors)} predicted steps within {100 * FAR:.0f} %"
    )


def main() -> None:
    found = list(outcomes())
    print(summary(found), "", "".join(lines(found)), sep="\n", end="")


if __name__ == "__main__":
    main()
