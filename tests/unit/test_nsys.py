"""Exports of Nsight Systems: everything in the file is read, except what must stay private."""

from __future__ import annotations

import base64
import gzip
import re
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from helpers import make_nsys
from helpers.make_nsys import NsysBuilder, edit, training
from helpers.nsys_exports import (
    MARKERS,
    issues,
    with_secrets,
)
from helpers.present import present
from helpers.valid_json import document

import gpuprof
from gpuprof.cli import main
from gpuprof.timeline.timeline import build_timeline
from gpuprof.tracefile.trace import ABSENT, WHOLE_GRAPH

# -- made exports


@pytest.mark.parametrize("year", [2022, 2026])
def test_versions_hold_the_same(year: int, tmp_path: Path):
    """Old and new tables, rows in any order, packed or not, give the same diagnosis."""
    builders = training(2026), training(year)
    for builder in builders:  # 2022 records less about these
        del builder.rows["CUPTI_ACTIVITY_KIND_OVERHEAD"]
    plain = builders[0].write(tmp_path / "a.sqlite")
    other = builders[1].write(tmp_path / "b.sqlite.gz", shuffle=year)
    found = [document(gpuprof.diagnose(path)) for path in (plain, other)]
    for one in found:
        del one["source"], one["environment"]
    assert found[0] == found[1]


def test_calls_that_are_seen_twice_count_once(tmp_path: Path):
    """Rows of class 67, from 2022, are calls of class 0 seen from outside, with the same correlation id or another."""
    builder = training(2022)
    plain = gpuprof.diagnose(builder.write(tmp_path / "a.sqlite"))
    for row in list(builder.rows["CUPTI_ACTIVITY_KIND_RUNTIME"]):
        outside = {"start": row["start"] - 50, "end": row["end"] + 50, "eventClass": make_nsys.OUTSIDE}
        builder.row("CUPTI_ACTIVITY_KIND_RUNTIME", **(row | outside))
    twice = gpuprof.diagnose(builder.write(tmp_path / "b.sqlite"))
    assert twice.gaps == plain.gaps
    assert twice.steps == plain.steps
    assert twice.profiler == plain.profiler


