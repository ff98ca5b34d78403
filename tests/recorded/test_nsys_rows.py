"""Recorded exports of Nsight Systems, compared with plain SQL queries that share no code with the reader."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from helpers import oracle
from helpers.diagnosed import diagnosed
from helpers.nsys_exports import (
    TINY,
    WORK_TABLES,
    issues,
    pids,
    shared_export,
    unpacked,
)
from helpers.present import present
from helpers.traces import each_shared, shared_trace, shared_truth
from helpers.valid_json import document

import gpuprof
from gpuprof.cli import main
from gpuprof.timeline.timeline import build_timeline
from gpuprof.tracefile.trace import KERNEL, MEMCPY

PUBLIC = [f"nsys/{name}" for name in ("mfu_2gpu_before", "h100_2gpu_1s", "pipit-saxpy", "weatherbench")]
EXPORTS = [*PUBLIC, f"{TINY}.nsys"]
TWO = "nsys/h100_2gpu_1s"


@cache
def loaded(path: Path, pid: int) -> gpuprof.Trace:
    """What a process of an export has recorded."""
    return gpuprof.load(f"{path}#pid={pid}")


@pytest.mark.parametrize("name", each_shared(*EXPORTS, slow=False))
def test_every_piece_of_gpu_work_arrives(name: str):
    path = shared_export(name)
    database = unpacked(path)
    there = {t for (t,) in database.execute("SELECT name FROM sqlite_master")}
    assert pids(database)
    for pid in pids(database):
        gpu = loaded(path, pid).gpu
        ns = gpu.end_ns - gpu.start_ns
        for kind, table in WORK_TABLES.items():
            mine = f"FROM {table} WHERE (globalPid >> 24) & 0xFFFFFF = {pid}"
            asked = f"SELECT streamId, deviceId, COUNT(*), SUM(end - start) {mine} GROUP BY 1, 2"
            truth = {row[:2]: row[2:] for row in database.execute(asked)} if table in there else {}
            rows = gpu.kind == kind
            found: defaultdict[tuple[int, int], tuple[int, int]] = defaultdict(lambda: (0, 0))
            for stream, device, took in zip(
                gpu.stream[rows].tolist(), gpu.device[rows].tolist(), ns[rows].tolist(), strict=True
            ):
                count, total = found[stream, device]
                found[stream, device] = (count + 1, total + took)
            assert found == truth
        copies = f"FROM {WORK_TABLES[MEMCPY]} WHERE (globalPid >> 24) & 0xFFFFFF = {pid}"
        asked = f"SELECT copyKind, COUNT(*), SUM(bytes), SUM(end - start) {copies} GROUP BY 1"
        truth = {row[0]: row[1:] for row in database.execute(asked)} if WORK_TABLES[MEMCPY] in there else {}
        assert by_copy_kind(loaded(path, pid)) == truth


def by_copy_kind(trace: gpuprof.Trace) -> dict[int, tuple[int, int, int]]:
    kinds = {"HtoD": 1, "DtoH": 2, "DtoD": 8, "PtoP": 10}
    found: dict[int, tuple[int, int, int]] = {}
    for row in np.flatnonzero(trace.gpu.kind == MEMCPY).tolist():
        kind = kinds[trace.strings[trace.gpu.name[row]].split()[1]]
        count, size, ns = found.get(kind, (0, 0, 0))
        took = int(trace.gpu.end_ns[row] - trace.gpu.start_ns[row])
        found[kind] = (count + 1, size + int(trace.gpu.bytes[row]), ns + took)
    return found


@pytest.mark.parametrize("name", each_shared(*EXPORTS, slow=False))
def test_calls_and_ranges_arrive(name: str):
    path = shared_export(name)
    database = unpacked(path)
    classes = "CASE WHEN eventClass IN (0, 1) THEN 1 ELSE 0 END"
    for pid in pids(database):
        trace = loaded(path, pid)
        mine = f"WHERE (globalTid >> 24) & 0xFFFFFF = {pid}"
        asked = f"SELECT {classes}, COUNT(*), SUM(end - start) FROM CUPTI_ACTIVITY_KIND_RUNTIME {mine} GROUP BY 1"
        truth = {kind: rest for kind, *rest in database.execute(asked)}
        calls = trace.calls
        assert [len(calls), int((calls.end_ns - calls.start_ns).sum())] == truth[1]
        again = trace.rows_named(trace.other.category, lambda text: text == "cuda_api")
        assert int(again.sum()) == truth.get(0, [0])[0]
        there = {t for (t,) in database.execute("SELECT name FROM sqlite_master")}
        if "NVTX_EVENTS" not in there:
            continue
        text = "COALESCE(text, (SELECT value FROM StringIds WHERE id = textId))"
        asked = f"SELECT {text}, start, end FROM NVTX_EVENTS {mine} AND eventType IN (59, 60) AND end IS NOT NULL"
        truth = Counter((re.split(r", (?:seq|op_id) = ", t)[0], a, b) for t, a, b in database.execute(asked))
        ops = trace.ops
        assert truth == Counter(
            (trace.strings[n], a, b)
            for n, a, b in zip(ops.name.tolist(), ops.start_ns.tolist(), ops.end_ns.tolist(), strict=True)
        )


@pytest.mark.parametrize("name", each_shared(*EXPORTS, slow=False))
def test_work_is_linked_to_its_launch(name: str):
    path = shared_export(name)
    database = unpacked(path)
    there = {t for (t,) in database.execute("SELECT name FROM sqlite_master")}
    work = " UNION ALL ".join(
        f"SELECT start, streamId, correlationId, globalPid FROM {table}"
        for table in WORK_TABLES.values() if table in there
    )  # fmt: skip
    asked = (
        f"SELECT g.start, g.streamId, g.correlationId, c.start, c.end FROM ({work}) g LEFT JOIN"
        " (SELECT * FROM CUPTI_ACTIVITY_KIND_RUNTIME WHERE eventClass IN (0, 1)) c ON g.globalPid >> 24 ="
        " c.globalTid >> 24 AND g.correlationId = c.correlationId WHERE (g.globalPid >> 24) & 0xFFFFFF = ?"
    )
    for pid in pids(database):
        truth = defaultdict(list)
        for start, stream, correlation, *call in database.execute(asked, (pid,)):
            truth[start, stream, correlation].append(tuple(call))
        trace = loaded(path, pid)
        timeline = build_timeline(trace)
        assert timeline is not None
        gpu, call = trace.gpu, timeline.links.call
        assert len(gpu) >= len(truth) > 0
        for row in range(len(gpu)):
            launches = truth[int(gpu.start_ns[row]), int(gpu.stream[row]), int(gpu.correlation[row])]
            at = int(call[row])
            found = (None, None) if at < 0 else (int(trace.calls.start_ns[at]), int(trace.calls.end_ns[at]))
            assert found in launches


@pytest.fixture(scope="module")
def both() -> tuple[gpuprof.Diagnosis, gpuprof.Diagnosis]:
    """Recordings of one program by Nsight Systems and by torch.profiler."""
    return diagnosed(shared_export(f"{TINY}.nsys")), diagnosed(shared_trace(TINY))


def test_both_profilers_record_the_same_kernels(both):
    names, busy = [], []
    for diagnosis in both:
        trace = diagnosis.tables.timeline.trace
        kernels = trace.gpu.kind == KERNEL
        names.append({trace.strings[i] for i in trace.gpu.name[kernels].tolist()})
        steps = diagnosis.tables.timeline.steps
        begun = diagnosis.tables.timeline.links.begun_ns
        for start, end in zip(steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True):
            assert int(np.sum(kernels & (begun >= start) & (begun < end))) == 5_185
        (device,) = diagnosis.devices
        busy.append(device.busy_ns / diagnosis.steps.count)
    assert names[0] == names[1]
    assert busy[0] == pytest.approx(busy[1], rel=0.02)


def test_both_profilers_lead_to_the_same_step(both):
    truth = shared_truth()["tiny_lora_small_batch"]
    low, high = 70e6, truth["unprofiled_ms"][1] * 1e6
    for diagnosis, recorded in zip(both, (truth["recorded_under_nsys_ms"], truth["recorded_ms"]), strict=True):
        assert diagnosis.steps.recorded_ns == pytest.approx(recorded * 1e6, rel=0.02)
        assert 0.85 * low <= diagnosis.steps.estimated_ns <= 1.15 * high
        assert (diagnosis.verdict.bound, diagnosis.verdict.cause) == ("host", "launch")


def test_what_an_export_does_not_contain_is_null(both):
    found = document(both[0])
    assert found["source"]["kind"] == "nsys"
    assert found["environment"]["gpus"][0]["name"] == "NVIDIA H200"
    assert (found["roofline"] or {}).get("mfu") is None
    assert {kernel["flops"] for kernel in found["kernels"]["top"]} == {None}
    assert found["activity"] is None
    assert "no_ops" in issues(both[0])


def test_copies_that_nothing_overlaps_are_the_bound():
    diagnosis = diagnosed(shared_export(TWO))
    assert diagnosis.verdict.bound == "transfer"
    assert "copies" in diagnosis.verdict.summary
    assert "other_processes" in issues(diagnosis)
    document(diagnosis)


def test_each_process_has_an_address(capfd):
    path = shared_export(TWO)
    (one, other) = sorted(pids(unpacked(path)))
    assert f"#pid={other}" in issues(diagnosed(path))["other_processes"]
    assert f"#pid={one}" in issues(diagnosed(Path(f"{path}#pid={other}")))["other_processes"]
    assert main(["diagnose", f"{path}#pid={other}"]) == 0
    capfd.readouterr()
    for pid in (other + 1, 0, 99999999):
        assert main(["diagnose", f"{path}#pid={pid}"]) == 2
        out, err = capfd.readouterr()
        assert out == ""
        assert re.fullmatch(rf"gpuprof: [^\n]*process {pid}[^\n]*{one}, {other}\n", err)


@pytest.mark.parametrize("name", each_shared(*EXPORTS, slow=False))
def test_device_time_is_partitioned_exactly(name: str):
    path = shared_export(name)
    database = unpacked(path)
    there = {t for (t,) in database.execute("SELECT name FROM sqlite_master")}
    for pid in pids(database):
        diagnosis = diagnosed(Path(f"{path}#pid={pid}"))
        work = defaultdict(list)
        for kind, table in WORK_TABLES.items():
            if table not in there:
                continue
            named = "(SELECT value FROM StringIds WHERE id = demangledName)" if kind == KERNEL else "''"
            asked = f"SELECT deviceId, start, end, {named} FROM {table} WHERE (globalPid >> 24) & 0xFFFFFF = {pid}"
            for device, start, end, text in database.execute(asked):
                what = "copy" if kind != KERNEL else "communication" if "nccl" in text.lower() else "compute"
                work[device].append((start, end, what))
        window = present(diagnosis.window)
        low, high = window.start_ns, window.end_ns
        assert {device.device for device in diagnosis.devices} == set(work)
        for device in diagnosis.devices:
            parts = {what: getattr(device, f"{what}_ns") for what in ("compute", "communication", "copy", "idle")}
            assert parts == oracle.partition(work[device.device], low, high)
            assert sum(parts.values()) == device.window_ns == high - low
