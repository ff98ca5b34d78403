"""The known GPUs: stated and measured figures, one row of `data/gpus.csv` each.

All tensor figures are dense, with fp32 accumulation if a GPU has different rates (GeForce): the rate for training.
A user's file of the same columns adds GPUs or overrides single cells of known ones.
"""

from __future__ import annotations

import csv
import io
import math
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from pathlib import Path

from gpuprof.errors import GpuprofError
from gpuprof.tracefile.trace import GpuInfo
from gpuprof.units import Assumed, Share

USER_FILE_VARIABLE = "GPUPROF_GPUS"

_RATES = {
    "bf16_tflops": "bf16",
    "fp16_tflops": "fp16",
    "tf32_tflops": "tf32",
    "fp32_tflops": "fp32",
    "fp8_tflops": "fp8",
    "fp4_tflops": "fp4",
    "int8_tops": "int8",
}
"""Column → the dtype whose dense rate it is. fp32 is without tensor cores."""
_NUMBERS = {
    *_RATES, "multiprocessors", "boost_mhz", "memory_gb", "bandwidth_gbs", "l2_mb", "flops_per_clock", "link_gbs",
    "tdp_w", "measured_half_tflops", "measured_copy_gbs",
}  # fmt: skip
_TEXTS = {
    "name", "driver_names", "architecture", "compute_capability", "memory_type", "link", "pcie", "measured_source",
    "confidence", "source", "note",
}  # fmt: skip
_NEEDED = ("memory_gb", "bandwidth_gbs")


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU. None: not stated, or the GPU does not have it."""

    name: str
    driver_names: tuple[str, ...]
    """Names that drivers report, without the maker's name."""
    architecture: str
    compute_capability: str
    multiprocessors: int | None
    boost_mhz: float | None
    memory_bytes: int
    memory_type: str
    memory_bytes_per_s: float
    l2_bytes: int | None
    dense_flops: dict[str, float]
    """dtype → stated FLOP/s; for int8, operations per second."""
    flops_per_clock: float | None
    """Dense half-precision FLOPs per clock of one SM."""
    link: str
    link_bytes_per_s: float | None
    """Rate to other GPUs, both directions together."""
    pcie: str
    """Generation and lanes, such as 5.0x16; C2C and its rate where the CPU is on the package."""
    tdp_w: float | None
    measured_flops: float | None
    """Best measured matmul in half precision, within the power limit."""
    measured_bytes_per_s: float | None
    """Best measured copy within device memory, reads and writes counted."""
    measured_source: str
    confidence: str
    """A: stated by the maker; B: derived from stated figures, or from a single source; C: sources disagree."""
    source: str
    note: str

    @property
    def half_flops(self) -> float | None:
        """Dense rate of its half-precision training format: bf16, or fp16 before Ampere."""
        return self.dense_flops.get("bf16", self.dense_flops.get("fp16"))

    @property
    def host_link_bytes_per_s(self) -> float | None:
        """Rate to the CPU, one direction. PCIe: 2^generation / 8 GB/s per lane from generation 3 on, minus its
        encoding."""
        direct = re.fullmatch(r"C2C (\d+)", self.pcie)
        if direct:
            return int(direct[1]) / 2 * 1e9
        lanes = re.fullmatch(r"([3-7])\.0x(\d+)", self.pcie)
        return 2 ** int(lanes[1]) / 8 * (128 / 130) * int(lanes[2]) * 1e9 if lanes else None


def load_gpus(user_file: str | None = None) -> tuple[Gpu, ...]:
    """All known GPUs, with those of a user's file (given, or named by GPUPROF_GPUS) added or overridden.

    Raises GpuprofError, one line, if the file cannot be used.
    """
    return _load(user_file or os.environ.get(USER_FILE_VARIABLE) or None)


@lru_cache(maxsize=4)
def _load(path: str | None) -> tuple[Gpu, ...]:
    text = (files("gpuprof") / "data" / "gpus.csv").read_text(encoding="utf-8")
    rows = {row["name"]: row for row in csv.DictReader(io.StringIO(text))}
    if path:
        for row in _user_rows(Path(path)):
            rows[row["name"]] = {**rows.get(row["name"], {}), **{k: v for k, v in row.items() if v}}
        for row in rows.values():
            lacking = [column for column in _NEEDED if not row.get(column)]
            if lacking or not (row.get("bf16_tflops") or row.get("fp16_tflops")):
                missing = ", ".join([*lacking, *([] if row.get("bf16_tflops") else ["bf16_tflops"])])
                raise GpuprofError(f"{path}: {row['name']} is new and lacks {missing}")
    return tuple(_gpu(row) for row in rows.values())


