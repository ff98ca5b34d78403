"""NVTX ranges of recorded exports, and the work that they own."""

from __future__ import annotations

import numpy as np
import pytest
from helpers.make_nsys import MAIN
from helpers.nsys_exports import TINY, pids, shared_export, unpacked
from helpers.nvtx_ranges import owned, projected
from helpers.timeline import timeline_of
from helpers.traces import each_shared
from helpers.valid_json import document

import gpuprof
from gpuprof.timeline.phases import BACKWARD
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ANNOTATION, OP


@pytest.mark.parametrize("name", each_shared("nsys/mfu_2gpu_before", "nsys/h100_2gpu_1s", slow=False))
def test_ops_of_a_recorded_export(name: str):
    path = shared_export(name)
    database = unpacked(path)
    text = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"
    for pid in pids(database):
        asked = (
            f"SELECT SUM(t LIKE '%, op\\_id = %' ESCAPE '\\'), SUM(t NOT LIKE '%, op\\_id = %' ESCAPE '\\') FROM"
            f" (SELECT {text} t FROM NVTX_EVENTS WHERE eventType = 59 AND (globalTid >> 24) & 0xFFFFFF = {pid})"
        )
        ops, annotations = database.execute(asked).fetchone()
        trace = gpuprof.load(f"{path}#pid={pid}")
        assert (int((trace.ops.kind == OP).sum()), int((trace.ops.kind == ANNOTATION).sum())) == (ops, annotations)


@pytest.fixture(scope="module")
def tiny() -> tuple[Timeline, list, list]:
    """(timeline, ranges, launches) of a recorded training; the lists are from SQL."""
    path = shared_export(f"{TINY}.nsys")
    database = unpacked(path)
    named = "COALESCE(n.text, (SELECT value FROM StringIds WHERE id = n.textId))"
    asked = f"SELECT {named}, globalTid & 0xFFFFFF, start, end FROM NVTX_EVENTS n WHERE eventType = 59"
    ranges = database.execute(asked).fetchall()
    tables = ("KERNEL", "MEMCPY", "MEMSET")
    work = " UNION ALL ".join(f"SELECT correlationId c, start, end FROM CUPTI_ACTIVITY_KIND_{t}" for t in tables)
    calls = "CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = w.c"
    asked = f"SELECT r.globalTid & 0xFFFFFF, r.start, w.start, w.end FROM ({work}) w JOIN {calls}"
    return timeline_of(path), ranges, database.execute(asked).fetchall()


def test_backward_owns_what_autograds_thread_launched(tiny):
    timeline, ranges, launches = tiny
    threads = {tid for _, tid, _, _ in ranges}
    assert threads == {MAIN}
    assert sum(tid != MAIN for tid, *_ in launches) > 0.5 * len(launches)
    found = projected(timeline)
    assert found == owned(ranges, launches, timeline.window)
    assert sum(row[3] for row in found if row[0] == "backward") > 30e6


def test_the_parts_of_a_step_own_all_its_launches(tiny):
    timeline, ranges, launches = tiny
    found = list(projected(timeline).elements())
    for name, _, start, end in ranges:
        if name.startswith("step_"):
            inside = sum(start <= begun < end for _, begun, *_ in launches)
            parts = [row for row in found if start < row[1] < end and not row[0].startswith("cub")]
            assert {row[0] for row in parts} <= {"forward", "backward", "optimizer", "log"}
            assert sum(row[2] for row in parts) == inside > 5_000


def test_what_backward_launched_is_backward(tiny):
    timeline, ranges, launches = tiny
    open_in = [(start, end) for name, _, start, end in ranges if name == "backward"]
    begun = {(a, b): at for _, at, a, b in launches}
    gpu = timeline.trace.gpu
    mine = [
        any(start <= begun[a, b] < end for start, end in open_in)
        for a, b in zip(gpu.start_ns.tolist(), gpu.end_ns.tolist(), strict=True)
    ]
    assert sum(mine) > 10_000
    assert set(timeline.phase[np.array(mine)].tolist()) == {BACKWARD}


def test_ranges_by_name_are_summed(tiny):
    timeline, ranges, launches = tiny
    found = {row["name"]: row for row in document(gpuprof.diagnose(timeline.trace))["ranges"]}
    truth = owned(ranges, launches, timeline.window)
    for name in ("forward", "backward", "optimizer"):
        rows = [row for row in truth.elements() if row[0] == name]
        host = sum(end - start for n, _, start, end in ranges if n == name)
        assert found[name] == {
            "name": name, "count": 4, "ns": host, "launches": sum(row[2] for row in rows),
            "gpu_ns": sum(row[3] for row in rows), "busy_ns": sum(row[4] for row in rows),
        }  # fmt: skip
    assert found["step_#"]["count"] == 4
