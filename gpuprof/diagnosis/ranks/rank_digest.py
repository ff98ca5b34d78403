"""Makes the digest of one rank's recording, or says why there is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from gpuprof.costs.roofline import roofline
from gpuprof.diagnosis.recorded.limits import bound_parts
from gpuprof.diagnosis.verdict.verdict import bound_and_cause
from gpuprof.errors import UnreadableTrace
from gpuprof.ranks.digest import digest_of
from gpuprof.ranks.digest_data import Digest, Own
from gpuprof.ranks.rank_work import rank_work_of
from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.sensitivity import sensitivities
from gpuprof.replay.split_collectives import model_collectives
from gpuprof.replay.unprofiled.profiler_fit import remove_profiler
from gpuprof.timeline.timeline import build_timeline
from gpuprof.tracefile.trace import Trace
from gpuprof.tracefile.traces_in_folder import rank_in_name


def digest_of_trace(
    path: Path, read: Callable[[Path], Trace], step: str | None = None, skip: int = 0, source: str | None = None
) -> Digest | tuple[str, str]:
    """The digest, or (id, sentence) if the recording cannot be used. `source`: the original place of a copied file."""
    try:
        trace = read(path)
    except UnreadableTrace as error:
        return "rank_unreadable", str(error)
    timeline = build_timeline(trace, step, skip)
    if timeline is None or not len(trace.gpu):
        return "rank_without_gpu", f"{path.name}: holds no GPU work and was left out"
    graph = carried_over(built) if len(built := build(timeline)) else built
    if not len(graph) or not graph.on_gpu.any():
        return "rank_without_gpu", f"{path.name}: holds no GPU work in its steps and was left out"
    removal = remove_profiler(model_collectives(graph))
    bound, cause = bound_and_cause(
        removal.graph, sensitivities(removal.graph, bound_parts(timeline, roofline(timeline)))
    )
    whole = max(removal.step_ns, 1.0)
    notes = []
    if trace.reading.truncated:
        notes.append(("rank_truncated", f"{path.name} is cut off: what it lacks is not compared"))
    own = Own(bound, cause, removal.low_ns / whole, removal.high_ns / whole)
    rank, name = rank_in_name(path.name), source or str(path)
    digest = digest_of(graph, name, rank, own, rank_work_of(removal.graph), tuple(notes))
    if not np.any(digest.rows.group >= 0):
        return "rank_without_collectives", f"{path.name}: holds no collective and was left out"
    return digest
