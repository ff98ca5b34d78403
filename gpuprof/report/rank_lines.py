"""The ranks of a training as a table: how long each needs by itself, and how long it waits for the others."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from gpuprof.diagnosis.ranks import RankSummary
from gpuprof.report.lines import Column, table
from gpuprof.report.numbers import duration

SHOWN = 8


def lines(ranks: Sequence[RankSummary] | None, width: int) -> list[Text]:
    """One row per rank, the slowest first; of many only these."""
    if not ranks:
        return []
    slowest = sorted(ranks, key=lambda rank: (-(rank.pace_ns or 0), rank.rank))
    rows = [
        (
            f"rank {rank.rank}",
            "" if rank.pace_ns is None else f"{duration(rank.pace_ns)} by itself",
            "" if rank.waiting_ns is None else f"waits {duration(rank.waiting_ns)}",
            "" if not rank.late_share else f"last to come {100 * rank.late_share:.0f} %",
        )
        for rank in slowest[:SHOWN]
    ]
    columns = (Column("bold"), Column(right=True), Column(right=True), Column("dim", elastic=True))
    found = table(rows, columns, width)
    if len(ranks) > SHOWN:
        found.append(Text(f"and {len(ranks) - SHOWN} more ranks", "dim"))
    return found
