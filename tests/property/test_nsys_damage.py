"""Exports that are damaged, incomplete or hostile, and what is none: an answer, or one line, and never a traceback."""

from __future__ import annotations

import gzip
import os
import re
import resource
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from helpers import make_nsys
from helpers.bad_input import ENVIRONMENT, NAMES, driven, is_json, is_refused, is_report
from helpers.make_nsys import NsysBuilder, edit, training
from helpers.nsys_exports import WORK_TABLES, document, issues, with_secrets

import gpuprof
from gpuprof.report.terminal import render


def answered(path: Path) -> gpuprof.Diagnosis | None:
    """The diagnosis of what may be damaged, shown in all ways; None where it is refused, in one line."""
    try:
        diagnosis = gpuprof.diagnose(path)
    except gpuprof.GpuprofError as error:
        assert "\n" not in str(error)
        assert len(str(error)) < 2_000
        return None
    document(diagnosis)
    render(diagnosis, 100, 5)
    return diagnosis


MOST_USED = ("StringIds", "NVTX_EVENTS", *WORK_TABLES.values(), "CUPTI_ACTIVITY_KIND_RUNTIME")


def columns_of(*tables: str) -> list[tuple[str, str]]:
    return [(table, column) for table in tables for column in make_nsys.schema(2026)[table]]


def complete() -> NsysBuilder:
    """A training of which every table has rows."""
    builder = training(steps=2, layers=3)
    builder.event(9, correlation=1, number=1).sync(2, 2_000_000, 2_000_010, event=9, number=1, correlation=2)
    builder.graph(1, 2_000_000, 2_000_500).memset(2_100_000, 2_100_200, 64)
    builder.metric(1, "SMs Active [Throughput %]")
    for i in range(40):
        builder.sample(1, 1_000_000 + 100_000 * i, 50)
    return with_secrets(builder, 2026)


@pytest.mark.parametrize("how", ["DROP TABLE {}", "DELETE FROM {}"])
def test_without_any_one_table(how: str, tmp_path: Path):
    for table in make_nsys.TABLES:
        path = edit(complete().write(tmp_path / "a.sqlite"), how.format(table))
        diagnosis = answered(path)
        if table.startswith(("CUPTI", "NVTX", "OSRT", "GPU", "TARGET", "PROCESSES", "Thread", "META", "PROFILER")):
            assert diagnosis is not None, table
            assert diagnosis.devices, table


@pytest.mark.parametrize("tables", [MOST_USED, pytest.param(tuple(make_nsys.TABLES), marks=pytest.mark.slow)])
def test_without_any_one_column(tables: tuple[str, ...], tmp_path: Path):
    path, spoilt = complete().write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite"
    for table, column in columns_of(*tables):
        spoilt.write_bytes(path.read_bytes())
        edit(spoilt, f'ALTER TABLE {table} DROP COLUMN "{column}"')
        assert answered(spoilt) is not None, (table, column)


ODD = (None, "text", -1, -(2**63), 2**63 - 1, 1e300, b"\xff\xfe", 2**40)


def test_odd_values_in_any_one_column(tmp_path: Path):
    """One row of a table has a value that is no such thing."""
    path, spoilt = complete().write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite"
    for number, (table, column) in enumerate(columns_of(*MOST_USED)):  # the slow test has all
        spoilt.write_bytes(path.read_bytes())
        with closing(sqlite3.connect(spoilt)) as database, database:
            value = ODD[number % len(ODD)]
            asked = f'UPDATE {table} SET "{column}" = ? WHERE rowid = (SELECT MAX(rowid) / 2 + 1 FROM {table})'
            assert database.execute(asked, (value,)).rowcount == 1
        assert answered(spoilt) is not None, (table, column, value)


@pytest.mark.slow
@pytest.mark.parametrize("value", ODD, ids=repr)
def test_each_odd_value_in_each_column(value, tmp_path: Path):
    path, spoilt = complete().write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite"
    for table, column in columns_of(*make_nsys.TABLES):
        for rows in ("rowid % 7 = 1", "1"):
            spoilt.write_bytes(path.read_bytes())
            with closing(sqlite3.connect(spoilt)) as database, database:
                database.execute(f'UPDATE {table} SET "{column}" = ? WHERE {rows}', (value,))
            answered(spoilt)


