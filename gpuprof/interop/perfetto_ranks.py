"""Writes several ranks of one training into one Chrome trace, all on the clock of the first rank's recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.interop.perfetto import TakenNumbers, draw, events_of, first_event_ns, write_events
from gpuprof.ranks.summary import RankSummary
from gpuprof.timeline.timeline import Timeline
from gpuprof.units import Convention, Entries

_MOST_ARROWS: Convention[Entries] = 1 << 32
"""More arrows than any recording has."""


@dataclass(frozen=True, slots=True)
class Clock:
    """The start of a rank's recording on its own clock, and the conversion to the first rank's clock."""

    first_event_ns: int
    window_start_ns: int
    base_time_ns: int | None


def clock_of(timeline: Timeline) -> Clock:
    """The Clock of one rank's recording."""
    trace = timeline.trace
    tables = (trace.ops, trace.calls, trace.gpu, trace.frames, trace.syncs, trace.other)
    low = timeline.window[0]
    first = min(first_event_ns(timeline, [table.start_ns for table in tables]), low)
    return Clock(first, low, trace.meta.base_time_ns)


def write_perfetto_ranks(
    ranks: Sequence[RankSummary],
    clocks: Sequence[Clock],
    diagnose: Callable[[str], Diagnosis],
    file: BinaryIO,
) -> int:
    """Writes the gzipped file; returns the number of events. `clocks`: one per rank; `diagnose`: diagnoses one rank's
    recording. Only one rank at a time is in memory.
    If no collective relates a rank's clock to the first rank's, their windows are drawn from the same start.
    """
    shifts = shifts_of(ranks, clocks)
    origin = min(clock.first_event_ns + shift for clock, shift in zip(clocks, shifts, strict=True))
    return write_events(_head(ranks, clocks, shifts, origin), _events(ranks, shifts, origin, diagnose), file)


def shifts_of(ranks: Sequence[RankSummary], clocks: Sequence[Clock]) -> list[int]:
    """The offset to add to each rank's times."""
    first = clocks[0].window_start_ns + (ranks[0].to_first_clock_ns or 0)
    return [
        first - clock.window_start_ns if rank.to_first_clock_ns is None else rank.to_first_clock_ns
        for rank, clock in zip(ranks, clocks, strict=True)
    ]


def _events(
    ranks: Sequence[RankSummary], shifts: Sequence[int], origin: int, diagnose: Callable[[str], Diagnosis]
) -> Iterator[list[str]]:
    taken = TakenNumbers()
    for rank, shift in zip(ranks, shifts, strict=True):
        diagnosis = diagnose(rank.path)
        drawing = draw(diagnosis, f"rank {rank.rank}: ", taken, origin - shift)
        yield from events_of(diagnosis, drawing)
        taken = TakenNumbers(
            taken.pids + len(drawing.groups), taken.tids + len(drawing.tracks), taken.arrows + _MOST_ARROWS
        )


def _head(ranks: Sequence[RankSummary], clocks: Sequence[Clock], shifts: Sequence[int], origin: int) -> dict[str, Any]:
    from gpuprof import __version__

    head: dict[str, Any] = {
        "exporter": f"gpuprof {__version__}",
        "schemaVersion": 1,
        "displayTimeUnit": "ns",
        "otherData": {
            "recordings": {str(rank.rank): Path(rank.path).name for rank in ranks},
            "origin_ns": {str(rank.rank): str(origin - shift) for rank, shift in zip(ranks, shifts, strict=True)},
        },
    }
    if clocks[0].base_time_ns is not None:
        head["baseTimeNanoseconds"] = clocks[0].base_time_ns + origin - shifts[0]
    return head
