"""Damaged exports of Nsight Systems given to the command, and separate processes that read them."""

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
from helpers.bad_input import ENVIRONMENT, NAMES, driven, is_json, is_refused, is_report
from helpers.make_nsys import NsysBuilder, edit, training
from helpers.nsys_exports import complete


@pytest.fixture(scope="module")
def through_the_command():
    """Gives files to the command's own `main`, for text and for JSON: name → {mode: result}."""

    def run(files: dict[str, Path], modes: tuple[str, ...] = ("text", "json")) -> dict[str, dict]:
        results = driven([(name, os.fsencode(path), modes) for name, path in files.items()])
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
    """Text and JSON are both a report, or both the same line."""
    if not found["text"].stdout:
        is_refused(found["text"])
        is_refused(found["json"])
        return
    is_report(found["text"], found["text"].code)
    is_json(found["json"], found["text"].code)


@pytest.mark.slow
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
    nasty |= {"256 kB": "k" * (1 << 18), "half a pair": "a\ud800b", "no UTF-8": b"ge\xff\xfemm"}
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
    """Runs gpuprof in a separate process."""
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


@pytest.mark.slow
def test_a_full_disk_is_reported_in_one_line(tmp_path: Path):
    """A packed export is unpacked next to itself; here files may not grow beyond a few kB."""
    path = training().write(tmp_path / "a.sqlite.gz")
    run_apart("diagnose", path)  # so that nothing else is to be written
    code, out, err = run_apart("diagnose", path, preexec_fn=no_more_than_20_kb)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"gpuprof: [^\n]+\n", err)
    assert "please report" not in err
