"""A trial: what was tried on a command, one frozen dataclass per concept; written as JSON `gpuprof.trial/1`.

Times are whole nanoseconds. None means "cannot be known" or "was not measured", never zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpuprof.bounds import Above0, Items, OneOf, Positive, Share, Signed, Within
from gpuprof.units import Assumed, Cpus
from gpuprof.value_range import Range

SCHEMA = "gpuprof.trial/1"

CPUS_OF_OTHERS: Assumed[Cpus] = 0.25
LEAST_IDLE_CPUS: Assumed[Cpus] = 0.5
"""A measurement counts as disturbed if other programs use more than CPUS_OF_OTHERS CPUs and fewer than LEAST_IDLE_CPUS
CPUs are idle."""

Status = Literal["confirmed", "slower", "no_difference", "unconfirmed", "not_applied", "failed", "not_tried"]
Same = Literal["bitwise", "within_scatter", "other_random_numbers", "different"]
Advised = Literal["fixes", "worth_trying"]
Predicted = Literal["right", "gained_more", "gained_less", "failed"]
Stopped = Literal["decided", "budget", "until", "rounds"]


@dataclass(frozen=True, slots=True)
class MeasuredGain:
    """A measured speedup and its 80 % interval; without ends for a single measurement."""

    low: Signed[float] | None
    expected: Signed[float]
    high: Signed[float] | None


@dataclass(frozen=True, slots=True)
class TriedFix:
    """A patch and its value."""

    name: str
    """Name, as --fix takes it."""
    value: str = ""
    """Its value; empty where it takes none."""

    def __str__(self) -> str:
        return f"{self.name}={self.value}" if self.value else self.name


@dataclass(frozen=True, slots=True)
class Sameness:
    """Whether the training computes the same with a fix as without."""

    verdict: Same | None
    """None if no batches were seen: losses alone prove nothing."""
    text: str
    """The same in words."""
    loss_difference: float | None
    """Largest difference of a loss or gradient norm of the first steps, as a share."""
    scatter: float | None
    """The same between two processes without any fix."""
    repeats: bool = False
    """Whether the fix makes workers repeat samples, which defeats its purpose."""


@dataclass(frozen=True, slots=True)
class Row:
    """One fix, or several together."""

    fixes: tuple[TriedFix, ...]
    finding: str | None
    """The finding that advises it; None if the user requested it."""
    status: Status
    """Confirmed, slower: beyond the scatter of the unchanged processes, and the 80 % interval of the gain above or
    below 1; no_difference: after three rounds that interval ends below 1.02; unconfirmed: not decided."""
    reason: str
    """The proof that it took effect, or why it was not applied, failed or was not tried."""
    predicted_step_ns: Range | None
    """The step that the diagnosis predicts, ns."""
    predicted_speedup: Range | None
    """The gain that the diagnosis predicts."""
    step_ns: int | None
    """The mean step with it: the mean over its processes."""
    speedup: MeasuredGain | None
    """The measured gain, paired with the processes without it before and after."""
    peak_bytes: int | None
    """The most memory in use."""
    start_ns: int | None
    """From the start of a process to its first timed step, compiling included, ns."""
    sameness: Sameness | None
    rounds: int
    """Processes that were timed with it."""
    lines: str
    """What to write into the script."""
    flags: str | None = None
    """The program's own flags that made it; None: applied from outside."""
    advised: Advised | None = None
    """The diagnosis's list that it is from; None: the user requested it, or it is a combination."""
    probability: Share | None = None
    """The diagnosis's probability of a gain of 2 % or more; None if it gives none."""
    prediction: Predicted | None = None
    """right: the intervals of the predicted and the measured gain overlap; gained_more, gained_less: they do not;
    failed: the fix did; None: nothing was predicted, or nothing is decided."""

    @property
    def name(self) -> str:
        return " + ".join(map(str, self.fixes))


@dataclass(frozen=True, slots=True)
class TimedProcess:
    """One process that was timed, in the order in which they ran."""

    name: str
    """The fixes in it; empty: unchanged."""
    step_ns: int | None
    """Its mean step, ns."""
    half_width_ns: int | None
    """Half the 80 % interval of its mean step, from the scatter of its own steps."""
    steps: int
    """Steps that were timed."""
    peak_bytes: int | None
    """The most memory in use."""
    start_ns: int | None
    """From its start to its first timed step, ns."""
    wall_ns: int
    """From its start to its end, ns."""
    error: str | None
    """Why it was not timed."""
    other_cpus: float | None = None
    """CPUs used by other programs while it was timed; None with several ranks."""
    idle_cpus: float | None = None
    """CPUs that were idle meanwhile."""

    @property
    def is_disturbed(self) -> bool:
        """Whether other programs kept the CPUs full while it was timed."""
        return self.other_cpus is not None and self.idle_cpus is not None and (
            self.other_cpus > CPUS_OF_OTHERS and self.idle_cpus < LEAST_IDLE_CPUS
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class TrialBaseline:
    """The unchanged command, over all its processes."""

    step_ns: int
    """Mean step, ns."""
    peak_bytes: int | None
    """The most memory in use."""
    peak_of: Annotated[str, OneOf(("gpu", "host"))] | None
    """Which memory that is."""
    start_ns: int | None
    """From the start of a process to its first timed step, ns."""
    scatter: float | None
    """Largest difference of two of its mean steps, as a share; None for one process."""


@dataclass(frozen=True, slots=True)
class Next:
    """What would be tried next, had there been more time."""

    fixes: Annotated[tuple[TriedFix, ...], Items(1)]
    why: Annotated[str, OneOf(("not tried", "not decided", "together"))]
    """What is still open about them."""
    speedup: Above0 | None
    """The expected gain: as measured so far, else as predicted."""
    probability: Share | None
    """Predicted probability of a gain of 2 % or more."""
    seconds: float
    """Approximate time it would take, s."""

    @property
    def name(self) -> str:
        return " + ".join(map(str, self.fixes))


@dataclass(frozen=True, slots=True)
class TrialStop:
    """Why the trial ended."""

    reason: Stopped
    """decided: every fix is; budget: no time for another round; until: the gain asked for is reached; rounds: each fix
    was measured as often as asked for."""
    text: str
    """The same in words."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Everything that `gpuprof try` found."""

    command: tuple[str, ...]
    """What was run, secrets masked."""
    run: str | None
    """Folder of the run whose diagnosis advised the fixes."""
    gpu: str | None
    """Name of the first rank's GPU."""
    torch: str | None
    """Version of torch."""
    world_size: Positive[int]
    """Number of ranks."""
    rounds: Positive[int]
    """Number of rounds of the fix that was measured most often."""
    settle_steps: int
    """Steps left out at the beginning."""
    timed_steps: int
    """Steps of the timed stretch."""
    baseline: TrialBaseline
    """The command as it is, over all its processes."""
    rows: tuple[Row, ...]
    best: tuple[TriedFix, ...]
    """The confirmed fixes that gain most, together; empty where none is confirmed."""
    notes: tuple[str, ...]
    processes: tuple[TimedProcess, ...]
    stop: TrialStop = TrialStop("decided", "")
    """Why the trial ended."""
    next: tuple[Next, ...] = ()
    """What would be tried next, most expected gain per minute first."""
    until: Annotated[float, Within(above=1)] | None = None
    """The gain at which it should stop."""
    budget_ns: int | None = None
    """Its time limit, ns; None if a number of rounds was given."""
    spent_ns: int = 0
    """How long it took, ns, not counting a recording made first."""
