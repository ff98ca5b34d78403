"""Samples of a recorded run as its replayed steps would have given them, with planted functions and the truth.

A planted function is a set of nodes of the CPU's work; a sample at a moment has it in its stack if one of these is
running. The step without it is then known: the same nodes removed.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.sampled import host_places
from gpuprof.replay.transform import scaled
from gpuprof.tracefile.trace import Mask

MAIN = ["own", "train.py", "main", 1]
SCATTER = 0.03
"""Sampled steps scatter by this share, either way."""


def planted_samples(
    case: Analysis, planted: dict[str, Mask], steps: int = 24, per_step: int = 80, seed: int = 0
) -> dict[str, object]:
    """A document of samples: `steps` steps, each like a replayed one, with about `per_step` samples."""
    chance = np.random.default_rng(seed)
    graph, schedule = case.graph, case.schedule
    main = np.flatnonzero(graph.lane == case.timeline.main_thread)
    bounds = np.concatenate([[float(schedule.start_ns[main[0]])], schedule.step_end_ns])
    recorded = host_places._recorded_marks(case)
    began = graph.recorded_start_ns[main]
    work = np.flatnonzero(host_places.host_work(graph))
    start, end = schedule.end_ns[work] - graph.duration_ns[work], schedule.end_ns[work]
    names = list(planted)
    functions = [MAIN, *(["own", "train.py", name, 10 * (i + 1)] for i, name in enumerate(names))]
    nodes: dict[tuple[int, int], int] = {}
    samples, ends, marks = [], [0], []
    for i in range(steps):
        step = i % graph.steps
        length, factor = bounds[step + 1] - bounds[step], chance.uniform(1 - SCATTER, 1 + SCATTER)
        for what, ns in recorded[step]:
            node = main[min(int(np.searchsorted(began, ns)), len(main) - 1)]
            marks.append([what, ends[-1] + round(float(schedule.start_ns[node] - bounds[step]) * factor)])
        for way in np.sort(chance.uniform(0, length, chance.poisson(per_step))):
            running = work[(start <= bounds[step] + way) & (end > bounds[step] + way)]
            at = nodes.setdefault((-1, 0), len(nodes))
            for k, name in enumerate(names):
                if planted[name][running].any():
                    at = nodes.setdefault((at, k + 1), len(nodes))
            samples.append([ends[-1] + round(float(way) * factor), at, -1])
        ends.append(ends[-1] + round(float(length) * factor))
    return {
        "schema": "gpuprof.samples/1", "python": "3.11.7", "period_ns": 1_000_000, "begun_ns": 0, "ended_ns": ends[-1],
        "unread": 0, "first_step": 31, "steps_ns": ends, "marks": sorted(marks, key=lambda mark: mark[1]),
        "functions": functions,
        "nodes": [[caller, function, 10 * function + 1] for caller, function in nodes],
        "samples": samples,
    }  # fmt: skip


def write_samples(document: dict[str, object], run: Path, rank: int = 0) -> None:
    (run / f"samples.rank{rank}.json").write_text(json.dumps(document))


def step_without(case: Analysis, nodes: Mask) -> float:
    """The mean step if some of the CPU's work took no time, ns."""
    changed = scaled(case.graph, nodes, 0.0)
    return case.mean.of_step(case.mean.with_faster_cpu(case.graph, changed))


def time_of(case: Analysis, nodes: Mask) -> float:
    """CPU time a step, ns."""
    return float(case.graph.duration_ns[nodes].sum()) / case.graph.steps
