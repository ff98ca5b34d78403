"""Hardware counters of single kernels, as Nsight Compute prints them: `ncu --csv`, with `--page raw` or `details`.

Both forms are read: one line per metric ("Metric Name", "Metric Value"), and one line per kernel with a column per
metric and a second line of units. The details page names metrics in words, and its sets have other names for the same
counters: all are mapped to the requested names. Lines before the table are skipped.
"""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.units import Assumed, Bytes, Convention, Ratio

DURATION = "gpu__time_duration.sum"
TENSOR = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active"
DRAM = "dram__throughput.avg.pct_of_peak_sustained_elapsed"
SM = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
ISSUE = "sm__inst_issued.avg.pct_of_peak_sustained_active"
COUNTED = (DURATION, TENSOR, DRAM, SM, ISSUE)
"""Metrics requested for each kernel."""
KNOWN = (DURATION, TENSOR, DRAM)
"""Metrics that every GPU since Volta has."""
_SAME = {
    "gpu__dram_throughput.avg.pct_of_peak_sustained_elapsed": DRAM,
    "DRAM Throughput": DRAM,
    "SOL DRAM": DRAM,
    "Compute (SM) Throughput": SM,
    "SOL SM": SM,
    "Issue Slots Busy": ISSUE,
    "Duration": DURATION,
}
"""Other names of the same counters: of the sets `basic`, `detailed` and `full`, and their labels on the details page,
which depend on the version."""
_TENSOR_PIPE = re.compile(r"sm__(inst_executed_)?pipe_tensor_\w+\.avg\.pct_of_peak_sustained_active$")
"""Tensor pipe metrics by operand type; they share one pipe, so the busiest is used."""
_UNITS: Convention[dict[str, Ratio]] = {
    "second": 1e9, "s": 1e9, "msecond": 1e6, "ms": 1e6, "usecond": 1e3, "us": 1e3, "nsecond": 1.0, "ns": 1.0,
    "byte": 1.0, "Kbyte": 1e3, "Mbyte": 1e6, "Gbyte": 1e9,
}  # fmt: skip
_NUMBER = re.compile(r"\d+")
LARGEST_COUNTERS_BYTES: Assumed[Bytes] = 1 << 30


@dataclass(frozen=True, slots=True)
class Counted:
    """One kernel with its counters."""

    name: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    """Empty if not printed."""
    metrics: dict[str, float]
    """By Nsight Compute's names; times in ns, amounts in bytes, rates in percent."""


def read_counters(path: Path) -> tuple[Counted, ...]:
    """The kernels of a table in execution order. Raises GpuprofError, one line, if it is not such a table."""
    try:
        if path.stat().st_size > LARGEST_COUNTERS_BYTES:
            raise GpuprofError(f"{path}: a table of counters of more than 1 GiB is not read")
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
            return _parse(path, file)
    except OSError as error:
        raise GpuprofError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (EOFError, csv.Error) as error:
        raise GpuprofError(f"{path}: the table of counters is damaged: {error}") from error


def _parse(path: Path, file: Iterable[str]) -> tuple[Counted, ...]:
    rows = csv.reader(line for line in file if not line.startswith("=="))
    header = next((row for row in rows if "ID" in row and "Kernel Name" in row), None)
    if header is None:
        raise GpuprofError(f"{path}: no table of Nsight Compute: print one with ncu --csv --page raw")
    long = "Metric Name" in header and "Metric Value" in header
    found: dict[tuple[str, ...], Counted] = {}
    units: list[str] = []
    for row in rows:
        if len(row) != len(header):
            continue
        cells = dict(zip(header, row, strict=True))
        if not cells["ID"]:
            units = row  # the line below the header says in which unit each column is
            continue
        key = (cells["ID"], cells.get("Process ID", ""), cells["Kernel Name"])
        one = found.setdefault(key, _kernel(cells))
        if long:
            _add(one, cells["Metric Name"], cells["Metric Value"], cells.get("Metric Unit", ""))
        else:
            for at, name in enumerate(header):
                if "__" in name:
                    _add(one, name, row[at], units[at] if units else "")
    kernels = tuple(one for one in found.values() if one.metrics)
    if not kernels:
        raise GpuprofError(f"{path}: the table of Nsight Compute holds no counters")
    return kernels


def _kernel(cells: dict[str, str]) -> Counted:
    grid, block = (tuple(map(int, _NUMBER.findall(cells.get(key, "")))) for key in ("Grid Size", "Block Size"))
    return Counted(cells["Kernel Name"], grid, block, {})


def _add(one: Counted, name: str, text: str, unit: str) -> None:
    try:
        value = float(text.replace(",", "")) * _UNITS.get(unit, 1.0)
    except ValueError:
        return  # not a number: "n/a", or an instruction's name
    if not math.isfinite(value):
        return
    one.metrics[_SAME.get(name.removesuffix(" [%]"), name)] = value
    if _TENSOR_PIPE.match(name) and name != TENSOR and unit in ("%", ""):
        one.metrics[TENSOR] = max(value, one.metrics.get(TENSOR, 0.0))
