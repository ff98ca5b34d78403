"""The sentence on how long every step waits for its batches, for runs whose recording has no GPU work."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.mean_step.budget import WORTH_SAYING
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.sentences import Sentences, duration
from gpuprof.timeline.unit import Unit
from gpuprof.tracefile.run_folder.run import RunFolder


def usual_wait(folder: RunFolder | None, found: Budget, unit: Unit) -> Sentences:
    """`Waiting for batches takes 33 ms of a usual step.`; none if it is less than 5 % of that, or unknown.

    This is the median over the free-running steps. Waiting beyond it is a cause in the budget.
    """
    if folder is None:
        return ()
    waits = folder.steps.data_ns[folder.steps.rows("baseline_free", folder.rank)]
    waits = waits[waits >= 0]
    usual = float(np.median(waits)) if len(waits) else 0.0
    if usual < WORTH_SAYING * found.usual_ns:
        return ()
    return (f"Waiting for batches takes {duration(min(usual, found.usual_ns))} of a usual {unit}.",)
