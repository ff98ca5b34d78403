"""The GPU's hardware counters, sampled over the whole device: how busy its parts were."""

from __future__ import annotations

import re

import numpy as np

from gpuprof.tracefile.nsys.database import Database
from gpuprof.tracefile.nsys.metadata import gpu_ids
from gpuprof.tracefile.nsys.processes import ExportedProcess
from gpuprof.tracefile.nsys.strings import Strings
from gpuprof.tracefile.trace import ABSENT, CounterSamples

_TABLE, _NAMES = "GPU_METRICS", "TARGET_INFO_GPU_METRICS"
_KNOWN = (
    ("sm_active", re.compile(r"^SMs? Active\b", re.IGNORECASE)),
    ("sm_issue", re.compile(r"^SM Issue\b", re.IGNORECASE)),
    ("tensor_active", re.compile(r"^Tensor Active\b", re.IGNORECASE)),
    ("dram_read", re.compile(r"^DRAM Read (Throughput|Bandwidth)\b", re.IGNORECASE)),
    ("dram_write", re.compile(r"^DRAM Write (Throughput|Bandwidth)\b", re.IGNORECASE)),
    ("pcie_read", re.compile(r"^PCIe R[Xe]\w* (Throughput|Bandwidth)\b", re.IGNORECASE)),
    ("pcie_write", re.compile(r"^PCIe [TW]\w* (Throughput|Bandwidth)\b", re.IGNORECASE)),
)
"""Metrics by their names on various GPUs and versions; all in percent of the GPU's peak."""


def read_counters(database: Database, process: ExportedProcess, devices: list[int], strings: Strings) -> CounterSamples:
    """The samples of the process' GPUs, by time. Values that cannot be a percentage are left out: exports have some."""
    metrics = _metrics(database)
    columns = ("timestamp", "typeId", "metricId", "value")
    found = database.numbers(_TABLE, columns) if metrics else dict.fromkeys(columns, np.empty(0, np.int64))
    device_of = gpu_ids(database, process, devices)
    name, device = np.full(len(found["value"]), -1, np.int32), np.full(len(found["value"]), -1, np.int32)
    for (type_id, metric_id), known in metrics.items():
        of_device = device_of.get(type_id & 0xFF)  # the lowest byte of a type is the GPU's number
        if of_device is not None:
            rows = (found["typeId"] == type_id) & (found["metricId"] == metric_id)
            name[rows], device[rows] = strings.id(known), of_device
    sane = (found["value"] >= 0) & (found["value"] <= 100) & (found["timestamp"] != ABSENT)
    rows = np.flatnonzero((name >= 0) & sane)
    rows = rows[np.argsort(found["timestamp"][rows], kind="stable")]
    return CounterSamples(
        name=name[rows],
        device=device[rows],
        time_ns=found["timestamp"][rows],
        percent=found["value"][rows].astype(np.float64),
    )


def _metrics(database: Database) -> dict[tuple[int, int], str]:
    """(type, metric) → our name; if several map to one name, the first."""
    found = database.numbers(_NAMES, ("typeId", "metricId"))
    texts = database.texts(_NAMES, "metricName")
    metrics: dict[tuple[int, int], str] = {}
    for i, text in enumerate(texts[: len(found["typeId"])]):
        name = next((name for name, pattern in _KNOWN if text and pattern.search(text)), None)
        type_id = int(found["typeId"][i])
        if name is not None and (type_id, name) not in {(t, n) for (t, _), n in metrics.items()}:
            metrics[type_id, int(found["metricId"][i])] = name
    return metrics
