"""Combines an Nsight Systems export and a torch.profiler recording of the same program."""

from __future__ import annotations

from pathlib import Path

from gpuprof.diagnosis.result.diagnosis import Issue
from gpuprof.timeline.pairing import pair
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.trace import Trace


def both_kinds(
    timed: Timeline | None, named: Trace, step: str | None, skip: int
) -> tuple[Timeline | None, list[Issue]]:
    """(the timeline of an export with the ops of the other recording, issues about that); if the two are not of the
    same program, the timeline of the other recording.

    `step`, `skip`: select the export's steps; the other recording's are detected, and all of them may supply ops.
    """
    other = build_timeline(named)
    if timed is None or other is None:
        return timed or other, []
    found = pair(timed, other)
    files = Path(timed.trace.reading.path).name, Path(named.reading.path).name
    if found is None:
        text = (
            f"{files[0]} and {files[1]} are not recordings of the same program: their kernels differ. Only the second"
            " is used; pass just the one that you mean."
        )
        return other, [Issue("not_a_pair", "warning", text)]
    text = (
        f"Times are those of {files[0]} (Nsight Systems), ops and shapes those of {files[1]} (torch.profiler):"
        f" {found.in_order + found.by_name:,} of {found.launches:,} kernels and copies were matched,"
        f" {found.in_order:,} by the order of kernels in their {timed.unit}, {found.by_name:,} as the n-th of their"
        " name."
    )
    return build_timeline(found.trace, step, skip), [Issue("paired", "info", text)]
