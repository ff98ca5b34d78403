"""How much of a recorded phase of an iteration the GPU works."""

from __future__ import annotations

from gpuprof.diagnosis.result.iteration_model import Iteration
from gpuprof.record.phases.phase_names import GENERATION


def decode_busy_share(iteration: Iteration) -> float | None:
    """Share of the recorded generation in which a GPU worked; None if no generation was recorded."""
    return busy_share(iteration, GENERATION)


def busy_share(iteration: Iteration, phase: str) -> float | None:
    """Share of a recorded phase in which a GPU worked, 0 to 1; None if the phase was not recorded, or without a GPU."""
    found = next((one for one in iteration.recorded if one.phase == phase and one.ns), None)
    return None if found is None or not any(one.busy_ns for one in iteration.recorded) else found.busy_ns / found.ns
