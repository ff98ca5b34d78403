"""Where the ranks of a job leave messages for each other: the store of torch.distributed, or a shared folder.

Nothing here waits for a message: a rank checks whether one is there. Neither opens a port.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any, Protocol

from ...runfile import open_regular, whole_file

TYPE_CHECKING = False
if TYPE_CHECKING:
    from gpuprof.units import Assumed, Bytes, Entries


PREFIX = "gpuprof"
"""Before our keys in the job's store, and the name of our folder in a shared one."""
CHUNK_BYTES: Assumed[Bytes] = 256 << 10
"""Size of one value in the store: its libuv server refuses more than 8 MB, and a large value would delay others."""


MOST_CHUNKS: Assumed[Entries] = 64
"""Most chunks of a message: more than any has."""


class Mailbox(Protocol):
    """A place where ranks leave messages for each other."""

    def put(self, name: str, data: bytes) -> None:
        """Leaves a message; it can be seen once it is whole."""
        ...

    def has(self, name: str) -> bool:
        """Whether the message is there."""
        ...

    def take(self, name: str, most: int) -> bytes:
        """A message that is there, of at most `most` bytes. Raises ValueError for a larger one."""
        ...

    def forget(self, name: str) -> None:
        """Removes a message that has been read, if that can be done: the job's store keeps all in memory."""
        ...


def job_folder(job: str) -> str:
    """The name of a job's folder, one that any file system takes."""
    return re.sub(r"[^\w.-]+", "_", job)[:100].strip(".") or "job"


class StoreMailbox:
    """Messages in the store of the job's process group. Methods raise RuntimeError once the store is gone."""

    def __init__(self, store: Any) -> None:
        from torch.distributed.distributed_c10d import PrefixStore

        if hasattr(store, "clone"):  # a connection of its own, so that the training never waits for ours
            try:
                store = store.clone()
            except RuntimeError:  # this kind of store has none
                pass
        self._store = PrefixStore(PREFIX, store)

    def put(self, name: str, data: bytes) -> None:
        """Leaves a message; it can be seen once it is whole."""
        count = 0
        for count, begin in enumerate(range(0, len(data), CHUNK_BYTES), 1):
            self._store.set(f"{name}/{count - 1}", data[begin : begin + CHUNK_BYTES])  # type: ignore[arg-type]
        self._store.set(f"{name}/chunks", str(count))
        self._store.add(f"{name}/there", 1)

    def has(self, name: str) -> bool:
        """Whether the message is there. `add` of 0 asks without waiting, in every version of torch."""
        return self._store.add(f"{name}/there", 0) > 0

    def take(self, name: str, most: int) -> bytes:
        """A message that is there, of at most `most` bytes. Raises ValueError for one of another size."""
        chunks = int(self._store.get(f"{name}/chunks"))
        if not 0 <= chunks <= -(-most // CHUNK_BYTES):
            raise ValueError("too large")
        found = []
        for number in range(chunks):
            found.append(self._store.get(f"{name}/{number}"))
            if len(found[-1]) > CHUNK_BYTES:
                raise ValueError("too large")
        return b"".join(found)

    def forget(self, name: str) -> None:
        """Removes a message that has been read, if this kind of store can."""
        with contextlib.suppress(RuntimeError, ValueError):
            for number in range(min(int(self._store.get(f"{name}/chunks")), MOST_CHUNKS)):
                self._store.delete_key(f"{name}/{number}")


class FolderMailbox:
    """Messages in a folder that every node has mounted. Methods raise OSError."""

    def __init__(self, folder: Path, job: str) -> None:
        self._folder = folder / PREFIX / job_folder(job)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def put(self, name: str, data: bytes) -> None:
        """Leaves a message; it can be seen once it is whole."""
        with whole_file(self._folder / name, 0o600) as file:
            file.write(data)

    def has(self, name: str) -> bool:
        """Whether the message is there."""
        return (self._folder / name).is_file()

    def take(self, name: str, most: int) -> bytes:
        """A message that is there, of at most `most` bytes. Raises ValueError for a larger one."""
        with open_regular(self._folder / name) as file:
            if os.fstat(file.fileno()).st_size > most:
                raise ValueError("too large")
            return file.read(most)

    def forget(self, name: str) -> None:
        """Removes a message that has been read."""
        with contextlib.suppress(OSError):
            (self._folder / name).unlink()
