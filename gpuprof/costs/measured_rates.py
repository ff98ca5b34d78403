"""Rates measured on the machine at hand: how they are taken, kept in the user's file, and read again."""

from __future__ import annotations

import json
import math
import os
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.runfile import whole_file
from gpuprof.units import Assumed, WholeSeconds

SCRIPT = Path(__file__).with_name("programs") / "measure_gpu.py"
"""The measuring program, which runs under another Python; it is not a module."""
LONGEST_MEASUREMENT_S: Assumed[WholeSeconds] = 600
"""A measurement that takes longer has hung: no GPU used for training needs this long."""


@dataclass(frozen=True, slots=True)
class Measurement:
    """Measured rates of one GPU and its CPU."""

    device_name: str
    """As the driver gives it."""
    memory_bytes: int
    flops: dict[str, float]
    """dtype → FLOP/s of a large matmul."""
    memory_bytes_per_s: float
    """Rate of a large copy within the device's memory, counting reads and writes."""
    link_bytes_per_s: float
    """Rate from pinned host memory to the device."""
    launch_ns: float
    """CPU time of one small op, without waiting for the device."""
    host_loop_ns: float
    """CPU time of one iteration of a plain Python loop: the speed of a single thread."""
    taken: str
    """Date, ISO 8601."""
    torch: str


def measure(python: str) -> Measurement:
    """Runs the measurement with an interpreter that has torch. Raises GpuprofError if that fails."""
    try:
        done = subprocess.run(
            [python, str(SCRIPT)], capture_output=True, text=True, timeout=LONGEST_MEASUREMENT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise GpuprofError(f"measuring took more than {LONGEST_MEASUREMENT_S} s and was stopped") from None
    except OSError as error:
        raise GpuprofError(f"{python} cannot be run: {error.strerror}") from error
    lines = done.stdout.strip().splitlines()
    if done.returncode:
        last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise GpuprofError(f"nothing could be measured under {python}: {last}")
    try:
        return measurement_from(json.loads(lines[-1]))
    except (IndexError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise GpuprofError(f"nothing could be measured under {python}: its answer cannot be read") from error


def saved_file() -> Path:
    """Where measurements are kept."""
    folder = os.environ.get("XDG_CONFIG_HOME")
    return (Path(folder) if folder else Path.home() / ".config") / "gpuprof" / "gpus.json"


def load_measurements(path: Path | None = None) -> dict[str, Measurement]:
    """Device name → its saved measurement; none without the file. Raises GpuprofError if it cannot be read."""
    path = path or saved_file()
    try:
        text = path.read_text(encoding="utf-8")
    except (FileNotFoundError, NotADirectoryError, RuntimeError):
        return {}
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise GpuprofError(f"{path}: saved measurements cannot be read: {why}") from error
    try:
        return {name: measurement_from(entry) for name, entry in json.loads(text).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise GpuprofError(f"{path}: it does not contain measurements of gpuprof gpus --measure; remove it") from None


def save_measurement(measurement: Measurement, path: Path | None = None) -> Path:
    """Adds a measurement to the file, replacing an earlier one of that GPU; returns the file's path."""
    path = path or saved_file()
    every = {**load_measurements(path), measurement.device_name: measurement}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps({n: asdict(m) for n, m in sorted(every.items())}, indent=2) + "\n"
        with whole_file(path) as file:
            file.write(text.encode())
    except OSError as error:
        raise GpuprofError(f"{path}: the measurement cannot be saved: {error.strerror}") from error
    return path


def measurement_from(entry: dict[str, Any]) -> Measurement:
    """The measurement in a saved entry. Raises KeyError, TypeError or ValueError if it is not one."""
    found = Measurement(
        device_name=str(entry["device_name"]),
        memory_bytes=int(entry["memory_bytes"]),
        flops={str(dtype): float(rate) for dtype, rate in entry["flops"].items()},
        memory_bytes_per_s=float(entry["memory_bytes_per_s"]),
        link_bytes_per_s=float(entry["link_bytes_per_s"]),
        launch_ns=float(entry["launch_ns"]),
        host_loop_ns=float(entry["host_loop_ns"]),
        taken=str(entry["taken"]),
        torch=str(entry["torch"]),
    )
    rates = [
        *found.flops.values(),
        found.memory_bytes_per_s,
        found.link_bytes_per_s,
        found.launch_ns,
        found.host_loop_ns,
    ]
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise ValueError("a rate is not a positive number")
    return found
