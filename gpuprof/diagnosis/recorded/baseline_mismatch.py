"""A measured step time that does not fit the recorded steps."""

from __future__ import annotations

import numpy as np

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.mean_step.baseline import RareStep
from gpuprof.diagnosis.recorded.shares import Shares
from gpuprof.diagnosis.result.diagnosis import Issue, Steps
from gpuprof.diagnosis.sentences import duration
from gpuprof.timeline.timeline import Timeline
from gpuprof.timeline.unit import Unit


def fits_the_gpu(steps: Steps, timeline: Timeline) -> bool:
    """Whether the unprofiled step takes as long as the GPU needs for what a recorded step launched. This happens if the
    CPU runs ahead: recorded steps are spans of CPU time, and then shorter."""
    gpu, rows = timeline.trace.gpu, timeline.members[timeline.links.call[timeline.members] >= 0]
    if steps.unprofiled_ns is None or not len(rows) or not steps.count:
        return False
    ns = np.bincount(gpu.device[rows], weights=(gpu.end_ns - gpu.start_ns)[rows].clip(0)).max() / steps.count
    return abs(steps.unprofiled_ns / ns - 1) <= noise_calibrated.MACHINE.value


def mismatch(steps: Steps, recorded: list[Shares], rare: RareStep | None, unit: Unit, of_run: bool) -> Issue | None:
    """The issue if the measured step cannot be one like the recorded steps; a recorded step may also be a rare one."""
    measured = steps.unprofiled_ns
    if measured is None:
        return None
    work = max(s.compute_ns + s.copy_ns for s in recorded)
    if measured < (1 - noise_calibrated.MACHINE.value) * work:
        if rare and of_run:
            return None
        what = f"is shorter than the GPU's own work in the recorded {unit} ({duration(work)})"
    elif measured > (1 + noise_calibrated.MACHINE.value) * steps.recorded_ns:
        what = f"is longer than the {unit} as recorded ({duration(steps.recorded_ns)})"
    else:
        return None
    if of_run:
        return Issue(
            "baseline_mismatch",
            "warning",
            f"The unprofiled {unit} of {duration(measured)} {what}: the timed {unit}s of this run differ from"
            f" the recorded ones. Record again with a longer baseline, or give the {unit} yourself: --step-ms MS.",
        )
    return Issue(
        "step_ms_mismatch",
        "warning",
        f"The measured {unit} of {duration(measured)} {what}: it belongs to another batch, GPU or program."
        f" Time the same {unit}, with the same shapes.",
    )
