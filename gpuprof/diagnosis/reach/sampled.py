"""Which Python function runs in some nodes of the replayed steps, by the samples of unprofiled ones."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.host_calls import Stacks
from gpuprof.diagnosis.host_places import Places, places
from gpuprof.tracefile.samples import read_samples
from gpuprof.tracefile.trace import F64, Mask

MOST_OF = 0.5
"""Share of the samples in a place that a function has to be in the stack of, to have its name."""
ALWAYS = 0.9
"""Share of all samples from which on a function is the loop around the steps, whose name says little."""
PART = 0.2
"""Share of the samples in a place from which on a function that shares them with others is named."""
FEWEST = 3.0
"""Samples in a place, each counted by the share of its bin that the place covers, from which on they say anything."""


@dataclass(frozen=True, slots=True)
class Sampled:
    """The innermost function that most samples of a place have in their stack."""

    function: str
    file: str
    line: int
    """The line of it that most of these samples were at."""
    share: float
    """Of the samples of the place, those with the function."""
    parts: tuple[tuple[str, float], ...] = ()
    """Of a loop that is in the stack of the whole step, the functions that it calls there, largest share first."""


def sampled_in(case: Analysis, nodes: Mask) -> Sampled | None:
    """The function that runs in some nodes of the training thread; None where none was sampled there, or no function
    has half of the samples."""
    found = _placed(case)
    if found is None:
        return None
    stacks, where = found
    weight = _weights(case, where, nodes)
    if weight.sum() < FEWEST:
        return None
    inside: dict[int, float] = defaultdict(float)
    depth: dict[int, float] = defaultdict(float)
    lines: dict[int, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    for sample in np.flatnonzero(weight).tolist():
        mine, seen = float(weight[sample]), set[int]()
        for level, frame in enumerate(stacks.of_sample[sample]):
            if frame.function in stacks.boundary:  # how modules and autograd are called says nothing of what runs
                continue
            lines[frame.function][frame.line] += mine
            if frame.function not in seen:
                seen.add(frame.function)
                inside[frame.function] += mine
                depth[frame.function] += mine * level
    most = [one for one, ns in inside.items() if ns >= MOST_OF * weight.sum()]
    if not most:
        return None
    best = max(most, key=lambda one: (depth[one] / inside[one], inside[one]))
    function = stacks.functions[best]
    line = max(lines[best], key=lambda one: lines[best][one])
    always = sum(any(frame.function == best for frame in path) for path in stacks.of_sample) >= ALWAYS * len(weight)
    parts = _parts(stacks, weight, best) if always else ()
    return Sampled(function.name, function.file, line, inside[best] / float(weight.sum()), parts)


def _parts(stacks: Stacks, weight: F64, around: int) -> tuple[tuple[str, float], ...]:
    """The functions below one that share most of its samples among them: of each stack the outermost one below it that
    is the same in the whole place."""
    below: dict[int, float] = defaultdict(float)
    for sample in np.flatnonzero(weight).tolist():
        names = [frame.function for frame in stacks.of_sample[sample]]
        if around in names:
            following = names[len(names) - names[::-1].index(around) :]
            if following and following[0] not in stacks.boundary:
                below[following[0]] += float(weight[sample])
    total = float(weight.sum())
    large = sorted(((ns / total, one) for one, ns in below.items() if ns >= PART * total), reverse=True)
    return tuple((stacks.functions[one].name, share) for share, one in large)


def _placed(case: Analysis) -> tuple[Stacks, Places] | None:
    """The samples of the run and where they lie in the replayed steps, found once."""
    if "sampled" not in case.memo:
        run = case.folder
        samples = None if run is None else read_samples(Path(run.path), run.rank)
        where = None if samples is None else places(case, samples)
        case.memo["sampled"] = None if samples is None or where is None else (Stacks(samples), where)
    return case.memo["sampled"]


def _weights(case: Analysis, where: Places, nodes: Mask) -> F64:
    """Per sample the share of its bin that lies in the nodes, 0 to 1."""
    graph, schedule = case.graph, case.schedule
    mine = nodes & (graph.lane == case.timeline.main_thread) & (graph.duration_ns > 0)
    end = schedule.end_ns[mine]
    moments = np.stack([end - graph.duration_ns[mine], end], axis=1).ravel()
    order = np.argsort(moments, kind="stable")
    step = np.tile([1.0, -1.0], len(end))[order]
    # Time inside the nodes up to each moment: nodes of one thread do not overlap.
    inside = np.concatenate([[0.0], np.cumsum(np.diff(moments[order]) * (np.cumsum(step)[:-1] > 0))])
    covered = np.diff(np.interp(where.edges, moments[order], inside)) if len(end) else np.zeros(len(where.bin_at))
    whole = np.bincount(where.bin_at, np.diff(where.edges), len(where.count))
    share = np.bincount(where.bin_at, covered, len(where.count)) / np.maximum(whole, 1.0)
    return np.append(share.clip(0, 1), 0.0)[where.bin_of]
