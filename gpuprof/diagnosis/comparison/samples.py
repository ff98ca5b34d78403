"""The steps of a recording that a test can go by: those timed without a profiler, else those recorded."""

from __future__ import annotations

import numpy as np

from gpuprof.diagnosis.model import Diagnosis
from gpuprof.diagnosis.run import unprofiled_steps
from gpuprof.tracefile.model import F64


def unprofiled(diagnosis: Diagnosis) -> F64:
    """Durations in ns of the steps that were timed without a profiler, in their order, at the work of the recorded
    ones; none where the recording has none, or the step was given by the user."""
    if diagnosis.folder is None or diagnosis.run is None or diagnosis.steps is None:
        return np.empty(0, np.float64)
    return unprofiled_steps(diagnosis.folder, diagnosis.steps.unprofiled_ns)


def recorded(diagnosis: Diagnosis) -> F64:
    """Durations in ns of the recorded steps, under the profiler."""
    return np.array(diagnosis.steps.each_ns if diagnosis.steps else (), np.float64)
