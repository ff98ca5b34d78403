"""Diagnoses a recording that a user named; of several ranks the one that the others wait for, replayed with all."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuprof.diagnosis.asked import NOTHING_ASKED, Asked
from gpuprof.diagnosis.diagnose import diagnose
from gpuprof.errors import UnreadableTrace
from gpuprof.tracefile.read import Progress, read_trace
from gpuprof.tracefile.recording import Recording, resolve
from gpuprof.tracefile.traces_in_folder import is_digest

if TYPE_CHECKING:
    from gpuprof.diagnosis.detect.ranks.gang import Gang
    from gpuprof.diagnosis.result.diagnosis import Diagnosis


def diagnose_recording(
    recording: Recording, asked: Asked = NOTHING_ASKED, *, advise: bool = True, progress: Progress | None = None
) -> Diagnosis:
    """Reads a recording and diagnoses it; `advise`: look for fixes.

    Raises GpuprofError, one line, for what cannot be read and for options that do not fit.
    """
    gang = _ranks_of(recording, asked, progress)
    if gang is not None:
        # A rank that waits for the slow one cannot show what fixing the slow one would gain.
        advise = advise and not gang.slow_is_elsewhere
        gang = replace(gang, shown=_recorded_here(gang))
    shown = recording if gang is None else resolve(gang.ranks[gang.shown].path)
    found = shown.read(progress)
    diagnosis = diagnose(
        found.trace, run=found.run, named=found.named, failure=found.failure, asked=asked, advise=advise,
        ranks=1 if gang is None else len(gang.ranks), of_all_ns=gang and gang.known_step_ns,
    )  # fmt: skip
    if diagnosis.folder is not None and diagnosis.folder.phased:
        from gpuprof.diagnosis.iterations.section import with_iteration

        diagnosis = with_iteration(diagnosis)
    if gang is None:
        return diagnosis
    from gpuprof.diagnosis.ranks.combine_ranks import with_ranks

    return with_ranks(diagnosis, gang)


def _recorded_here(gang: Gang) -> int:
    """Index of the rank to diagnose: the one that the others wait for, or if its recording is on another node, the
    first that has its recording here. Raises UnreadableTrace if none has."""
    if not is_digest(gang.ranks[gang.shown].path):
        return gang.shown
    for i, rank in enumerate(gang.ranks):
        if not is_digest(rank.path):
            return i
    raise UnreadableTrace("none of the ranks has its recording here")


def _ranks_of(recording: Recording, asked: Asked, progress: Progress | None) -> Gang | None:
    """What several ranks show together; None for a single rank."""
    if recording.kind != "ranks":
        return None
    from gpuprof.diagnosis.ranks.ranks import survey

    try:
        return survey(recording.traces, lambda path: read_trace(path, progress), asked.step, asked.skip)
    except UnreadableTrace:
        # The ranks of this run or export cannot be compared (they ran on CPUs, say): diagnose the first alone.
        if recording.stands_alone:
            return None
        raise
