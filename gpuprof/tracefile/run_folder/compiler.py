"""What torch.compile did in a run's process, read from its run folder and validated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from gpuprof.tracefile.run_folder.untrusted import dicts, whole
from gpuprof.units import Characters, Convention

LONGEST_TEXT: Convention[Characters] = 300


@dataclass(frozen=True, slots=True)
class Place:
    """A line of the program."""

    file: str | None
    line: int | None
    function: str | None

    def __str__(self) -> str:
        where = ":".join(str(part) for part in (self.file, self.line) if part is not None)
        return " ".join(filter(None, (self.function, where and f"({where})"))) or "a place that is not known"


@dataclass(frozen=True, slots=True)
class FailedGuard:
    """A guard that failed, so that a function was recompiled."""

    guard: str
    place: Place
    count: int


@dataclass(frozen=True, slots=True)
class CompiledFunction:
    """A function that Dynamo compiled, or tried to; the code after a graph break is a separate function."""

    number: int
    """The number in the range `Torch-Compiled Region: <number>/<version>`."""
    place: Place
    """Its first line."""
    resumed_at: int | None
    """The line with the graph break after which it resumes; None for a function as written."""
    versions: int
    ops: int
    """Ops in its largest graph."""
    compile_us: int
    """Compilation time of all versions, forward and backward, µs."""
    ended_unix_us: int
    """When it was last compiled."""
    reached_limit: bool
    """Whether it reached the recompilation limit: if no version fits, it runs as plain Python."""
    failed: str | None
    """Why it was not compiled at all."""
    failed_guards: tuple[FailedGuard, ...]
    failed_at: Place | None = None
    """The line that could not be compiled, if known."""


@dataclass(frozen=True, slots=True)
class GraphBreak:
    """A place where Dynamo splits a function into two graphs."""

    reason: str
    detail: str | None
    calls: tuple[Place, ...]
    """The calls that lead to it, the innermost last."""
    count: int
    """How often Dynamo met it while compiling; not how often it occurs in a step."""

    @property
    def place(self) -> Place:
        """The innermost line."""
        return self.calls[-1] if self.calls else Place(None, None, None)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A rank's facts about torch.compile."""

    functions: tuple[CompiledFunction, ...] = ()
    breaks: tuple[GraphBreak, ...] = ()
    skips: tuple[tuple[str, int], ...] = ()
    """(reason why CUDA graphs were not used, how often)."""
    skipped: int = 0
    """Graphs that should have become CUDA graphs but did not, by torch's counter."""
    recompile_limit: int | None = None
    graphs: int = 0

    @property
    def compile_s(self) -> float:
        """Time that compiling took."""
        return sum(one.compile_us for one in self.functions) / 1e6


def compiler_of(value: Any) -> Compiler | None:
    """The compiler section of rank<N>.json; None where there is none."""
    if not isinstance(value, dict):
        return None
    counters = value.get("counters") if isinstance(value.get("counters"), dict) else {}
    functions = tuple(one for each in dicts(value.get("functions")) if (one := _function(each)))
    breaks = tuple(one for each in dicts(value.get("breaks")) if (one := _break(each)))
    return Compiler(
        functions=functions,
        breaks=(*breaks, *_giving_up(functions, {one.reason for one in breaks})),
        skips=tuple(
            (reason, whole(each.get("count")) or 1)
            for each in dicts(value.get("cudagraph_skips"))
            if (reason := _text(each.get("reason")))
        ),
        skipped=_counter(counters, "inductor", "cudagraph_skips"),
        recompile_limit=whole(value.get("recompile_limit")),
        graphs=_counter(counters, "stats", "unique_graphs"),
    )


def _giving_up(functions: tuple[CompiledFunction, ...], known: set[str]) -> Iterator[GraphBreak]:
    """Graph breaks in loops, recognised by the reason: Dynamo gives up the whole function and records no break."""
    for one in functions:
        if one.failed and one.resumed_at is None and one.failed not in known:
            known.add(one.failed)
            yield GraphBreak(one.failed, None, (one.failed_at or one.place,), 1)


def _function(found: dict[str, Any]) -> CompiledFunction | None:
    number = whole(found.get("id"))
    if number is None:
        return None
    return CompiledFunction(
        number=number,
        place=_place(found),
        resumed_at=whole(found.get("resumed_at")),
        versions=whole(found.get("versions")) or 0,
        ops=whole(found.get("ops")) or 0,
        compile_us=whole(found.get("compile_us")) or 0,
        ended_unix_us=whole(found.get("ended_unix_us")) or 0,
        reached_limit=found.get("limit") is True,
        failed=_text(found.get("failed")),
        failed_guards=tuple(
            FailedGuard(guard, _place(each), whole(each.get("count")) or 1)
            for each in dicts(found.get("recompiles"))
            if (guard := _text(each.get("guard")))
        ),
        failed_at=_failed_at(found),
    )


def _failed_at(found: dict[str, Any]) -> Place | None:
    place = found.get("failed_at")
    return _place(place) if isinstance(place, dict) else None


def _break(found: dict[str, Any]) -> GraphBreak | None:
    reason = _text(found.get("reason"))
    if reason is None:
        return None
    calls = tuple(_place(each) for each in dicts(found.get("calls")))
    return GraphBreak(reason, _text(found.get("detail")), calls, whole(found.get("count")) or 1)


def _place(found: dict[str, Any]) -> Place:
    return Place(_text(found.get("file")), whole(found.get("line")), _text(found.get("function")))


def _counter(counters: Any, group: str, name: str) -> int:
    values = counters.get(group)
    return (whole(values.get(name)) or 0) if isinstance(values, dict) else 0


def _text(value: Any) -> str | None:
    return " ".join(value.split())[:LONGEST_TEXT] or None if isinstance(value, str) else None
