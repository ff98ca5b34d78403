"""An export's metadata: GPUs, versions, start time. Never paths, users or variables."""

from __future__ import annotations

from gpuprof.tracefile.nsys.database import Database
from gpuprof.tracefile.nsys.processes import ExportedProcess
from gpuprof.tracefile.trace import GpuInfo, Meta

_VERSIONS = {"EXPORT_PRODUCT_VERSION": "nsight_systems_version", "EXPORT_SCHEMA_VERSION": "nsight_schema_version"}
_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
"""The second name is that of 2022."""


def read_meta(database: Database, process: ExportedProcess, devices: list[int]) -> Meta:
    """`devices`: those that the process used, by its own numbering."""
    return Meta(gpus=_gpus(database, process, devices), versions=_versions(database), base_time_ns=_beginning(database))


def is_export(database: Database) -> bool:
    """Whether a database is an export of Nsight Systems."""
    return "StringIds" in database.tables and any(
        table in database.tables for table in (*_TABLES, "TARGET_INFO_SESSION_START_TIME", "ANALYSIS_DETAILS")
    )


def gpu_ids(database: Database, process: ExportedProcess, devices: list[int]) -> dict[int, int]:
    """Number of a GPU in the machine → its device number in the process."""
    given: dict[int, int] = {}
    there = {"gpuId", "cudaId", "pid"} <= database.columns("TARGET_INFO_CUDA_DEVICE")
    if there:
        found = database.numbers("TARGET_INFO_CUDA_DEVICE", ("gpuId", "cudaId", "pid"))
        rows = zip(*(found[name].tolist() for name in ("gpuId", "cudaId", "pid")), strict=True)
        given = {gpu: cuda for gpu, cuda, pid in rows if pid == process.pid and 0 <= cuda < 2**31}
    return given or {device: device for device in devices}


def _gpus(database: Database, process: ExportedProcess, devices: list[int]) -> tuple[GpuInfo, ...]:
    table = "TARGET_INFO_GPU"
    found = database.numbers(table, ("id", "totalMemory", "smCount"))
    names = database.texts(table, "name") or [None] * len(found["id"])
    known = gpu_ids(database, process, devices)
    infos = []
    for i, name in enumerate(names):
        device = known.get(int(found["id"][i]))
        if device is None or not name:
            continue
        memory, multiprocessors = int(found["totalMemory"][i]), int(found["smCount"][i])
        infos.append(
            GpuInfo(
                device, name, memory if memory > 0 else None, {"numSms": multiprocessors} if multiprocessors > 0 else {}
            )
        )
    return tuple(sorted(infos, key=lambda info: info.device))


def _versions(database: Database) -> dict[str, str]:
    said = {key: value for table in _TABLES for key, value in database.pairs(table, "name", "value")}
    return {ours: str(said[theirs]) for theirs, ours in _VERSIONS.items() if said.get(theirs)}


def _beginning(database: Database) -> int | None:
    found = database.numbers("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs",))["utcEpochNs"]
    return int(found[0]) if len(found) and found[0] > 0 else None
