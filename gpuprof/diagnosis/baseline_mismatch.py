"""A measured step time that does not fit the recorded steps."""

from __future__ import annotations

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.baseline import RareStep
from gpuprof.diagnosis.diagnosis import Issue, Steps
from gpuprof.diagnosis.sentences import duration
from gpuprof.diagnosis.shares import Shares
from gpuprof.timeline.unit import Unit


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
