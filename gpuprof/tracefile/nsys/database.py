"""An export's tables. Tables and columns depend on the version, so the existence of each is checked.

Only tables that are named are read. Others hold the whole environment of the recorded process, including tokens.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import numpy as np
from isal import isal_zlib

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import open_regular
from gpuprof.tracefile.kineto.source import BOMB_BYTES, CUT, DAMAGED, GZIP_MAGIC, INFLATE_ERRORS
from gpuprof.tracefile.trace import ABSENT, I64
from gpuprof.units import Assumed, Bytes, Characters, Convention, Rows, Times

SQLITE_MAGIC = b"SQLite format 3\0"
BOMB_RATIO: Assumed[Times] = 400
"""Exports compress by 3 to 10 times; a decompression bomb, one page repeated, by 1,000 times."""
SQLITE_ERRORS = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Raised when reading a damaged file; the second if SQLite's message quotes bytes that are not text."""
LONGEST_ERROR: Convention[Characters] = 200
"""Characters of one of SQLite's errors."""
ROWS_AT_A_TIME: Assumed[Rows] = 100_000
_CHUNK_BYTES: Assumed[Bytes] = 1 << 20


class Database:
    """The tables of one export. Every query reads rows in storage order, ignoring indices, so that columns of separate
    queries match. `damage` says why a table could not be read to its end, if so."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        self._connection.text_factory = lambda raw: raw.decode("utf-8", "replace")
        self._columns: dict[str, frozenset[str]] = {}
        self.damage: str | None = None
        self.tables = frozenset(
            name for (name,) in self._connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        )

    def close(self) -> None:
        self._connection.close()

    def columns(self, table: str) -> frozenset[str]:
        """The names of a table's columns; none where there is no such table."""
        if table not in self._columns:
            found = self._connection.execute(f'PRAGMA table_info("{table}")') if table in self.tables else ()
            self._columns[table] = frozenset(row[1] for row in found)
        return self._columns[table]

    def numbers(self, table: str, columns: Sequence[str]) -> dict[str, I64]:
        """Integer columns in storage order; ABSENT where the table, the column or a value is missing."""
        there = self.columns(table)
        wanted = [name if name in there else None for name in columns]
        if not any(wanted):
            return {name: np.empty(0, np.int64) for name in columns}
        asked = ", ".join(_number(name) if name else f"{ABSENT}" for name in wanted)
        parts = [
            np.fromiter(chain.from_iterable(rows), np.int64, len(rows) * len(columns)).reshape(-1, len(columns))
            for rows in self._fetch(f'SELECT {asked} FROM "{table}" NOT INDEXED')
        ]
        whole = np.concatenate(parts) if parts else np.empty((0, len(columns)), np.int64)
        return {name: np.ascontiguousarray(whole[:, i]) for i, name in enumerate(columns)}

    def texts(self, table: str, column: str) -> list[str | None]:
        """A column of texts, in the order in which `numbers` gives the table."""
        if column not in self.columns(table):
            return []
        return [value if isinstance(value, str) else None for (value,) in self._rows(table, [column])]

    def pairs(self, table: str, key: str, value: str) -> list[tuple]:
        """(key, value) of each row; empty if one of the columns is missing."""
        if not {key, value} <= self.columns(table):
            return []
        return list(self._rows(table, [key, value]))

    def distinct(self, table: str, column: str) -> list[int]:
        """The distinct whole numbers of a column."""
        if column not in self.columns(table):
            return []
        rows = chain.from_iterable(self._fetch(f'SELECT DISTINCT "{column}" FROM "{table}"'))
        return [value for (value,) in rows if isinstance(value, int)]

    def _rows(self, table: str, columns: Sequence[str]) -> Iterator[tuple]:
        asked = ", ".join(f'"{name}"' for name in columns)
        return chain.from_iterable(self._fetch(f'SELECT {asked} FROM "{table}" NOT INDEXED'))

    def _fetch(self, query: str) -> Iterator[list[tuple]]:
        """The rows of a query, up to damage."""
        try:
            cursor = self._connection.execute(query)
            while rows := cursor.fetchmany(ROWS_AT_A_TIME):
                yield rows
        except SQLITE_ERRORS as error:
            self.damage = self.damage or f"the database is damaged ({_one_line(error)})"


def _one_line(error: Exception) -> str:
    """The error in one line: SQLite quotes the schema, which has several, and may hold anything if damaged."""
    if isinstance(error, UnicodeDecodeError):
        return "malformed database schema"
    text = "".join(char if char.isprintable() else " " for char in str(error)[:2000])
    return " ".join(text.split())[:LONGEST_ERROR]


def _number(column: str) -> str:
    """A column in SQL, with ABSENT for values that are not numbers: any column may hold anything."""
    known = f"typeof(\"{column}\") IN ('integer', 'real')"
    return f'CASE WHEN {known} THEN CAST("{column}" AS INTEGER) ELSE {ABSENT} END'


@contextmanager
def opened(path: Path) -> Iterator[Database]:
    """The tables of an export, `.sqlite` or `.sqlite.gz`. Raises UnreadableTrace for a file that is neither."""
    with tempfile.TemporaryDirectory(prefix="gpuprof-") as folder:
        cut = None
        plain = path
        if _starts_with(path, GZIP_MAGIC):
            plain = Path(folder) / "export.sqlite"
            try:
                cut = _inflate(path, plain)
            except OSError as error:
                raise UnreadableTrace(f"{path}: cannot be unpacked in {folder} ({error.strerror})") from None
        try:
            database = Database(plain)
        except SQLITE_ERRORS as error:
            why = cut or _one_line(error)
            raise UnreadableTrace(f"{path} is a damaged SQLite file ({why}): export the report again") from None
        except OSError as error:
            raise UnreadableTrace(f"{path}: cannot be read ({error.strerror})") from None
        try:
            database.damage = cut
            yield database
        finally:
            database.close()


def is_sqlite(head: bytes) -> bool:
    """Whether a file that begins with `head` is a database, compressed or not."""
    if head.startswith(SQLITE_MAGIC):
        return True
    if not head.startswith(GZIP_MAGIC):
        return False
    try:
        return isal_zlib.decompressobj(wbits=31).decompress(head, len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except INFLATE_ERRORS:
        return False


def _starts_with(path: Path, magic: bytes) -> bool:
    with open_regular(path) as file:
        return file.read(len(magic)) == magic


def _inflate(path: Path, target: Path) -> str | None:
    """Unpacks a file as far as possible; returns why it ends early, if so."""
    read = written = 0
    member = isal_zlib.decompressobj(wbits=31)
    with open_regular(path) as packed, target.open("wb") as plain:
        while chunk := packed.read(_CHUNK_BYTES):
            read += len(chunk)
            while chunk:
                try:
                    text = member.decompress(chunk)
                except INFLATE_ERRORS:
                    return DAMAGED
                plain.write(text)
                written += len(text)
                if written > BOMB_BYTES and written > BOMB_RATIO * read:
                    raise UnreadableTrace(
                        f"{path} unpacks to more than {BOMB_RATIO} times its size: it is no recording"
                    )
                if not member.eof:
                    break
                chunk = member.unused_data.lstrip(b"\0")
                member = isal_zlib.decompressobj(wbits=31) if chunk else member
    return None if member.eof else CUT
