"""Removes from an export what Nsight Systems copied from the user's shell: environment, command line, printed text,
which may contain tokens. They are in separate tables, and the environment of every traced process is also among the
strings, in one piece with zero bytes between the variables (2025.3).
"""

from __future__ import annotations

import contextlib
import re
import sqlite3
from pathlib import Path

from gpuprof.nsight.call import NsysError
from gpuprof.units import Assumed, Entries

_TABLES = ("META_DATA_CAPTURE", "TARGET_INFO_SYSTEM_ENV", "ANALYSIS_FILE", "ProcessStreams")
"""Environment and arguments, environment of the machine, files kept in the report, what the program printed."""
_CONTENTS = ("ANALYSIS_FILE", "ProcessStreams")
"""Those tables whose `contentId` refers to a string with the contents."""
_EXPORT_KEPT = ("EXPORT_PRODUCT", "EXPORT_SCHEMA", "EXPORT_PLATFORM", "EXPORT_ARCH")
"""Keys of META_DATA_EXPORT that stay; user, host and paths do not."""
_ASSIGNMENT = re.compile(rb"(?:\A|[\0\n])[A-Za-z_]\w*=")
_FEWEST_VARIABLES: Assumed[Entries] = 3
"""A string with this many variables is an environment."""


def strip_environment(path: Path) -> None:
    """Removes environments, command lines and printed text from an SQLite export, also from its raw bytes. Raises
    NsysError."""
    try:
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as file:
            file.execute("PRAGMA secure_delete = ON")
            file.execute("PRAGMA journal_mode = MEMORY")
            file.text_factory = bytes
            file.execute("BEGIN")
            _strip(file)
            file.execute("COMMIT")
            file.execute("VACUUM")
    except sqlite3.Error as error:
        raise NsysError(f"{path}: the environment cannot be removed from it ({error})") from None


def _strip(file: sqlite3.Connection) -> None:
    tables = {name.decode() for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "StringIds" in tables:
        doomed = [key for key, text in file.execute("SELECT id, CAST(value AS BLOB) FROM StringIds") if _is_one(text)]
        for table in tables.intersection(_CONTENTS):
            if "contentId" in _columns(file, table):
                doomed += [key for (key,) in file.execute(f'SELECT contentId FROM "{table}"')]
        # The row stays, as others may refer to it.
        file.executemany("UPDATE StringIds SET value = '' WHERE id = ?", [(key,) for key in doomed])
    for table in tables:
        if table in _TABLES or re.search(r"_ENV$|ENVIRONMENT", table, re.I):
            file.execute(f'DROP TABLE "{table}"')
    if "META_DATA_EXPORT" in tables and "name" in _columns(file, "META_DATA_EXPORT"):
        kept = " AND ".join("name NOT LIKE ?" for _ in _EXPORT_KEPT)
        file.execute(f"DELETE FROM META_DATA_EXPORT WHERE {kept}", [f"{name}%" for name in _EXPORT_KEPT])


def _is_one(text: bytes | None) -> bool:
    """Whether a string is an environment or part of one; no name of a kernel, call or range looks like that."""
    return text is not None and (b"\0" in text or len(_ASSIGNMENT.findall(text)) >= _FEWEST_VARIABLES)


def _columns(file: sqlite3.Connection, table: str) -> set[str]:
    return {row[1].decode() for row in file.execute(f'PRAGMA table_info("{table}")')}
