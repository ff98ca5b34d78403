"""The parts of a Diagnosis about what can be changed: findings with their evidence, remedies that are ruled out, and
fixes applied together. All times are whole nanoseconds.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Literal

from gpuprof.bounds import Above0, OneOf, Share, Signed, Words
from gpuprof.diagnosis.result.fix import FixLine, PatchValue, Setting
from gpuprof.value_range import Range

BEFORE_COMMAND = " -- "
"""Between gpuprof's part of `Finding.settle` and the training's own command."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """Something in the recording that a person can look up."""

    text: str
    start_ns: Signed[int] | None = None
    ns: int | None = None
    where: str | None = None
    """The track: `GPU 0` or a CPU thread, and the op, module or frame."""
    part: str | None = None
    """The module and phase, or else the op, whose longest stretch this is: `LlamaMLP, backward`."""
    part_ns: int | None = None
    """That part's share of the stated time, ns per step without the profiler's cost."""
    begins_with: str | None = None
    """The kernel, op or call that begins the stretch, if it is not most of the stretch; else None."""
    on_gpu: bool = False
    """Whether the track is a GPU's."""
    lines: tuple[str, ...] = ()
    """For CPU time: the lines of the user's code that most of it comes from, `train.py:42 step`, most first; empty if
    neither Python frames nor samples were recorded, or none is in the user's code."""


@dataclass(frozen=True, slots=True)
class Remaining:
    """Remaining time of the run, unchanged and with a fix, ns."""

    now: int
    low: int
    expected: int
    high: int


@dataclass(frozen=True, slots=True)
class Measured:
    """What `gpuprof try` measured for a fix on the user's own command."""

    status: Annotated[str, OneOf(of="gpuprof.diagnosis.fixes.trial_results:STATUSES")]
    """confirmed | slower | no_difference | unconfirmed | not_applied | failed."""
    step_ns: int | None
    speedup_low: Signed[float] | None
    """Ends of the 80 % interval; None for a single measurement."""
    speedup: Signed[float] | None
    speedup_high: Signed[float] | None
    sameness: Annotated[str, OneOf(of="gpuprof.diagnosis.fixes.trial_results:SAME")] | None
    """Whether the training still computes the same: bitwise | within_scatter | other_random_numbers | different."""
    reason: str
    """The proof that the fix took effect, or why it did not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem with its evidence and the fix, replayed."""

    id: Words
    title: str
    severity: Literal["high", "medium", "low"]
    evidence: tuple[Evidence, ...]
    fix: Words
    """What to do, as text."""
    step_ns: Range
    """The mean step with the fix, without a profiler. Its interval includes the uncertainty of the mean step itself."""
    speedup: Range
    """Of the training: more work in a step counts. The uncertainty of the mean step is included only as far as it does
    not scale the step with the fix, too."""
    work: Above0 = 1.0
    """Work of a step with the fix / work of a step without."""
    remaining_ns: Remaining | None = None
    """Remaining time of the run; one-off costs of the fix are included."""
    changes: str | None = None
    """What it changes about the training itself; None: the same samples and arithmetic per optimizer step."""
    once_ns: Range | None = None
    """What it costs once before it gains (compiling); remaining_ns includes it."""
    measured: Measured | None = None
    """What gpuprof try measured for the fix on the run's own command; None if it was not tried."""
    probability: Share = 1.0
    """Probability that it gains 2 % or more."""
    settle: str | None = None
    """The command that measures whether it gains, followed by -- and the training's recorded command if that is known;
    None: by hand."""
    needs: str | None = None
    """What must be done first or must hold; None: nothing."""
    acts_on: tuple[Annotated[str, OneOf(of="gpuprof.replay.bound:RESOURCES")], ...] = ()
    """Resources that it relieves: host | input | transfer | communication | device; most first."""
    parts: tuple[str, ...] = ()
    """The fixes of a chain, in order; empty for a single fix."""
    settings: tuple[Setting, ...] = ()
    """What the fix sets, in the order of its text."""
    patch: PatchValue | None = None
    """The patch with which gpuprof try applies it; an empty value is the patch's default. None: by hand."""
    fix_lines: tuple[FixLine, ...] = ()
    """The same as fix, line by line: code that can be pasted, and prose that says where it belongs."""
    overlaps: Words | None = None
    """Title of an earlier finding in the same list that takes off mostly the same time, or excludes this one; None: it
    takes off other time than those before it."""
    step_j: Range | None = None
    """Energy of a step with the fix, once it works, J: for the same GPUs as run.energy.step_j, and with the fix's work.
    None if the run measured no power."""

    @property
    def shown_lines(self) -> tuple[FixLine, ...]:
        """The lines to show; a fix from an older version is shown as code."""
        return self.fix_lines or tuple(FixLine(line, True) for line in self.fix.splitlines())

    def __rich_repr__(self) -> Iterator[tuple[str, object] | tuple[str, object, object]]:
        """What rich prints: the fix and its gain, without the evidence. Times in ms."""
        yield "id", self.id
        yield "title", self.title
        yield "severity", self.severity
        step, gain = self.step_ns, self.speedup
        yield "step_ms", tuple(round(ns / 1e6, 2) for ns in (step.low, step.expected, step.high))
        yield "speedup", tuple(round(times, 2) for times in (gain.low, gain.expected, gain.high))
        yield "work", self.work, 1.0
        yield "fix", self.fix
        yield "changes", self.changes, None


@dataclass(frozen=True, slots=True)
class Considered:
    """A usual remedy that is ruled out, and the fact that rules it out."""

    id: Words
    """Id of the finding that would advise it."""
    title: Words
    reason: Words
    step_ns: Range | None = None
    """The predicted mean step with it, with an interval as in a finding; None if not predicted."""
    speedup: Range | None = None
    """The predicted speedup of the training with it; None if not predicted."""
    failed: bool = False
    """Whether it was advised, tried, and failed."""


@dataclass(frozen=True, slots=True)
class Combined:
    """Several fixes applied together."""

    ids: tuple[str, ...]
    titles: tuple[str, ...]
    step_ns: Range
    speedup: Range
    work: Above0 = 1.0
    remaining_ns: Remaining | None = None
