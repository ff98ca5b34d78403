"""Loads the pickle of a memory snapshot, which may hold plain data only (see `tracefile.plain_pickle`)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuprof.errors import UnreadableTrace
from gpuprof.runfile import open_regular
from gpuprof.tracefile import plain_pickle

_HOW = "torch.cuda.memory._dump_snapshot writes one"
_OTHER = (
    (b"PK\x03\x04", "a zip archive, as torch.save writes it"),
    (b"SQLite format 3", "a database of Nsight Systems"),
)


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
        raise UnreadableTrace(f"{str(path)!r} is not a file name") from None


def _load(path: Path) -> Any:
    with open_regular(path) as file:
        head = file.read(16)
        file.seek(0)
        if not head:
            raise UnreadableTrace(f"{path} is empty: the snapshot was not written, dump it again")
        for magic, what in _OTHER:
            if head.startswith(magic):
                raise UnreadableTrace(f"{path} is {what}, not a memory snapshot: {_HOW}")
        if head[:1] != b"\x80":
            raise UnreadableTrace(f"{path} is not a pickle, so not a memory snapshot: {_HOW}")
        try:
            return plain_pickle.loads(file.read())  # in memory no count can ask for more than there is
        except plain_pickle.NamesAGlobal as error:
            raise UnreadableTrace(
                f"{path} asks for {error}, which a memory snapshot never does: it was not loaded, do not trust it"
            ) from None
        except plain_pickle.Damaged:
            raise UnreadableTrace(f"{path} is damaged or was cut off: dump the snapshot again") from None
