"""What holds of any diagnosis."""

from __future__ import annotations

import json

import pytest

from gpuprof import Diagnosis
from gpuprof.diagnosis.json import dumps, to_json
from gpuprof.report.terminal import plain


def adds_up(diagnosis: Diagnosis) -> None:
    """The numbers of a diagnosis add up exactly, and none of them is negative."""
    window = diagnosis.window
    length = None if window is None else window.end_ns - window.start_ns
    for device in diagnosis.devices:
        parts = (device.compute_ns, device.communication_ns, device.copy_ns, device.idle_ns)
        assert sum(parts) == device.window_ns == length
        assert device.busy_ns == length - device.idle_ns
        assert min(*parts, device.carry_in_ns, device.carry_out_ns) >= 0
        assert device.carry_in_ns <= device.busy_ns
        fraction = device.cpu_bound_fraction
        assert fraction is None or 0 <= fraction <= 1
    gaps, kernels, steps = diagnosis.gaps, diagnosis.kernels, diagnosis.steps
    if gaps is not None:
        assert sum(c.ns for c in gaps.by_cause) == gaps.total_ns == sum(d.idle_ns for d in diagnosis.devices)
        assert sum(p.ns for p in gaps.by_phase) == gaps.total_ns
        assert sum(p.count for p in gaps.by_phase) == gaps.count
        assert all(c.ns > 0 for c in gaps.by_cause)
        assert all(0 <= gap.start_ns < gap.start_ns + gap.ns <= length for gap in gaps.largest)
        table = diagnosis.tables.gaps()
        causes = table[[column for column in table if column.endswith("_ns") and column != "start_ns"]]
        assert (causes.sum(axis=1) == table["ns"]).all()
        assert (causes >= 0).all(axis=None)
        assert (table["ns"] > 0).all()
        assert len(table) == gaps.count
    if kernels is not None:
        for groups in (kernels.by_category, kernels.by_phase):
            assert sum(group.ns for group in groups) == kernels.total_ns
            assert sum(group.count for group in groups) == kernels.count
        assert 0 <= kernels.unattributed_ns <= kernels.total_ns
        assert min((group.ns for group in (*kernels.top, *kernels.by_category, *kernels.by_op)), default=0) >= 0
    if diagnosis.phases:
        assert sum(phase.ns for phase in diagnosis.phases) == length
        for phase in diagnosis.phases:
            assert phase.busy_ns + phase.idle_ns == phase.ns
            assert min(phase.busy_ns, phase.idle_ns) >= 0
    if steps is not None:
        assert steps.count == len(steps.each_ns) >= 1
        assert min(steps.each_ns) > 0
        assert length is not None
        assert sum(steps.each_ns) <= length
    assert diagnosis.verdict.summary or diagnosis.verdict.bound is None
    if diagnosis.quality.status == "unusable":
        assert diagnosis.verdict.bound is None
    json.loads(dumps(diagnosis), parse_constant=pytest.fail)  # NaN and infinity are no JSON
    assert all(char == "\n" or char.isprintable() for char in plain(diagnosis, 100))
    if window is not None:
        tables = diagnosis.tables
        assert (tables.steps()["ns"] > 0).all()
        assert tables.ops()["start_ns"].between(0, length, inclusive="left").all()
        assert kernels is None or len(tables.kernels()) == kernels.count


def numbers(diagnosis: Diagnosis) -> dict:
    """All that the diagnosis says, without where it was read."""
    return to_json(diagnosis) | {"source": None}
