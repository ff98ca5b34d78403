"""Power of the recorded step by the projection's power model, next to the measured power."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.costs.hardware import find
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.projection.cost import mean_power_w
from gpuprof.replay.graph import TRANSFER


def with_estimate(case: Analysis) -> Run | None:
    """The run with the projection model's power for the replayed step next to the measured power."""
    run = case.run
    if run is None or run.energy is None or not case.is_replayed or not case.environment.gpus:
        return run
    info = case.environment.gpus[0]
    gpu = find(info.name, info.memory_bytes)
    graph = case.graph
    rows = case.timeline.members
    copied = np.zeros(len(case.trace.gpu), bool)
    copied[graph.gpu_row[graph.on_gpu & (graph.resource == TRANSFER)]] = True  # draws little power
    rows = rows[~copied[rows]]
    busy = {name: float(ns[rows].sum()) / case.steps / case.devices for name, ns in case.bound_parts.items()}
    watts = None if gpu is None else mean_power_w(gpu, case.mean_ns, busy)
    return run if watts is None else replace(run, energy=replace(run.energy, estimated_w=watts * run.energy.boards))
