"""How many optimizer steps an iteration has, of a training on its own generations."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from itertools import pairwise

from gpuprof.record.phases.phase_names import GENERATION
from gpuprof.tracefile.run_folder.phased_steps import PhasedStep
from gpuprof.tracefile.run_folder.run import RunFolder
from gpuprof.units import Assumed, Steps

FEWEST_GENERATING: Assumed[Steps] = 2
"""Fewest generating steps of a training on its own generations."""


def steps_per_iteration(folder: RunFolder) -> int | None:
    """Usual number of optimizer steps of an iteration of the run; None if its training does not generate what it trains
    on."""
    return steps_of_iteration(phased_steps(folder))


def phased_steps(folder: RunFolder) -> list[PhasedStep]:
    """The steps of the run's own rank, in order, of which phases were timed."""
    return sorted((one for one in folder.phased if one.rank == folder.rank), key=lambda one: one.step)


def steps_of_iteration(steps: Sequence[PhasedStep]) -> int | None:
    """Usual number of optimizer steps from one generation to the next; None if fewer than FEWEST_GENERATING steps
    generate."""
    generating = [one.step for one in steps if one.phases.get(GENERATION)]
    if len(generating) < FEWEST_GENERATING:
        return None
    return max(statistics.mode(b - a for a, b in pairwise(generating)), 1)
