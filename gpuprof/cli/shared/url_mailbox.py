"""Messages of the nodes of a job in an object store, by fsspec (the extra `scale`)."""

from __future__ import annotations

import contextlib
from typing import Any

from gpuprof.errors import GpuprofError
from gpuprof.record.job_nodes.mailbox import PREFIX, job_folder

_THERE = ".there"
"""Suffix of a file written after the message is complete: not every store writes files atomically."""


class UrlMailbox:
    """Messages under a URL that every node can read and write. Methods raise what the store's library raises."""

    def __init__(self, url: str, job: str) -> None:
        try:
            from fsspec.core import url_to_fs
        except ImportError:
            raise GpuprofError(f"{url}: needs fsspec: pip install 'gpuprof-toolkit[scale]'") from None
        self._system: Any
        self._system, path = url_to_fs(url)
        self._path = f"{path.rstrip('/')}/{PREFIX}/{job_folder(job)}"
        self._system.makedirs(self._path, exist_ok=True)

    def put(self, name: str, data: bytes) -> None:
        """Writes a message, which becomes visible once it is complete."""
        self._system.pipe_file(f"{self._path}/{name}", data)
        self._system.pipe_file(f"{self._path}/{name}{_THERE}", b"1")

    def has(self, name: str) -> bool:
        """Whether the message is there."""
        self._system.invalidate_cache()
        return bool(self._system.exists(f"{self._path}/{name}{_THERE}"))

    def take(self, name: str, most: int) -> bytes:
        """Reads a message of at most `most` bytes. Raises ValueError for a larger one."""
        path = f"{self._path}/{name}"
        if int(self._system.size(path) or 0) > most:
            raise ValueError("too large")
        return self._system.cat_file(path, end=most)

    def forget(self, name: str) -> None:
        """Removes a message that has been read, if the store allows that."""
        with contextlib.suppress(Exception):  # each store has its own kinds of errors
            self._system.rm_file(f"{self._path}/{name}")