@pytest.mark.parametrize("value", ["text", b"\xff\xfe", None])
def test_a_time_that_is_none_makes_no_event(value, tmp_path: Path):
    builder = training()
    whole = gpuprof.diagnose(builder.write(tmp_path / "a.sqlite")).kernels
    row = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][5]
    took = row["end"] - row["start"]
    row["start"] = value
    kernels = gpuprof.diagnose(builder.write(tmp_path / "b.sqlite")).kernels
    assert (kernels.count, kernels.total_ns) == (whole.count - 1, whole.total_ns - took)


@pytest.mark.parametrize("value", ["text", None])
def test_a_row_of_no_process_hides_none(value, tmp_path: Path):
    """The diagnosis is of a process that is there, not of one row that does not say whose it is."""
    builder = training()
    builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][5]["globalPid"] = value
    diagnosis = gpuprof.diagnose(builder.write(tmp_path / "a.sqlite"))
    assert diagnosis.verdict.bound == "host"
    assert diagnosis.steps.source == "user_range"


def test_negative_durations_take_no_time_and_are_said(tmp_path: Path):
    builder = training()
    whole = gpuprof.diagnose(builder.write(tmp_path / "a.sqlite")).kernels
    row = builder.rows["CUPTI_ACTIVITY_KIND_KERNEL"][5]
    took = row["end"] - row["start"]
    row["end"] = row["start"] - 10
    diagnosis = gpuprof.diagnose(builder.write(tmp_path / "b.sqlite"))
    assert diagnosis.kernels.total_ns == whole.total_ns - took
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
    assert diagnosis.kernels.count == sum(map(len, (builder.rows[t] for t in WORK_TABLES.values())))


@pytest.fixture(scope="module")
def through_the_command(tmp_path_factory):
    """Files through the real command, as text and as JSON, in one process: name → {mode: result}."""

    def run(files: dict[str, Path], modes: tuple[str, ...] = ("text", "json")) -> dict[str, dict]:
        todo = [(name, os.fsencode(path).hex(), modes) for name, path in files.items()]
        results = driven(todo, tmp_path_factory.mktemp("driven"))
        return {name: {mode: results[f"{name} {mode}"] for mode in modes} for name in files}

    return run


