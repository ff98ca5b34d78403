"""Builds small exports of Nsight Systems for tests: real SQLite files with the tables that its versions write."""

from __future__ import annotations

import gzip
import random
import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

PID, MAIN, AUTOGRAD = 434, 434, 500
PUSH_POP, START_END, MARK, DOMAIN = 59, 60, 34, 75
RUNTIME, DRIVER, OUTSIDE = 0, 1, 67
"""Classes of calls; the last are those of 2022 that enclose a call of the first."""
HTOD, DTOH, DTOD = 1, 2, 8
PAGEABLE, PINNED, DEVICE = 0, 1, 2
_MACHINE = 1 << 48


def global_pid(pid: int = PID) -> int:
    return _MACHINE | pid << 24


def global_tid(tid: int = MAIN, pid: int = PID) -> int:
    return global_pid(pid) | tid


_WORK = "start end deviceId contextId greenContextId streamId correlationId globalPid"
# fmt: off
TABLES = {
    "StringIds": "id value:TEXT",
    "PROCESSES": "globalPid pid name:TEXT",
    "ThreadNames": "nameId priority globalTid",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:TEXT localTime:TEXT",
    "TARGET_INFO_GPU": "vmId id name:TEXT totalMemory memoryBandwidth clockRate smCount uuid:TEXT chipName:TEXT",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId pid",
    "CUPTI_ACTIVITY_KIND_KERNEL":
        f"{_WORK} demangledName shortName mangledName registersPerThread gridX gridY gridZ blockX blockY blockZ"
        " staticSharedMemory dynamicSharedMemory sharedMemoryExecuted graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_WORK} bytes copyKind srcKind dstKind graphNodeId",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_WORK} value bytes graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_WORK} graphId graphExecId",
    "CUPTI_ACTIVITY_KIND_RUNTIME":
        "start end eventClass globalTid correlationId nameId returnValue callchainId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_WORK} syncType eventId eventSyncId",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT":
        "timestamp deviceId contextId greenContextId streamId correlationId globalPid eventId eventSyncId",
    "CUPTI_ACTIVITY_KIND_OVERHEAD": "start end eventClass globalTid correlationId nameId overheadType",
    "PROFILER_OVERHEAD": "start end globalTid nameId overheadType",
    "NVTX_EVENTS":
        "start end eventType rangeId category color text:TEXT globalTid endGlobalTid textId domainId uint64Value"
        " int64Value doubleValue:REAL uint32Value int32Value floatValue:REAL jsonTextId jsonText:TEXT binaryData:TEXT",
    "OSRT_API": "start end eventClass globalTid nameId returnValue nestingLevel callchainId",
    "GPU_METRICS": "timestamp typeId metricId value",
    "TARGET_INFO_GPU_METRICS": "typeId sourceId typeName:TEXT metricId metricName:TEXT",
    "META_DATA_EXPORT": "name:TEXT value:TEXT",
    "META_DATA_CAPTURE": "name:TEXT value:TEXT",
    "TARGET_INFO_SYSTEM_ENV": "globalVid devStateName:TEXT name:TEXT nameEnum value:TEXT",
}
# fmt: on
_LATER = {
    *("greenContextId", "eventSyncId", "timestamp", "overheadType", "binaryData", "META_DATA_CAPTURE"),
    *("GPU_METRICS", "TARGET_INFO_GPU_METRICS", "CUPTI_ACTIVITY_KIND_OVERHEAD"),
}
"""Tables and columns that 2022 does not write."""


def schema(year: int) -> dict[str, dict[str, str]]:
    """Table → column → type, as the version of a year writes them."""
    found = {}
    for table, text in TABLES.items():
        pairs = (column.partition(":") for column in text.split())
        columns = {name: kind or "INTEGER" for name, _, kind in pairs}
        if year >= 2023:
            found[table] = columns
        elif table not in _LATER:
            kept = {name: kind for name, kind in columns.items() if name not in _LATER or table == "GPU_METRICS"}
            found["EXPORT_META_DATA" if table == "META_DATA_EXPORT" else table] = kept
    return found