def test_equal_correlations_in_two_processes_stay_apart(tmp_path: Path):
    builder = NsysBuilder()
    for pid in (100, 200):
        for i in range(50):
            t = 1_000 * pid + 10_000 * i
            builder.call("cudaLaunchKernel_v7000", t, t + 5, tid=pid, pid=pid, correlation=i + 1)
            builder.kernel("gemm", t + 7, t + 9, correlation=i + 1, pid=pid, device=pid // 200)
    path = builder.write(tmp_path / "two.sqlite", shuffle=1)
    for pid in (100, 200):
        trace = gpuprof.load(f"{path}#pid={pid}")
        timeline = build_timeline(trace)
        assert timeline is not None
        assert len(trace.gpu) == len(trace.calls) == 50
        assert (trace.calls.start_ns[timeline.links.call] + 7 == trace.gpu.start_ns).all()


def test_graphs_recorded_as_a_whole_are_busy_time(tmp_path: Path):
    builder = training(steps=2, layers=4)
    before = gpuprof.diagnose(builder.write(tmp_path / "a.sqlite")).devices[0]
    for step in range(2):  # in a stretch of the step where nothing runs
        end = 1_000_000 + (step + 1) * (4 * 4 + 12) * 30_000
        number = builder.fresh()
        builder.call("cudaGraphLaunch_v10000", end - 70_000, end - 65_000, correlation=number)
        builder.graph(3, end - 60_000, end - 20_000, correlation=number)
    diagnosis = gpuprof.diagnose(builder.write(tmp_path / "b.sqlite"))
    assert diagnosis.devices[0].compute_ns == before.compute_ns + 2 * 40_000
    assert re.match("2 CUDA graphs were recorded as a whole", issues(diagnosis)["graphs_whole"])
    assert any(kernel.name.startswith(WHOLE_GRAPH) for kernel in present(diagnosis.kernels).top)
    assert "graphs_whole" not in issues(gpuprof.diagnose(tmp_path / "a.sqlite"))


def test_nodes_of_graphs_are_kernels(tmp_path: Path):
    builder = training(steps=2, layers=4)
    number = builder.fresh()
    builder.call("cudaGraphLaunch_v10000", 1_700_000, 1_705_000, correlation=number)
    for i in range(5):
        t = 1_710_000 + 3_000 * i
        builder.kernel("node", t, t + 2_000, correlation=number, graphNodeId=90 + i)
    trace = gpuprof.load(builder.write(tmp_path / "a.sqlite"))
    rows = trace.rows_named(trace.gpu.name, lambda text: text == "node")
    assert trace.gpu.graph_node[rows].tolist() == [90, 91, 92, 93, 94]
    timeline = build_timeline(trace)
    assert timeline is not None
    assert {trace.strings[trace.calls.name[i]] for i in timeline.links.call[rows]} == {"cudaGraphLaunch"}
    assert "graphs_whole" not in issues(gpuprof.diagnose(trace))


def test_waits_arrive(tmp_path: Path):
    builder = training(steps=2, layers=4)
    builder.event(9, stream=7, correlation=70, number=1, at=5).event(9, stream=8, correlation=80, number=2, at=50)
    for number, at in ((1, 20), (2, 90)):
        builder.sync(2, at, at + 5, stream=20, event=9, number=number, correlation=100 + number)
    builder.sync(1, 95, 99, event=9, number=2, correlation=110).sync(77, 10, 20)
    trace = gpuprof.load(builder.write(tmp_path / "a.sqlite", shuffle=4))
    syncs = trace.syncs
    result = [trace.strings[i] for i in syncs.name.tolist()]
    assert Counter(result) == {"Stream Wait Event": 2, "Event Sync": 1, "Stream Sync": 2}, "no kind 77"
    waits = [i for i, text in enumerate(result) if text == "Stream Wait Event"]
    assert syncs.wait_stream[waits].tolist() == [7, 8]
    assert syncs.wait_correlation[waits].tolist() == [70, 80]
    assert set(syncs.wait_stream[[i for i, text in enumerate(result) if text == "Stream Sync"]].tolist()) == {ABSENT}


def test_an_event_that_is_recorded_again_is_waited_for_as_it_was(tmp_path: Path):
    """2022 does not number records: the wait means the one before it, never a later one."""
    builder = NsysBuilder(2022).event(5, stream=1, correlation=10).event(5, stream=3, correlation=30)
    builder.call("cudaEventRecord_v3020", 50, 60, correlation=10)
    builder.call("cudaStreamWaitEvent_v3020", 100, 110, correlation=20).sync(2, 101, 105, event=5, correlation=20)
    builder.call("cudaEventRecord_v3020", 200, 210, correlation=30)
    builder.call("cudaStreamWaitEvent_v3020", 300, 310, correlation=40).sync(2, 301, 305, event=5, correlation=40)
    builder.launch("gemm", (400, 410), (420, 500))
    for shuffle in range(3):
        syncs = gpuprof.load(builder.write(tmp_path / "a.sqlite", shuffle)).syncs
        assert syncs.wait_correlation.tolist() == [10, 30]
        assert syncs.wait_stream.tolist() == [1, 3]


def test_names_are_those_of_torch_profiler(tmp_path: Path):
    builder = NsysBuilder()
    builder.call("cudaLaunchKernel_ptsz_v7000", 0, 5, correlation=1).call("cuLaunchKernelEx", 0, 4, kind=1)
    builder.kernel("gemm<(int)4, (bool)1>(T1 *)", 10, 20, correlation=1, mangled="_Z4gemmILi4ELb1EEvPf")
    builder.kernel("f<(int)4, (bool)0, (unsigned int)7>", 30, 40, correlation=2, mangled="not mangled")
    builder.copy(50, 60, 8, make_nsys.DTOH, make_nsys.DEVICE, make_nsys.PAGEABLE).memset(70, 80, 8)
    trace = gpuprof.load(builder.write(tmp_path / "a.sqlite"))
    assert [trace.strings[i] for i in trace.gpu.name.tolist()] == [
        "void gemm<4, true>(float*)", "f<4, false, 7>", "Memcpy DtoH (Device -> Pageable)", "Memset (Device)",
    ]  # fmt: skip
    assert {trace.strings[i] for i in trace.calls.name.tolist()} == {"cudaLaunchKernel", "cuLaunchKernelEx"}


def test_an_index_on_the_tables_changes_nothing(tmp_path: Path):
    """Tools that query an export add indexes, and SQLite may then read columns in the order of an index."""
    path = training().write(tmp_path / "a.sqlite")
    before = document(gpuprof.diagnose(path))
    edit(
        path, "CREATE INDEX a ON NVTX_EVENTS(text)", "CREATE INDEX b ON NVTX_EVENTS(start, end)",
        "CREATE INDEX c ON TARGET_INFO_GPU(name)", "CREATE INDEX d ON CUPTI_ACTIVITY_KIND_KERNEL(correlationId, start)",
    )  # fmt: skip
    after = document(gpuprof.diagnose(path))
    assert after["ranges"] == before["ranges"]
    assert after | {"source": None} == before | {"source": None}


# -- what must not leave the export


def readable(path: Path) -> bytes:
    """The bytes of a file, and the unpacked ones of compressed files."""
    data = path.read_bytes()
    if data.startswith(b"\x1f\x8b"):
        return data + gzip.decompress(data)
    packed = re.findall(rb'<script type="text/plain" id="data">\s*([A-Za-z0-9+/=]+)\s*<', data)
    if path.suffix == ".html":
        assert packed
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        table = parquet.read_table(path)
        data += repr((table.schema.metadata, table.to_pydict())).encode()
    return data + b"".join(gzip.decompress(base64.b64decode(part)) for part in packed)


@pytest.mark.parametrize("year", [2022, 2026])
def test_the_environment_of_the_process_is_written_nowhere(year: int, tmp_path: Path, capfd):
    path = with_secrets(training(year), year).write(tmp_path / "report.sqlite")
    assert all(marker.encode() in path.read_bytes() for marker in MARKERS.values())
    out = tmp_path / "out"
    out.mkdir()
    formats = ["--perfetto", "--speedscope", "--parquet"]
    assert main(["diagnose", str(path)]) == 0
    assert main(["diagnose", str(path), "--json", "--html", str(out / "page.html")]) == 0
    assert main(["export", str(path), *formats, "-o", str(out / "files")]) == 0
    printed = "".join(capfd.readouterr()).encode()
    files = [file for file in out.rglob("*") if file.is_file()]
    assert {file.suffix for file in files} == {".html", ".gz", ".json", ".parquet"}
    for what, data in (("printed", printed), *((file.name, readable(file)) for file in files)):
        assert b"gemm" in data or what not in ("printed", "page.html")
        assert b"hush" not in data, what
        assert b"AWS_SECRET" not in data, what


@pytest.mark.parametrize("year", [2022, 2026])
def test_the_environment_is_not_in_memory_either(year: int, tmp_path: Path):
    trace = gpuprof.load(with_secrets(training(year), year).write(tmp_path / "report.sqlite"))
    assert "hush" not in repr((trace.strings, trace.meta, trace.reading, trace.threads)).replace(str(tmp_path), "")


# -- large


@pytest.mark.slow
def test_a_million_rows_are_read_in_seconds(tmp_path: Path):
    """400,000 calls, 300,000 kernels and 300,000 ranges with distinct names."""
    path = NsysBuilder().write(tmp_path / "large.sqlite")
    count, work = 300_000, "start, end, deviceId, streamId, correlationId, globalPid"
    tid = make_nsys.global_tid()
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel_v7000'), (3, 'cudaFree')")
        database.executemany(
            f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL ({work}, demangledName) VALUES (?, ?, 0, 7, ?, ?, 1)",
            ((10_000 * i + 6_000, 10_000 * i + 9_000, i + 1, make_nsys.global_pid()) for i in range(count)),
        )
        calls = "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME (start, end, eventClass, globalTid, correlationId, nameId)"
        database.executemany(
            f"{calls} VALUES (?, ?, 0, ?, ?, ?)",
            (
                (10_000 * i + 1_000 * k, 10_000 * i + 1_000 * k + 900, tid, i + 1 if k else 0, 2 if k else 3)
                for i in range(count)
                for k in ((0, 1) if i % 3 == 0 else (1,))
            ),
        )
        database.executemany(
            "INSERT INTO NVTX_EVENTS (start, end, eventType, text, globalTid) VALUES (?, ?, 59, ?, ?)",
            ((10_000 * i, 10_000 * i + 9_500, f"aten::mm, op_id = {i + 1}", tid) for i in range(count)),
        )
    begun = time.monotonic()
    trace = gpuprof.load(path)
    seconds = time.monotonic() - begun
    print(f"1,000,000 rows in {seconds:.1f} s")
    assert (len(trace.gpu), len(trace.calls), len(trace.ops)) == (count, count * 4 // 3, count)
    assert seconds < 60
