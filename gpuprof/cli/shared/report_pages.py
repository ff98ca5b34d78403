"""The report of several ranks: the main page, and pages of single ranks that it links to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpuprof.errors import GpuprofError

if TYPE_CHECKING:
    from gpuprof.diagnosis.result.diagnosis import Diagnosis
    from gpuprof.ranks.summary import RankSummary


def pages_for(diagnosis: Diagnosis, ranks: Sequence[RankSummary] | None) -> list[RankSummary]:
    """The ranks that get their own page: the requested ones; by default one to compare the shown rank with. The rank
    that the report shows needs none. Raises GpuprofError for too many."""
    from gpuprof.report.page.rank_pages import MOST_RANKS, usual_rank

    if ranks is None:
        usual = usual_rank(diagnosis)
        return [usual] if usual else []
    chosen = [one for one in ranks if one.rank != diagnosis.environment.rank]
    if len(chosen) > MOST_RANKS:
        raise GpuprofError(
            f"--ranks names {len(chosen)} ranks: at most {MOST_RANKS} get a report of their own; name fewer"
        )
    return chosen


def write_pages(
    diagnosis: Diagnosis, target: Path, ranks: Sequence[RankSummary], diagnose: Callable[[str], Diagnosis]
) -> list[Path]:
    """Writes the report and those of `ranks` next to it, linked to each other. Returns the files, the report first.

    A rank whose recording can no longer be read gets no page and no link.
    """
    from gpuprof.report.page.file import write_report
    from gpuprof.report.page.rank_pages import link_back, links_to, page_of

    written = []
    for one in ranks:
        try:
            own = diagnose(one.path)
        except (GpuprofError, OSError):
            continue
        write_report(own, page_of(target, one.rank), link_back(target))
        written.append(one.rank)
    write_report(diagnosis, target, links_to(target, written))
    return [target, *(page_of(target, rank) for rank in written)]
