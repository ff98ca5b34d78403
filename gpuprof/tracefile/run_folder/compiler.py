"""What torch.compile did in a run's process, read from its run folder and validated."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from gpuprof.tracefile.run_folder.untrusted import Key, Line, Positive, Whole, read_all


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the program."""

    file: Line | None
    line: Whole | None
    function: Line | None

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return " ".join(filter(None, (self.function, where and f"({where})"))) or "a place that is not known"


@dataclass(frozen=True, slots=True)
class FailedGuard:
    """A guard that failed, so that a function was recompiled."""

    guard: Line
    place: Annotated[Place, Key()]
    count: Positive = 1


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """A function that Dynamo compiled, or tried to; the code after a graph break is a separate function."""

    number: Annotated[Whole, Key("id")]
    """The number in the range `Torch-Compiled Region: <number>/<version>`."""
    place: Annotated[Place, Key()]
    """Its first line."""
    resumed_at: Whole | None
    """The line with the graph break after which it resumes; None for a function as written."""
    versions: Whole = 0
    ops: Whole = 0
    """Ops in its largest graph."""
    ended_unix_us: Whole = 0
    """When it was last compiled."""
    reached_limit: Annotated[bool, Key("limit")] = False
    """Whether it reached the recompilation limit: if no version fits, it runs as plain Python."""
    failed: Line | None = None
    """Why it was not compiled at all."""
    failed_guards: Annotated[tuple[FailedGuard, ...], Key("recompiles")] = ()
    failed_at: Place | None = None
    """The line that could not be compiled, if known."""
    ops_of_versions: tuple[Whole, ...] = ()
    """Ops in the graph of each version; 0, or none: unknown."""
    failed_detail: Line | None = None
    """Dynamo's explanation of why."""
    failed_hint: Line | None = None
    """What Dynamo advises."""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where Dynamo splits a function into two graphs."""

    reason: Line
    detail: Line | None
    calls: tuple[Place, ...] = ()
    """The calls that lead to it, the innermost last."""
    count: Positive = 1
    """How often Dynamo met it while compiling; not how often it occurs in a step."""
    hint: Line | None = None
    """What Dynamo advises."""

    @property
    def place(self) -> Place:
        """The innermost line."""
        return self.calls[-1] if self.calls else Place(None, None, None)


@dataclass(frozen=True, slots=True)
class _Skip:
    reason: Line
    count: Positive = 1


def _skips(values: Any) -> Any:
    return [[one.reason, one.count] for one in read_all(_Skip, values)] if isinstance(values, list) else values


@dataclass(frozen=True, slots=True)
class Compiler:
    """A rank's facts about torch.compile."""

    functions: tuple[CompiledFunction, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    skips: Annotated[tuple[tuple[str, int], ...], _skips, Key("cudagraph_skips")] = ()
    """(reason why CUDA graphs were not used, how often)."""
    skipped: Annotated[Whole, Key("counters", "inductor", "cudagraph_skips")] = 0
    """Graphs that should have become CUDA graphs but did not, by torch's counter."""
    recompile_limit: Whole | None = None
    graphs: Annotated[Whole, Key("counters", "stats", "unique_graphs")] = 0

    def __post_init__(self) -> None:
        """Adds graph breaks in loops: Dynamo gives up the whole function and records no break, but this reason."""
        breaks, known = list(self.breaks), {one.reason for one in self.breaks}
        for one in self.functions:
            if one.failed and one.resumed_at is None and one.failed not in known:
                known.add(one.failed)
                place = (one.failed_at or one.place,)
                breaks.append(GraphBreak(one.failed, one.failed_detail, place, hint=one.failed_hint))
        object.__setattr__(self, "breaks", tuple(breaks))
