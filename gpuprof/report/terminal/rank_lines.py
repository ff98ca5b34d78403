"""The ranks of a training as a table: how long each needs by itself, how long it waits for the others, and what the job
would gain if ranks, stages or batches were equal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from gpuprof.report.lines import Column, table
from gpuprof.report.numbers import duration, share
from gpuprof.units import Convention, Ranks, Ratio, Rows

if TYPE_CHECKING:
    from gpuprof.ranks.summary import Job, RankSummary

MOST_RANKS: Convention[Ranks] = 8
SHOWN_OF_MANY: Convention[Ranks] = 4
MANY_RANKS: Convention[Ranks] = 16
"""Ranks in the table; fewer for jobs of MANY_RANKS ranks, where the lines above say what matters."""
MOST_CHANGES: Convention[Rows] = 4
ON_PATH: Convention[Ranks] = 3
"""Ranks that are named of the critical path."""
LEAST_GAIN: Convention[Ratio] = 1.02
"""What-ifs that gain less are not listed."""
_WORDS = {
    "tensor": "tensor groups",
    "data": "data groups",
    "pipeline": "pipeline links",
    "expert": "expert groups",
    "context": "context groups",
}


def lines(ranks: Sequence[RankSummary] | None, width: int, job: Job | None = None) -> list[Text]:
    """One row per rank, slowest first, up to MOST_RANKS. `job`: their joint replay."""
    if not ranks:
        return []
    slowest = sorted(ranks, key=lambda rank: (-(rank.pace_ns or 0), rank.rank))
    shown = MOST_RANKS if len(ranks) <= MANY_RANKS else SHOWN_OF_MANY
    rows = [
        (
            f"rank {rank.rank}",
            "" if rank.pace_ns is None else f"{duration(rank.pace_ns)} by itself",
            "" if rank.waiting_ns is None else f"waits {duration(rank.waiting_ns)}",
            "" if not rank.late_share else f"last to arrive {100 * rank.late_share:.0f} %",
        )
        for rank in slowest[:shown]
    ]
    columns = (Column("bold"), Column(right=True), Column(right=True), Column("dim", elastic=True))
    found = _of_job(job, width) + table(rows, columns, width)
    if len(ranks) > shown:
        found.append(Text(f"and {len(ranks) - shown} more ranks", "dim"))
    return found


def _of_job(job: Job | None, width: int) -> list[Text]:
    """The job's step, the step with work spread evenly, what would gain, and waiting. At most ten lines."""
    if job is None or job.slowdown is None or job.even_ns is None or job.ranks < 2:
        return []
    parts = [f"{job.ranks} ranks"]
    parts += [f"{job.hosts} hosts"] * (job.hosts > 1) + [f"{job.stages} stages"] * (job.stages > 1)
    parts += [
        f"{count} {_WORDS[role]}" for role, count in job.groups if role in _WORDS and role != "pipeline" and count > 1
    ]
    text = f"{duration(job.step_ns)} a step, {duration(job.even_ns)} if work were spread evenly ({job.slowdown:.2f}×)"
    found = [Text(", ".join(parts) + ": " + text)]
    gains = [one for one in job.changes if one.speedup >= LEAST_GAIN and one.kind != "transfers"][:MOST_CHANGES]
    rows = [(f"without {one.name}'s delay" if one.kind in ("rank", "host", "group") else
             f"{one.name} of equal work" if one.kind == "stage" else one.name,
             duration(one.step_ns), f"{one.speedup:.2f}×") for one in gains]  # fmt: skip
    found += table(rows, (Column("", elastic=True), Column(right=True), Column("dim")), width)
    if job.exposed is not None and job.exposed.cause is not None:
        waits, moves = duration(job.exposed.waiting_ns), duration(job.exposed.transfer_ns)
        found.append(Text(f"a rank waits {waits} a step for others; transfers add {moves} to the step", "dim"))
    if (path := _on_path(job)) is not None:
        found.append(Text(path, "dim"))
    return found


def _on_path(job: Job) -> str | None:
    """Which ranks' work the critical path of the usual step consists of; None if not known."""
    total: dict[str, int] = {}
    for part in job.critical_path:
        name = "moving data" if part.work == "communication" else f"rank {part.rank}"
        total[name] = total.get(name, 0) + part.ns
    whole = sum(total.values())
    if not whole:
        return None
    most = sorted((name for name in total if name != "moving data"), key=lambda name: -total[name])[:ON_PATH]
    parts = [f"{name} {share(total[name], whole)}" for name in [*most, "moving data"] if name in total]
    return f"critical path of a step: {', '.join(parts)}"
