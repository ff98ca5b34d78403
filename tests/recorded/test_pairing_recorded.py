"""An export and a trace of one recorded program, read as a pair."""

from __future__ import annotations

import re
from functools import cache

import numpy as np
import pytest
from helpers import diagnosed as recordings
from helpers.nsys_exports import TINY, issues, shared_export, unpacked
from helpers.op_nesting import lie_as_in_the_trace, steps_of
from helpers.paths import ROOT
from helpers.present import present
from helpers.timeline import timeline_of
from helpers.traces import shared_trace
from helpers.valid_json import document

import gpuprof
from gpuprof.timeline.pairing import Pairing, pair
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.recording import resolve


@cache
def tiny() -> tuple[Timeline, Timeline, Pairing]:
    timed, named = timeline_of(shared_export(f"{TINY}.nsys")), timeline_of(shared_trace(TINY))
    found = pair(timed, named)
    assert found is not None
    return timed, named, found


@cache
def diagnosed() -> tuple[gpuprof.Diagnosis, gpuprof.Diagnosis]:
    """(the export alone, the pair)."""
    export = shared_export(f"{TINY}.nsys")
    return recordings.diagnosed(export), gpuprof.diagnose([shared_trace(TINY), export])


def test_a_pair_says_that_it_is_one():
    alone, both = diagnosed()
    found = document(both)
    message = issues(both)["paired"]
    counts = re.search(
        r"([\d,]+) of ([\d,]+) kernels and copies .* ([\d,]+) by the order .* ([\d,]+) as the n-th", message
    )
    assert counts, message
    matched, launches, in_order, by_name = (int(number.replace(",", "")) for number in counts.groups())
    database = unpacked(shared_export(f"{TINY}.nsys"))
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    work = " UNION ALL ".join(f"SELECT correlationId c FROM CUPTI_ACTIVITY_KIND_{table}" for table in tables)
    asked = (
        f"SELECT COUNT(*) FROM ({work}) JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = c JOIN NVTX_EVENTS n"
        " ON n.text LIKE 'step%' AND r.start >= n.start AND r.start < n.end"
    )
    assert launches == database.execute(asked).fetchone()[0]
    assert matched == in_order + by_name <= launches
    assert in_order == 4 * 5_185
    assert matched > 0.99 * launches
    assert "not_a_pair" not in issues(both)
    assert (both.verdict.bound, both.verdict.cause) == ("host", "launch")
    assert found["source"]["kind"] == "nsys"
    assert "no_ops" not in issues(both)
    assert any(kernel["flops"] for kernel in found["kernels"]["top"])
    assert not any(kernel["flops"] for kernel in document(alone)["kernels"]["top"])


@pytest.mark.slow
def test_the_order_of_the_two_does_not_matter():
    paths = [shared_export(f"{TINY}.nsys"), shared_trace(TINY)]
    for order in (paths, paths[::-1]):
        assert resolve(order).kind == "pair"
        found = resolve(order).read()
        assert [trace.reading.path for trace in map(present, (found.trace, found.named))] == [
            str(path) for path in paths
        ]
    assert resolve([paths[1], paths[1]]).kind == "ranks"
    assert resolve(paths[:1]).kind == "trace"


def test_times_are_those_of_the_export():
    alone, both = diagnosed()
    timed, _, found = tiny()
    for table in ("gpu", "calls", "syncs", "counters"):
        before, after = getattr(timed.trace, table), getattr(found.trace, table)
        for column in before.__slots__:
            assert np.array_equal(getattr(before, column), getattr(after, column), equal_nan=column == "occupancy")
    steps = present(both.steps)
    assert steps.each_ns == present(alone.steps).each_ns
    assert steps.recorded_ns == pytest.approx(95.9e6, rel=0.02)
    assert [device.busy_ns for device in both.devices] == [device.busy_ns for device in alone.devices]
    assert both.window == alone.window


def test_only_what_the_export_recorded_cost_it_time():
    alone, both = diagnosed()
    cost, cost_alone = present(both.profiler), present(alone.profiler)
    assert cost.events_per_step == cost_alone.events_per_step
    assert cost.high_ns == pytest.approx(cost_alone.high_ns, rel=0.1)
    assert present(both.steps).estimated_ns == pytest.approx(present(alone.steps).estimated_ns, rel=0.05)


def test_ops_lie_in_each_other_as_in_the_trace():
    assert lie_as_in_the_trace(*tiny()) > 50_000


def test_launches_lie_in_the_ops_that_made_them():
    _, named, found = tiny()
    theirs = steps_of(named)
    ours = steps_of(timeline_of(found.trace))
    assert len(ours) == 4
    for step in ours:
        assert step in theirs
        assert sum(op is None for _, op in step) == 0


@pytest.mark.slow
def test_recordings_of_different_programs_are_not_read_together():
    other = ROOT / "tests" / "data" / "pairs" / "moe_small.json.gz"
    found = gpuprof.diagnose([shared_export(f"{TINY}.nsys"), other])
    assert "moe_small.json.gz" in issues(found)["not_a_pair"]
    assert "paired" not in issues(found)
    assert document(found)["source"]["kind"] == "kineto"
    assert present(found.kernels).count == len(timeline_of(other).members)
    assert found.quality.status == "degraded"