class NsysBuilder:
    """Collects rows; times are ns, work is of process `pid`, calls and ranges of its thread `tid`."""

    def __init__(self, year: int = 2026) -> None:
        self.year = year
        self.rows: dict[str, list[dict]] = {table: [] for table in schema(year)}
        self._strings: dict[str, int] = {}
        self._correlation = 0
        about = "META_DATA_EXPORT" if year >= 2023 else "EXPORT_META_DATA"
        versions = {2022: ("2022.2.1.31", "2.9.1")}.get(year, ("2026.2.1.210", "3.25.0"))
        for name, value in zip(("EXPORT_PRODUCT_VERSION", "EXPORT_SCHEMA_VERSION"), versions, strict=True):
            self.row(about, name=name, value=value)

    def row(self, table: str, **values) -> NsysBuilder:
        """Adds any row; values without a column in this version are left out."""
        self.rows.setdefault(table, []).append(values)
        return self

    def string(self, text: str) -> int:
        if text not in self._strings:
            self._strings[text] = len(self._strings) + 1
            self.row("StringIds", id=self._strings[text], value=text)
        return self._strings[text]

    # -- the device

    def _work(self, table: str, start: int, end: int, device: int, stream: int, correlation, pid: int, **more):
        return self.row(
            table, start=start, end=end, deviceId=device, contextId=1, streamId=stream, correlationId=correlation,
            globalPid=global_pid(pid), **more,
        )  # fmt: skip

    def kernel(
        self, name: str, start: int, end: int, *, device=0, stream=7, correlation=None, pid=PID, mangled=None, **more
    ) -> NsysBuilder:
        text, shape = self.string(name), dict.fromkeys(("gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ"), 1)
        shape |= {"registersPerThread": 32, "staticSharedMemory": 0, "dynamicSharedMemory": 1024}
        names = {"demangledName": text, "shortName": text, "mangledName": mangled and self.string(mangled)}
        return self._work(
            "CUPTI_ACTIVITY_KIND_KERNEL", start, end, device, stream, correlation, pid, **(names | shape | more)
        )

    def copy(
        self, start: int, end: int, size: int, kind=HTOD, source=PINNED, target=DEVICE, *, device=0, stream=7,
        correlation=None, pid=PID,
    ) -> NsysBuilder:  # fmt: skip
        more = {"bytes": size, "copyKind": kind, "srcKind": source, "dstKind": target}
        return self._work("CUPTI_ACTIVITY_KIND_MEMCPY", start, end, device, stream, correlation, pid, **more)

    def memset(self, start: int, end: int, size: int, *, device=0, stream=7, correlation=None, pid=PID) -> NsysBuilder:
        more = {"bytes": size, "memKind": DEVICE, "value": 0}
        return self._work("CUPTI_ACTIVITY_KIND_MEMSET", start, end, device, stream, correlation, pid, **more)

    def graph(self, number: int, start: int, end: int, *, device=0, stream=7, correlation=None, pid=PID) -> NsysBuilder:
        """A CUDA graph that was recorded as a whole."""
        table = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
        return self._work(table, start, end, device, stream, correlation, pid, graphId=number)

    # -- the host

    def fresh(self) -> int:
        """An unused correlation id."""
        self._correlation += 1
        return self._correlation

    def call(
        self, name: str, start: int, end: int | None, *, tid=MAIN, pid=PID, correlation=0, kind=RUNTIME
    ) -> NsysBuilder:
        return self.row(
            "CUPTI_ACTIVITY_KIND_RUNTIME", start=start, end=end, eventClass=kind, globalTid=global_tid(tid, pid),
            correlationId=correlation, nameId=self.string(name), returnValue=0,
        )  # fmt: skip

    def launch(
        self, name: str, call: tuple[int, int], work: tuple[int, int], *, tid=MAIN, pid=PID, **where
    ) -> NsysBuilder:
        """A call and the kernel that it launches, linked by a fresh correlation id."""
        number = self.fresh()
        self.call("cudaLaunchKernel_v7000", *call, tid=tid, pid=pid, correlation=number)
        return self.kernel(name, *work, correlation=number, pid=pid, **where)

    def upload(self, size: int, call: tuple[int, int], work: tuple[int, int], *, tid=MAIN, pid=PID, **where):
        number = self.fresh()
        self.call("cudaMemcpyAsync_v3020", *call, tid=tid, pid=pid, correlation=number)
        return self.copy(*work, size, correlation=number, pid=pid, **where)

    def sync(
        self, kind: int, start: int, end: int, *, device=0, stream=7, correlation=None, pid=PID, event=0, number=0
    ) -> NsysBuilder:
        """`kind`: 1 event, 2 stream waits for event, 3 stream, 4 context."""
        more = {"syncType": kind, "eventId": event, "eventSyncId": number}
        return self._work("CUPTI_ACTIVITY_KIND_SYNCHRONIZATION", start, end, device, stream, correlation, pid, **more)

    def event(self, event: int, *, device=0, stream=7, correlation=None, pid=PID, number=0, at=None) -> NsysBuilder:
        """A CUDA event that was recorded."""
        return self.row(
            "CUPTI_ACTIVITY_KIND_CUDA_EVENT", timestamp=at, deviceId=device, contextId=1, streamId=stream,
            correlationId=correlation, globalPid=global_pid(pid), eventId=event, eventSyncId=number,
        )  # fmt: skip

    def overhead(self, kind: int, start: int, end: int, *, tid=MAIN, pid=PID) -> NsysBuilder:
        where = {"globalTid": global_tid(tid, pid), "overheadType": kind}
        return self.row("CUPTI_ACTIVITY_KIND_OVERHEAD", start=start, end=end, **where)

    def profiler(self, name: str, start: int, end: int, *, tid=MAIN, pid=PID) -> NsysBuilder:
        where = {"globalTid": global_tid(tid, pid), "nameId": self.string(name)}
        return self.row("PROFILER_OVERHEAD", start=start, end=end, **where)

    def os_call(self, name: str, start: int, end: int, *, tid=MAIN, pid=PID) -> NsysBuilder:
        where = {"globalTid": global_tid(tid, pid), "nameId": self.string(name), "eventClass": 27, "returnValue": 0}
        return self.row("OSRT_API", start=start, end=end, **where)

    # -- NVTX

    def range(
        self, text: str, start: int, end: int | None, *, tid=MAIN, pid=PID, kind=PUSH_POP, registered=False, domain=0,
        **more,
    ) -> NsysBuilder:  # fmt: skip
        """A range; `registered`: its text is in the table of strings; `end` None: it was never closed."""
        said = {"textId": self.string(text)} if registered else {"text": text}
        where = {"globalTid": global_tid(tid, pid), "eventType": kind, "domainId": domain}
        return self.row("NVTX_EVENTS", start=start, end=end, **said, **where, **more)

    def mark(self, text: str, at: int, **where) -> NsysBuilder:
        return self.range(text, at, None, kind=MARK, **where)

    def domain(self, number: int, name: str, **where) -> NsysBuilder:
        return self.range(name, -100, None, kind=DOMAIN, domain=number, **where)

    # -- the machine

    def process(self, pid: int = PID, name: str = "python3") -> NsysBuilder:
        return self.row("PROCESSES", globalPid=global_pid(pid), pid=pid, name=name)

    def thread_name(self, name: str, tid: int = MAIN, pid: int = PID) -> NsysBuilder:
        return self.row("ThreadNames", nameId=self.string(name), priority=20, globalTid=global_tid(tid, pid))

    def gpu_info(self, number: int = 0, device: int = 0, pid: int = PID, name: str = "NVIDIA H200") -> NsysBuilder:
        self.row("TARGET_INFO_GPU", vmId=_MACHINE, id=number, name=name, totalMemory=150109880320, smCount=132)
        return self.row("TARGET_INFO_CUDA_DEVICE", gpuId=number, cudaId=device, pid=pid)

    def metric(self, number: int, name: str, gpu: int = 0) -> NsysBuilder:
        """A counter that is sampled."""
        return self.row("TARGET_INFO_GPU_METRICS", typeId=_metric_type(gpu), metricId=number, metricName=name)

    def sample(self, number: int, at: int, value: int, gpu: int = 0) -> NsysBuilder:
        return self.row("GPU_METRICS", timestamp=at, typeId=_metric_type(gpu), metricId=number, value=value)

    # -- the file

    def write(self, path: Path, shuffle: int | None = None) -> Path:
        """Writes the database, packed if the name says so; `shuffle`: rows in an order that this number decides."""
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "plain.sqlite"
            with closing(sqlite3.connect(plain)) as database, database:
                database.execute("PRAGMA synchronous=OFF")
                for table, columns in schema(self.year).items():
                    asked = ", ".join(f'"{name}" {kind}' for name, kind in columns.items())
                    database.execute(f'CREATE TABLE "{table}" ({asked})')
                    rows = [tuple(row.get(name) for name in columns) for row in self.rows.get(table, ())]
                    if shuffle is not None:
                        random.Random(shuffle).shuffle(rows)
                    marks = ", ".join("?" * len(columns))
                    database.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)
            data = plain.read_bytes()
        path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)
        return path


