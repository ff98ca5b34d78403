"""Exports that are damaged, incomplete or hostile, and files that are no export: an answer or one line, never a
traceback."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from helpers import make_nsys
from helpers.make_nsys import edit
from helpers.nsys_exports import WORK_TABLES, answered, complete

MOST_USED = ("StringIds", "NVTX_EVENTS", *WORK_TABLES.values(), "CUPTI_ACTIVITY_KIND_RUNTIME")


def columns_of(*tables: str) -> list[tuple[str, str]]:
    return [(table, column) for table in tables for column in make_nsys.schema(2026)[table]]


@pytest.mark.parametrize("how", ["DROP TABLE {}", pytest.param("DELETE FROM {}", marks=pytest.mark.slow)])
def test_without_any_one_table(how: str, tmp_path: Path):
    for table in make_nsys.TABLES:
        path = edit(complete().write(tmp_path / "a.sqlite"), how.format(table))
        diagnosis = answered(path)
        if table.startswith(("CUPTI", "NVTX", "OSRT", "GPU", "TARGET", "PROCESSES", "Thread", "META", "PROFILER")):
            assert diagnosis is not None, table
            assert diagnosis.devices, table


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 24])
def test_without_any_one_column(every: int, tmp_path: Path):
    """Each column of all tables; every 24th in the quick run."""
    path, spoilt = complete().write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite"
    for table, column in columns_of(*make_nsys.TABLES)[::every]:
        spoilt.write_bytes(path.read_bytes())
        edit(spoilt, f'ALTER TABLE {table} DROP COLUMN "{column}"')
        assert answered(spoilt) is not None, (table, column)


ODD = (None, "text", -1, -(2**63), 2**63 - 1, 1e300, b"\xff\xfe", 2**40)


def test_odd_values_in_any_one_column(tmp_path: Path):
    """One row of a table has a value that the column cannot have."""
    path, spoilt = complete().write(tmp_path / "a.sqlite"), tmp_path / "b.sqlite"
    for number, (table, column) in enumerate(columns_of(*MOST_USED)[::6]):  # the slow test has all columns
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


def test_the_example_that_is_spoilt_has_rows_in_every_table():
    rows = complete().rows
    assert [table for table in make_nsys.TABLES if not rows[table]] == []
