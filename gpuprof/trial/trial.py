"""A trial: what was tried on a command, one frozen dataclass per concept; `json` writes it as `gpuprof.trial/1`.

Times are whole nanoseconds. None means "cannot be known" or "was not measured", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

SCHEMA = "gpuprof.trial/1"

OTHERS, IDLE = 0.25, 0.5
"""CPUs: what other programs use more of, and is left less of, when they disturb a measurement (assumed)."""

Status = Literal["confirmed", "slower", "no_difference", "unconfirmed", "not_applied", "failed", "not_tried"]
Same = Literal["bitwise", "within_scatter", "other_random_numbers", "different"]
Advised = Literal["fixes", "worth_trying"]
Predicted = Literal["right", "gained_more", "gained_less", "failed"]
Stopped = Literal["decided", "budget", "until", "rounds"]


@dataclass(frozen=True, slots=True)
class Interval:
    """An expected value and its 80 % interval; without ends where one measurement is all there is."""

    low: float | None
    expected: float
    high: float | None


@dataclass(frozen=True, slots=True)
class Fix:
    """A patch and its value."""

    name: str
    value: str = ""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.value else self.name


@dataclass(frozen=True, slots=True)
class Sameness:
    """Whether the training computes the same with a fix as without."""

    verdict: Same | None
    """None where no batches were seen: losses alone prove nothing."""
    text: str
    loss_difference: float | None
    """The largest difference of a loss, as a share of the loss."""
    scatter: float | None
    """The same between two processes without any fix."""
    repeats: bool = False
    """Whether the fix makes workers give the same samples again: then it does not do what it is for."""


@dataclass(frozen=True, slots=True)
class Row:
    """One fix, or several together."""

    fixes: tuple[Fix, ...]
    finding: str | None
    """The finding that advises it; None where it was asked for."""
    status: Status
    reason: str
    """What shows that it took effect; or why it was not applied, failed or was not tried."""
    predicted_step_ns: Interval | None
    predicted_speedup: Interval | None
    step_ns: int | None
    """The mean step with it: the mean over its processes."""
    speedup: Interval | None
    """Of the training, paired with the processes without it before and after."""
    peak_bytes: int | None
    start_ns: int | None
    """From the start of the process to the first timed step, of the slowest process: compiling included."""
    sameness: Sameness | None
    rounds: int
    lines: str
    """What to write into the script."""
    flags: str | None = None
    """The program's own flags that made it; None where it was applied from outside."""
    advised: Advised | None = None
    """The list of the diagnosis in which it stands; None where it was asked for, and of several together."""
    probability: float | None = None
    """Of a gain of 2 % or more, as the diagnosis says it; None where it says none."""
    prediction: Predicted | None = None
    """Whether the predicted gain was right: its interval and the measured one overlap. None where nothing was
    predicted, or nothing was decided."""

    @property
    def name(self) -> str:
        return " + ".join(map(str, self.fixes))


@dataclass(frozen=True, slots=True)
class Process:
    """One process that was timed, in the order in which they ran."""

    name: str
    """The fixes applied in it; empty: as it is."""
    step_ns: int | None
    half_width_ns: int | None
    """Half the 80 % interval of its mean step, from the scatter of its own steps."""
    steps: int
    peak_bytes: int | None
    start_ns: int | None
    wall_ns: int
    error: str | None
    other_cpus: float | None = None
    """CPUs that other programs used while it was timed; None of several ranks."""
    idle_cpus: float | None = None
    """CPUs that no one used then."""

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs kept the CPUs full while it was timed."""
        return self.other_cpus is not None and self.idle_cpus is not None and (
            self.other_cpus > OTHERS and self.idle_cpus < IDLE
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Baseline:
    """The command as it is, over all its processes."""

    step_ns: int
    peak_bytes: int | None
    peak_of: str | None
    """gpu | host."""
    start_ns: int | None
    scatter: float | None
    """Largest difference of two of its mean steps, as a share; None of one process."""


@dataclass(frozen=True, slots=True)
class Next:
    """What would be tried next, had there been more time."""

    fixes: tuple[Fix, ...]
    why: str
    """`not tried`, `not decided`, `together`."""
    speedup: float | None
    """What is expected of it: measured so far, else predicted; None where nothing is."""
    probability: float | None
    """That it gains 2 % or more, as predicted."""
    seconds: float
    """What that would take, about."""

    @property
    def name(self) -> str:
        return " + ".join(map(str, self.fixes))


@dataclass(frozen=True, slots=True)
class Stop:
    """Why the trial ended."""

    reason: Stopped
    text: str


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that `gpuprof try` found."""

    command: tuple[str, ...]
    run: str | None
    """The folder of the run whose diagnosis advised the fixes."""
    gpu: str | None
    torch: str | None
    world_size: int
    rounds: int
    settle_steps: int
    timed_steps: int
    baseline: Baseline
    rows: tuple[Row, ...]
    best: tuple[Fix, ...]
    """The confirmed fixes that gain most, together; empty where none is confirmed."""
    notes: tuple[str, ...]
    processes: tuple[Process, ...]
    stop: Stop = Stop("decided", "")
    next: tuple[Next, ...] = ()
    """Most expected gain per minute first."""
    until: float | None = None
    """The gain at which it was to stop."""
    budget_ns: int | None = None
    """None where a number of rounds was given."""
    spent_ns: int = 0