def find(device_name: str, memory_bytes: int | None = None, gpus: Iterable[Gpu] | None = None) -> Gpu | None:
    """The GPU that a driver calls `device_name`, or that has this name in the table; None if it is not known.

    `memory_bytes` decides between GPUs that share a name. Variants of another speed (laptops, slices of a GPU) are not
    matched with the GPU that they are named after.
    """
    wanted = _plain(device_name)
    found = [
        gpu
        for gpu in (load_gpus() if gpus is None else gpus)
        if wanted in (_plain(name) for name in (gpu.name, *gpu.driver_names))
    ]
    if len(found) > 1 and memory_bytes:
        found.sort(key=lambda gpu: abs(math.log(gpu.memory_bytes / memory_bytes)))
    return found[0] if found else None


MEMORY_SPREAD: Assumed[Share] = 0.12
"""Drivers report up to this share more or less memory than a GPU's maker does (GiB, error correction)."""


def name_of(info: GpuInfo) -> str:
    """The driver's name of a GPU in a file. If the file has no name, as under ROCm without its list of names: that of
    the only known GPU with the same SMs, memory and compute capability, or an empty text."""
    if info.name:
        return info.name
    stated = info.properties
    capability = (stated.get("computeMajor"), stated.get("computeMinor"))
    like = [
        gpu
        for gpu in load_gpus()
        if info.memory_bytes
        and gpu.multiprocessors == stated.get("numSms")
        and _capability(gpu) == capability
        and abs(math.log(gpu.memory_bytes / info.memory_bytes)) < MEMORY_SPREAD
    ]
    return like[0].driver_names[0] if len(like) == 1 and like[0].driver_names else ""


def _capability(gpu: Gpu) -> tuple[int, int] | None:
    """(9, 4) of gfx942 and of 9.4."""
    found = re.fullmatch(r"gfx(\d+)(\d)[0-9a-f]|(\d+)\.(\d+)", gpu.compute_capability)
    return (int(found[1] or found[3]), int(found[2] or found[4])) if found else None


def _plain(name: str) -> str:
    """A name with case, punctuation and the words that drivers add or leave out removed."""
    words = re.split(r"[^a-z0-9.]+", name.lower())
    return " ".join(word for word in words if word not in ("", "nvidia", "amd", "generation", "graphics", "edition"))


def _user_rows(path: Path) -> list[dict[str, str]]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise GpuprofError(f"{path}: the list of GPUs cannot be read: {why}") from error
    reader = csv.DictReader(line for line in io.StringIO(text) if not line.startswith("#"))
    columns = set(reader.fieldnames or ())
    unknown = sorted(columns - _NUMBERS - _TEXTS)
    if "name" not in columns or unknown:
        what = "it has no column 'name'" if "name" not in columns else f"no column {unknown[0]!r} is known"
        raise GpuprofError(f"{path}: {what}; columns are name, memory_gb, bandwidth_gbs, bf16_tflops, …")
    rows = []
    for row in reader:
        if None in row or None in row.values():
            raise GpuprofError(f"{path}, line {reader.line_num}: cells and columns differ in number")
        row = {column: cell.strip() for column, cell in row.items()}
        if not row["name"]:
            raise GpuprofError(f"{path}, line {reader.line_num}: a GPU without a name")
        for column in sorted(_NUMBERS & columns):
            _number(row[column], f"{path}, line {reader.line_num}: {column}")
        rows.append(row)
    return rows


def _number(text: str, what: str) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value >= 0):
        raise GpuprofError(f"{what} is {text!r}, which is not a number")
    return value


def _gpu(row: dict[str, str]) -> Gpu:
    number = {column: _number(row.get(column, ""), column) for column in _NUMBERS}
    text = {column: row.get(column, "") for column in _TEXTS}

    def times(column: str, unit: float) -> float | None:
        return None if number[column] is None else number[column] * unit  # type: ignore[operator]

    multiprocessors, l2_mb = number["multiprocessors"], number["l2_mb"]
    return Gpu(
        name=text["name"],
        driver_names=tuple(name for name in text["driver_names"].split("|") if name),
        architecture=text["architecture"],
        compute_capability=text["compute_capability"],
        multiprocessors=None if multiprocessors is None else int(multiprocessors),
        boost_mhz=number["boost_mhz"],
        memory_bytes=int((number["memory_gb"] or 0) * 1e9),
        memory_type=text["memory_type"],
        memory_bytes_per_s=(number["bandwidth_gbs"] or 0) * 1e9,
        l2_bytes=None if l2_mb is None else int(l2_mb * 1e6),
        dense_flops={dtype: number[column] * 1e12 for column, dtype in _RATES.items() if number[column]},  # type: ignore[operator]
        flops_per_clock=number["flops_per_clock"],
        link=text["link"],
        link_bytes_per_s=times("link_gbs", 1e9),
        pcie=text["pcie"],
        tdp_w=number["tdp_w"],
        measured_flops=times("measured_half_tflops", 1e12),
        measured_bytes_per_s=times("measured_copy_gbs", 1e9),
        measured_source=text["measured_source"],
        confidence=text["confidence"] or "user",
        source=text["source"] or "user's file",
        note=text["note"],
    )
