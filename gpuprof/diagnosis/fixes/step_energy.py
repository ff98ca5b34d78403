"""Energy of a step with a fix: what the board draws while it waits, and what its work draws in addition.

The run measured the board's power over its steps, and the replay knows the step and the GPU's work after a fix. A board
whose clocks are up draws `POWER_WAITING` of its limit whatever it does, and more while a kernel runs, depending on what
limits the kernel (see gpuprof.projection.cost). This additional power is scaled so that the recorded step has the
measured energy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.calibration import projection as calibrated
from gpuprof.costs.hardware import find
from gpuprof.diagnosis.analysis import Analysis
from gpuprof.replay.graph import TRANSFER, Graph
from gpuprof.tracefile.trace import F64
from gpuprof.units import Assumed, Ratio

POWERS = {
    "compute": calibrated.POWER_COMPUTING,
    "memory": calibrated.POWER_STREAMING,
    "latency": calibrated.POWER_STALLED,
}
"""What limits a kernel → the board's power while it runs, as a share of its limit. A copy from or to the CPU moves a
hundredth of what memory can, and counts as waiting; so do collectives."""
MOST_ABOVE_LIMIT: Assumed[Ratio] = 1.05
"""Largest mean power of a step / the board's limit: boards hold their limit to a few percent."""


@dataclass(frozen=True, slots=True)
class StepEnergy:
    """The energy of a step of one recorded program, by its GPU's work and its length; all GPUs of the process."""

    waiting_w: float
    """Power of the waiting boards, W."""
    most_w: float
    """The boards' limit, or their measured power if that is more, W."""
    above_w: F64
    """For each node of the graph, the power while it runs beyond that of waiting, W; 0 for CPU work."""
    steps: int
    """Recorded steps in the graph."""

    def work_j(self, graph: Graph) -> float:
        """Energy of a step's GPU work above that of waiting, J, in a graph with the recorded one's nodes."""
        return _sum_of_products(self.above_w, graph.duration_ns) / 1e9 / self.steps

    def joules(self, work_j: float, step_ns: float) -> float:
        """Energy of a step of this length with this work, J."""
        seconds = step_ns / 1e9
        return min(self.waiting_w * seconds + work_j, self.most_w * seconds)


def step_energy(case: Analysis) -> StepEnergy | None:
    """The energy of this program's steps; None if no power was measured, or if the board's limit is not known."""
    energy = case.run.energy if case.run else None
    info = case.environment.gpus[0] if case.environment.gpus else None
    gpu = None if info is None else find(info.name, info.memory_bytes)
    if energy is None or gpu is None or not gpu.tdp_w or case.mean_ns <= 0:
        return None
    limit_w = gpu.tdp_w * energy.boards
    waiting_w = min(calibrated.POWER_WAITING.value * limit_w, energy.power_w)
    graph, steps = case.graph, max(case.graph.steps, 1)
    above = np.zeros(len(case.trace.gpu))
    for name, power in POWERS.items():
        above[case.bound_parts[name] > 0] = power.value - calibrated.POWER_WAITING.value
    working = graph.on_gpu & (graph.resource != TRANSFER)
    above_w = np.where(working, gpu.tdp_w * above[np.maximum(graph.gpu_row, 0)], 0.0)
    modelled = _sum_of_products(above_w, graph.duration_ns) / 1e9 / steps
    measured = (energy.power_w - waiting_w) * case.mean_ns / 1e9
    scale = measured / modelled if modelled > 0 else 0.0
    return StepEnergy(waiting_w, max(MOST_ABOVE_LIMIT * limit_w, energy.power_w), above_w * scale, steps)


def _sum_of_products(a: F64, b: F64) -> float:
    """Their scalar product, without the threads of a BLAS library, whose start costs more than the sum."""
    return float(np.einsum("i,i", a, b))
