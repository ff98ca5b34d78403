"""Reports of single ranks next to the report of all ranks: which ranks, their files, and the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

import numpy as np

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.units import Convention, Ranks

if TYPE_CHECKING:
    from gpuprof.ranks.summary import RankSummary

MOST_RANKS: Convention[Ranks] = 16
"""Ranks that get a report of their own: each is read and diagnosed again, and takes some MB."""


@dataclass(frozen=True, slots=True)
class ReportLink:
    """A report next to this one."""

    text: str
    href: str


def usual_rank(diagnosis: Diagnosis) -> RankSummary | None:
    """The rank with the median pace among those that the report does not show, to compare a slow rank with. None unless
    several ranks were diagnosed together."""
    own = diagnosis.environment.rank
    others = [one for one in diagnosis.ranks or () if one.rank != own and one.pace_ns is not None]
    if not others:
        return None
    stage = {member.rank: member.stage for member in (diagnosis.job.members if diagnosis.job else ())}
    like = [one for one in others if stage.get(one.rank) == stage.get(own or 0)] or others
    middle = float(np.median([one.pace_ns or 0 for one in like]))
    return min(like, key=lambda one: (abs((one.pace_ns or 0) - middle), one.rank))


def page_of(report: Path, rank: int) -> Path:
    """The file of a rank's own report: `report.rank3.html` next to `report.html`."""
    return report.with_name(f"{report.stem}.rank{rank}{report.suffix}")


def links_to(report: Path, ranks: Sequence[int]) -> tuple[ReportLink, ...]:
    """From the report of all ranks to theirs."""
    return tuple(ReportLink(f"rank {rank}", quote(page_of(report, rank).name)) for rank in ranks)


def link_back(report: Path) -> tuple[ReportLink, ...]:
    """From a rank's report to that of all."""
    return (ReportLink("all ranks", quote(report.name)),)
