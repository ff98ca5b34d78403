"""Exports of Nsight Systems that tests read."""

from __future__ import annotations

import contextlib
import gzip
import sqlite3
import tempfile
from functools import lru_cache
from pathlib import Path

import pytest

import gpuprof
from gpuprof.report.terminal.terminal import render
from gpuprof.tracefile.trace import KERNEL, MEMCPY, MEMSET
from helpers.make_nsys import NsysBuilder, training
from helpers.paths import SHARED
from helpers.valid_json import document

TINY = "h200/tiny_lora_small_batch"
WORK_TABLES = {
    KERNEL: "CUPTI_ACTIVITY_KIND_KERNEL",
    MEMCPY: "CUPTI_ACTIVITY_KIND_MEMCPY",
    MEMSET: "CUPTI_ACTIVITY_KIND_MEMSET",
}


def shared_export(name: str) -> Path:
    """An export of the shared folder; the test is skipped where there is none."""
    path = SHARED / "traces" / f"{name}.sqlite.gz"
    if not path.is_file():
        pytest.skip(f"no recorded export at {path} (set GPUPROF_SHARED)")
    return path


@lru_cache(8)
def unpacked(path: Path) -> sqlite3.Connection:
    """The same file as SQLite has it."""
    database = sqlite3.connect(":memory:")
    with tempfile.NamedTemporaryFile(suffix=".sqlite") as file:
        file.write(gzip.decompress(path.read_bytes()) if path.name.endswith(".gz") else path.read_bytes())
        file.flush()
        with contextlib.closing(sqlite3.connect(file.name)) as stored:
            stored.backup(database)
    return database


def pids(database: sqlite3.Connection) -> list[int]:
    tables = [t for (t,) in database.execute("SELECT name FROM sqlite_master") if t in WORK_TABLES.values()]
    asked = " UNION ".join(f"SELECT (globalPid >> 24) & 0xFFFFFF FROM {table}" for table in tables)
    return [pid for (pid,) in database.execute(asked)]


def issues(diagnosis: gpuprof.Diagnosis) -> dict[str, str]:
    return {issue.id: issue.message for issue in diagnosis.quality.issues}


MARKERS = {name: f"hush-{i}-{name}" for i, name in enumerate(("token", "user", "host", "path", "stdout", "variable"))}


def with_secrets(builder: NsysBuilder, year: int) -> NsysBuilder:
    about = "META_DATA_EXPORT" if year >= 2023 else "EXPORT_META_DATA"
    for key, marker in (
        *(("EXPORT_HOST", "host"), ("EXPORT_USER", "user"), ("EXPORT_PARAM_OUTPUT_PATH_ABS", "path")),
        *(("EXPORT_INPUT_PATH_ABS", "path"), ("EXPORT_PARAM_INPUT_FILE", "path"), ("DERIVED_FROM", "path")),
    ):
        builder.row(about, name=key, value=MARKERS[marker])
    if year >= 2023:
        for key in ("LAUNCH_COMMAND", "ENVIRONMENT", "HF_TOKEN"):
            builder.row("META_DATA_CAPTURE", name=key, value=MARKERS["token"])
    for key in ("HF_TOKEN", "Hostname", MARKERS["variable"]):
        more = {"name": key, "nameEnum": 1, "value": MARKERS["token"]}
        builder.row("TARGET_INFO_SYSTEM_ENV", globalVid=1, devStateName=MARKERS["user"], **more)
    for marker in MARKERS.values():  # what a process printed and was started with, as `ProcessStreams` refers to it
        builder.string(f"AWS_SECRET={marker}")
    return builder


def answered(path: Path) -> gpuprof.Diagnosis | None:
    """The diagnosis of what may be damaged, shown in all ways; None where it is refused, in one line."""
    try:
        diagnosis = gpuprof.diagnose(path)
    except gpuprof.GpuprofError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 2_000
        return None
    document(diagnosis)
    render(diagnosis, 100, 5, verbose=True)
    return diagnosis


def complete() -> NsysBuilder:
    """A training of which every table has rows."""
    builder = training(steps=2, layers=3)
    builder.event(9, correlation=1, number=1).sync(2, 2_000_000, 2_000_010, event=9, number=1, correlation=2)
    builder.graph(1, 2_000_000, 2_000_500).memset(2_100_000, 2_100_200, 64)
    builder.metric(1, "SMs Active [Throughput %]")
    for i in range(40):
        builder.sample(1, 1_000_000 + 100_000 * i, 50)
    return with_secrets(builder, 2026)
