"""Loads the pickle of a memory snapshot, which may hold plain data only.

A pickle can name functions and have them called. A snapshot needs none, so that any name at all is refused, and
nothing that a file asks for is ever imported or run.
"""

from __future__ import annotations

import gc
import pickle
from pathlib import Path
from typing import Any, NoReturn

from gpuprof.errors import UnreadableTrace

_HOW = "torch.cuda.memory._dump_snapshot writes one"
_OTHER = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes it"),
    (b"SQLite format 3", "a database of Nsight Systems"),
)
_DAMAGE = (
    pickle.UnpicklingError, EOFError, ValueError, IndexError, KeyError, TypeError, AttributeError, OverflowError,
    MemoryError, RecursionError, SystemError,
)  # fmt: skip


class _NamesAGlobal(Exception):
    """The pickle asks for a class or a function."""


class _Plain(pickle.Unpickler):
    """An unpickler without globals: dicts, lists, tuples, numbers and strings only."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise _NamesAGlobal(f"{module}.{name}"[:80])

    def persistent_load(self, pid: Any) -> NoReturn:
        raise _NamesAGlobal("a persistent id")


def load(path: Path) -> Any:
    """What the pickle holds. Raises UnreadableTrace, one line, for every file that cannot be a snapshot."""
    try:
        if not path.exists():
            raise UnreadableTrace(f"{path}: no such file")
        if path.is_dir():
            raise UnreadableTrace(f"{path} is a folder: give the snapshot in it ({_HOW})")
        if not path.is_file():
            raise UnreadableTrace(f"{path} is a pipe or a device: write the snapshot to a file, and give that")
        return _load(path)
    except OSError as error:
        raise UnreadableTrace(f"{path}: cannot be read ({error.strerror})") from None
    except ValueError:  # a NUL in the name
        raise UnreadableTrace(f"{str(path)!r} is no name of a file") from None


def _load(path: Path) -> Any:
    with path.open("rb") as file:
        head = file.read(16)
        file.seek(0)
        if not head:
            raise UnreadableTrace(f"{path} is empty: the snapshot was not written, dump it again")
        for magic, what in _OTHER:
            if head.startswith(magic):
                raise UnreadableTrace(f"{path} is {what}, not a memory snapshot: {_HOW}")
        if head[:1] != b"\x80":
            raise UnreadableTrace(f"{path} is no pickle, so not a memory snapshot: {_HOW}")
        collects = gc.isenabled()
        gc.disable()  # nothing becomes garbage here, and looking for it takes longer than loading
        try:
            return _Plain(file).load()
        except _NamesAGlobal as error:
            raise UnreadableTrace(
                f"{path} asks for {error}, which a memory snapshot never does: it was not loaded, do not trust it"
            ) from None
        except _DAMAGE:
            raise UnreadableTrace(
                f"{path} is damaged or was cut off: the snapshot is not whole, dump it again"
            ) from None
        finally:
            if collects:
                gc.enable()