def _metric_type(gpu: int) -> int:
    return 0x0001_0000_0000_0100 | gpu


def edit(path: Path, *statements: str) -> Path:
    """Runs SQL on an export, as someone's own tool may have done."""
    with closing(sqlite3.connect(path)) as database, database:
        for statement in statements:
            database.execute(statement)
    return path


def training(
    year: int = 2026, steps: int = 4, layers: int = 12, pid: int = PID, device: int = 0,
    builder: NsysBuilder | None = None,
) -> NsysBuilder:  # fmt: skip
    """A small training: a copy of the batch, a forward, a backward on autograd's thread, an optimizer, a wait."""
    b = builder or NsysBuilder(year)
    b.process(pid).thread_name("python3", pid, pid).thread_name(f"pt_autograd_{device}", AUTOGRAD, pid)
    b.gpu_info(device, device, pid).row("TARGET_INFO_SESSION_START_TIME", utcEpochNs=1_790_000_000 * 10**9)
    where: dict = {"pid": pid, "device": device}
    piece, total = 30_000, (4 * layers + 12) * 30_000
    for step in range(steps):
        t = start = 1_000_000 + step * total
        b.upload(1 << 20, (t + 1_000, t + 5_000), (t + 8_000, t + 20_000), tid=pid, **where)
        t += 2 * piece
        begun = t
        for _ in range(layers):
            b.launch("void gemm<float>(float*)", (t, t + 6_000), (t + 8_000, t + 20_000), tid=pid, **where)
            t += piece
        b.range("forward", begun - 500, t - 500, tid=pid, pid=pid)
        begun = t
        for _ in range(2 * layers):
            b.launch("void gemm_bwd<float>(float*)", (t, t + 6_000), (t + 8_000, t + 22_000), tid=AUTOGRAD, **where)
            t += piece
        b.range("backward", begun - 400, t - 400, tid=pid, pid=pid)
        begun = t
        for _ in range(layers // 2):
            b.launch("adam", (t, t + 6_000), (t + 8_000, t + 12_000), tid=pid, **where)
            t += piece
        wait = b.fresh()
        b.call("cudaStreamSynchronize_v3020", t, t + 9_000, tid=pid, pid=pid, correlation=wait)
        b.sync(3, t + 500, t + 8_500, correlation=wait, **where)
        b.range("optimizer", begun - 300, t + 10_000, tid=pid, pid=pid)
        b.range(f"step_{step}", start, start + total, tid=pid, pid=pid)
        b.os_call("pthread_cond_wait", start + 2 * piece, start + total // 2, tid=AUTOGRAD + 1, pid=pid)
    b.overhead(3, 1_000_000 + total // 2, 1_000_000 + total // 2 + 4_000, tid=AUTOGRAD + 1, pid=pid)
    b.profiler("CUDA profiling data flush", 500_000, 600_000, tid=pid, pid=pid)
    return b.mark("saved", 1_000_100, tid=pid, pid=pid)
