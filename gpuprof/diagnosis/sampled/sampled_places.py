"""Which samples of unprofiled steps fall into given nodes of the replayed steps."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.sampled.host_calls import StackColumns
from gpuprof.diagnosis.sampled.host_places import Places, places
from gpuprof.tracefile.run_folder.samples import read_samples
from gpuprof.tracefile.trace import F64, I64, Mask
from gpuprof.units import Assumed, Ratio

FEWEST_SAMPLES: Assumed[Ratio] = 3.0
"""Fewest samples of a place that are used, each counted by the share of its bin that the place covers."""


def placed(case: Analysis) -> tuple[StackColumns, Places] | None:
    """The samples of the run and their places in the replayed steps; computed once."""
    if "sampled" not in case.memo:
        run = case.folder
        samples = None if run is None else read_samples(Path(run.path), run.rank)
        where = None if samples is None else places(case, samples)
        case.memo["sampled"] = None if samples is None or where is None else (StackColumns(samples), where)
    return case.memo["sampled"]


def weights(case: Analysis, where: Places, nodes: Mask) -> F64:
    """Per sample the share of its bin that is covered by `nodes` (CPU nodes), 0 to 1."""
    graph, schedule = case.graph, case.schedule
    rows = np.flatnonzero(nodes & ((graph.duration_ns > 0) | graph.waits))
    end, waits = schedule.end_ns[rows], graph.waits[rows] & (graph.duration_ns[rows] == 0)
    begin = np.where(waits, np.minimum(_before(case, rows), end), end - graph.duration_ns[rows])
    moments = np.stack([begin, end], axis=1).ravel()
    order = np.argsort(moments, kind="stable")
    step = np.tile([1.0, -1.0], len(end))[order]
    # Time inside the nodes up to each moment; time of several threads at once counts once.
    inside = np.concatenate([[0.0], np.cumsum(np.diff(moments[order]) * (np.cumsum(step)[:-1] > 0))])
    covered = np.diff(np.interp(where.edges, moments[order], inside)) if len(end) else np.zeros(len(where.bin_at))
    whole = np.bincount(where.bin_at, np.diff(where.edges), len(where.count))
    share = np.bincount(where.bin_at, covered, len(where.count)) / np.maximum(whole, 1.0)
    return np.append(share.clip(0, 1), 0.0)[where.bin_of]


def _before(case: Analysis, rows: I64) -> F64:
    """When the node before each of these ends on its thread, in the replay: from then on a waiting call waits."""
    graph, ends = case.graph, case.schedule.end_ns
    found = ends[rows].copy()
    for lane in np.unique(graph.lane[rows]).tolist():
        nodes, mine = np.flatnonzero(graph.lane == lane), graph.lane[rows] == lane
        before = np.searchsorted(nodes, rows[mine]) - 1
        found[mine] = np.where(before >= 0, ends[nodes[before.clip(0)]], found[mine])
    return found
