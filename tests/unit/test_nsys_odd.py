"""Exports with rows that make no sense, and paths with odd characters."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from helpers import make_nsys
from helpers.make_nsys import edit, training
from helpers.nsys_exports import WORK_TABLES, answered, issues
from helpers.present import present

import gpuprof


@pytest.mark.parametrize("value", ["text", b"\xff\xfe", None])
def test_a_time_that_is_none_makes_no_event(value, tmp_path: Path):
    builder = training()
    whole = present(gpuprof.diagnose(builder.write(tmp_path / "a.sqlite")).kernels)
    row = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][5]
    took = row["end"] - row["start"]
    row["start"] = value
    kernels = present(gpuprof.diagnose(builder.write(tmp_path / "b.sqlite")).kernels)
    assert (kernels.count, kernels.total_ns) == (whole.count - 1, whole.total_ns - took)


@pytest.mark.parametrize("value", ["text", None])
def test_a_row_of_no_process_hides_none(value, tmp_path: Path):
    """The diagnosis is of an existing process, not of a row that does not say which process it belongs to."""
    builder = training()
    builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][5]["globalPid"] = value
    diagnosis = gpuprof.diagnose(builder.write(tmp_path / "a.sqlite"))
    assert diagnosis.verdict.bound == "host"
    assert present(diagnosis.steps).source == "user_range"


def test_negative_durations_take_no_time_and_are_said(tmp_path: Path):
    builder = training()
    whole = present(gpuprof.diagnose(builder.write(tmp_path / "a.sqlite")).kernels)
    row = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][5]
    took = row["end"] - row["start"]
    row["end"] = row["start"] - 10
    diagnosis = gpuprof.diagnose(builder.write(tmp_path / "b.sqlite"))
    assert present(diagnosis.kernels).total_ns == whole.total_ns - took
    assert "negative_durations" in issues(diagnosis)


def test_names_that_are_not_there(tmp_path: Path):
    builder = training()
    for table, column in (
        *(("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"), ("CUPTI_ACTIVITY_KIND_KERNEL", "shortName")),
        *(("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId"), ("ThreadNames", "nameId"), ("OSRT_API", "nameId")),
    ):
        for row in builder.rows[table]:
            row[column] = 999_999
    diagnosis = answered(builder.write(tmp_path / "a.sqlite"))
    assert diagnosis is not None
    assert present(diagnosis.kernels).count == sum(map(len, (builder.rows[t] for t in WORK_TABLES.values())))


def test_a_database_that_is_cut_says_so(tmp_path: Path):
    data = training(steps=8).write(tmp_path / "a.sqlite").read_bytes()
    (tmp_path / "b.sqlite.gz").write_bytes(gzip.compress(data, 1)[:-2000])
    diagnosis = answered(tmp_path / "b.sqlite.gz")
    assert diagnosis is None or "truncated" in issues(diagnosis)


@pytest.mark.parametrize("name", ["a b#c?d.sqlite", "50%.sqlite.gz", "a#pid=7", "\udcff.sqlite", "[bold]x.sqlite"])
def test_paths_with_characters_that_mean_something_elsewhere(name: str, tmp_path: Path):
    path = training(steps=2, layers=4).write(tmp_path / name)
    assert len(gpuprof.load(path).gpu) == 2 * (1 + 4 + 8 + 2)
    assert len(gpuprof.load(f"{path}#pid={make_nsys.PID}").gpu) == 2 * (1 + 4 + 8 + 2)


def test_the_file_is_left_as_it_was(tmp_path: Path):
    path = training(steps=2, layers=4).write(tmp_path / "a.sqlite")
    edit(path, "PRAGMA journal_mode=WAL")
    before = path.read_bytes()
    path.chmod(0o444)
    assert answered(path) is not None
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["a.sqlite"]