def test_damaged_files_are_answered(tmp_path: Path, through_the_command):
    data = complete().write(tmp_path / "a.sqlite").read_bytes()
    packed = gzip.compress(data, 1)
    rng = np.random.default_rng(7)
    spoilt = {f"cut at {share} %": data[: len(data) * share // 100] for share in (30, 60, 90)}
    spoilt |= {f"gzip cut at {share} %": packed[: len(packed) * share // 100] for share in (1, 30, 60, 90)}
    spoilt |= {"a header": data[:100], "a header and zeros": data[:100] + bytes(4000), "gzip of a header": packed[:40]}
    for seed, count in enumerate((1, 10, 100, 1_000, 10_000, 10_000)):
        bad = np.frombuffer(data, np.uint8).copy()
        places = rng.integers(100 if seed % 2 else 0, len(bad), count)
        bad[places] = rng.integers(0, 256, count)
        spoilt[f"{count} bytes overwritten, {seed}"] = bytes(bad)
    files = {}
    for number, (name, content) in enumerate(spoilt.items()):
        files[name] = tmp_path / f"{number}.sqlite{'.gz' if content[:2] == packed[:2] else ''}"
        files[name].write_bytes(content)
    wrong = {}
    for name, found in through_the_command(files).items():
        try:
            one_of_both(found)
        except (Exception, pytest.fail.Exception) as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    assert not wrong


def one_of_both(found: dict) -> None:
    """A report and the JSON of it, or one line twice."""
    if not found["text"].stdout:
        is_refused(found["text"])
        is_refused(found["json"])
        return
    is_report(found["text"], found["text"].code)
    is_json(found["json"], found["text"].code)


def test_a_database_that_is_cut_says_so(tmp_path: Path):
    data = training(steps=8).write(tmp_path / "a.sqlite").read_bytes()
    (tmp_path / "b.sqlite.gz").write_bytes(gzip.compress(data, 1)[:-2000])
    diagnosis = answered(tmp_path / "b.sqlite.gz")
    assert diagnosis is None or "truncated" in issues(diagnosis)


def test_nasty_names(tmp_path: Path, through_the_command):
    some = (
        "script",
        "closing markup",
        "colour",
        "bidi",
        "line end",
        "zero byte",
        "formats",
        "mangled",
        "empty",
        "wide",
    )
    nasty = {name: NAMES[name] for name in some}
    nasty |= {"1 MB": "k" * (1 << 20), "half a pair": "a\ud800b", "no UTF-8": b"ge\xff\xfemm"}
    files = {}
    for number, (name, text) in enumerate(nasty.items()):
        raw = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
        path = files[name] = training(steps=2, layers=2).write(tmp_path / f"{number}.sqlite")
        with closing(sqlite3.connect(path)) as database, database:
            for table, column in (
                *(("StringIds", "value"), ("PROCESSES", "name"), ("TARGET_INFO_GPU", "name")),
                ("META_DATA_EXPORT", "value"),
            ):
                database.execute(f"UPDATE {table} SET {column} = CAST(? AS TEXT)", (raw,))
            database.execute("UPDATE NVTX_EVENTS SET text = CAST(? AS TEXT) WHERE text = 'forward'", (raw,))
    wrong = {}
    shown = through_the_command(files, ("text",))
    acting = {name: files[name] for name in ("colour", "bidi", "zero byte", "half a pair", "no UTF-8")}
    for name, found in (*shown.items(), *through_the_command(acting, ("json",)).items()):
        try:
            for mode, result in found.items():
                is_report(result, 0) if mode == "text" else is_json(result, 0)
        except (Exception, pytest.fail.Exception) as error:
            wrong[name] = f"{type(error).__name__}: {error}"
    assert not wrong


def test_files_that_are_no_export(tmp_path: Path, through_the_command):
    plain = {}

    def database(name: str, *statements: str) -> None:
        plain[name] = edit(tmp_path / f"{len(plain)}.sqlite", *statements)

    database("another program's", "CREATE TABLE bookmarks (id INTEGER, url TEXT)", "INSERT INTO bookmarks VALUES (1,2)")
    database("one table of an export", "CREATE TABLE StringIds (id INTEGER, value TEXT)")
    (tmp_path / "x.sqlite").touch()
    plain["empty"] = tmp_path / "x.sqlite"
    bomb = tmp_path / "bomb.sqlite.gz"
    data = training(steps=1, layers=1).write(tmp_path / "small.sqlite").read_bytes()
    bomb.write_bytes(gzip.compress(data) + gzip.compress(bytes(1 << 20)) * 400)
    plain["bomb"] = bomb
    says = {"another": "no export", "one": "no export", "empty": "empty", "bomb": "unpacks to more than"}
    for name, found in through_the_command(plain).items():
        for result in found.values():
            is_refused(result)
            assert says[name.split()[0]] in result.stderr


def test_an_export_without_rows_is_said_to_be_empty(tmp_path: Path, through_the_command):
    found = through_the_command({"empty": NsysBuilder().write(tmp_path / "a.sqlite")})["empty"]
    is_report(found["text"], 2)
    assert {issue["id"] for issue in is_json(found["json"], 2)["quality"]["issues"]} >= {"no_events"}


def run_apart(*arguments: str | Path, **options) -> tuple[int, str, str]:
    """gpuprof in a process of its own."""
    environment = ENVIRONMENT | options.pop("env", {})
    child = subprocess.run(
        [sys.executable, "-m", "gpuprof", *map(str, arguments)], capture_output=True, text=True, env=environment,
        check=False, timeout=120, **options,
    )  # fmt: skip
    return child.returncode, child.stdout, child.stderr


def test_a_report_where_nsight_systems_is_not_installed(tmp_path: Path):
    path = tmp_path / "a.nsys-rep"
    path.write_bytes(b"QDSTRM" + bytes(5_000))
    code, out, err = run_apart("diagnose", path, env={"PATH": "/nowhere"})
    assert (code, out) == (2, "")
    assert re.fullmatch(r"gpuprof: [^\n]*(nsys|Nsight Systems)[^\n]*\n", err)


def no_more_than_20_kb() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def test_a_full_disk_is_told_in_one_line(tmp_path: Path):
    """A packed export is unpacked beside; here files may not grow beyond a few kB."""
    path = training().write(tmp_path / "a.sqlite.gz")
    run_apart("diagnose", path)  # so that nothing else is to be written
    code, out, err = run_apart("diagnose", path, preexec_fn=no_more_than_20_kb)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"gpuprof: [^\n]+\n", err)
    assert "please report" not in err


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


def test_the_example_that_is_spoilt_has_rows_in_every_table():
    rows = complete().rows
    assert [table for table in make_nsys.TABLES if not rows[table]] == []
