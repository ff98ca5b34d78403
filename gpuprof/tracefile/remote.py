"""Recordings in object stores: `s3://…`, `gs://…`, `hf://…` and others of fsspec. Needs the extra `scale`."""

from __future__ import annotations

import contextlib
import os
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gpuprof.errors import GpuprofError, UnreadableTrace
from gpuprof.tracefile.traces_in_folder import traces_among
from gpuprof.units import Assumed, Bytes

MOST_BYTES = "GPUPROF_MOST_DOWNLOADED_BYTES"
"""Environment variable: most bytes to fetch of one URL. Without it there is no limit."""
_CHUNK_BYTES: Assumed[Bytes] = 1 << 20
_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.\-]+):/{1,2}(.+)", re.DOTALL)


def url_of(path: str | os.PathLike[str]) -> str | None:
    """The URL that a path is; None for a local one. pathlib turns `s3://a` into `s3:/a`, which counts as a URL unless
    such a file exists."""
    text = os.fspath(path)
    match = _URL.fullmatch(text)
    if match is None or ("://" not in text and Path(text).exists()):
        return None
    if match[1].lower() in ("file", "local"):  # a local file: the path begins at the root
        return f"{match[1]}:///{match[2].lstrip('/')}"
    return f"{match[1]}://{match[2]}"


def traces_at(url: str) -> list[str]:
    """The recordings at a URL: itself, or those in the folder; in order of rank, then of name.
    Raises UnreadableTrace, one line, if there are none.
    """
    system, path = _system(url)
    try:
        if system.isfile(path):
            return [url]
        paths = system.ls(path, detail=False) if system.isdir(path) else []
    except Exception as error:  # each store has its own kinds of errors
        raise UnreadableTrace(f"{url}: cannot be read ({_first_line(error)})") from None
    by_name = {one.rstrip("/").rsplit("/", 1)[-1]: one for one in paths}
    found = traces_among(by_name)
    if not found:
        raise UnreadableTrace(f"{url}: no such file, and no folder that holds .json or .json.gz")
    return [system.unstrip_protocol(by_name[name]) for name in found]


def state_of(url: str) -> str:
    """Changes when the file does: its size with its etag or modification time. Empty if unknown."""
    system, path = _system(url)
    try:
        info = system.info(path)
    except Exception:
        return ""
    mark = next(
        (str(info[key]) for key in ("ETag", "etag", "md5Hash", "mtime", "created", "LastModified") if info.get(key)), ""
    )
    return f"{info.get('size')} {mark}" if mark else ""


def content(url: str) -> bytes | None:
    """Contents of a small file; None if it does not exist."""
    system, path = _system(url)
    try:
        return system.cat_file(path, end=_most())
    except Exception:  # each store has its own kinds of errors
        return None


def end_of(url: str, count: int) -> tuple[int, bytes]:
    """The size of a file and its last bytes; (0, empty) if it cannot be read."""
    system, path = _system(url)
    try:
        size = int(system.size(path))
        return size, system.cat_file(path, start=max(size - count, 0), end=size)
    except Exception:
        return 0, b""


@contextlib.contextmanager
def local_copy(place: str) -> Iterator[Path]:
    """A local path unchanged; for a URL, a temporary copy. Raises UnreadableTrace, one line, if it cannot be
    fetched."""
    url = url_of(place)
    if url is None:
        yield Path(place)
        return
    system, path = _system(url)
    with tempfile.TemporaryDirectory(prefix="gpuprof-") as folder:
        local = Path(folder) / (path.rstrip("/").rsplit("/", 1)[-1] or "recording")
        try:
            with system.open(path, "rb") as source, local.open("wb") as target:
                _copy(source, target, url)
        except UnreadableTrace:
            raise
        except Exception as error:
            raise UnreadableTrace(f"{url}: cannot be read ({_first_line(error)})") from None
        try:
            yield local
        except UnreadableTrace as error:
            raise UnreadableTrace(str(error).replace(str(local), url)) from None


def _copy(source: Any, target: Any, url: str) -> None:
    most, copied = _most(), 0
    while chunk := source.read(_CHUNK_BYTES):
        copied += len(chunk)
        if most is not None and copied > most:
            raise UnreadableTrace(f"{url}: holds more than the {most:,} bytes that may be fetched ({MOST_BYTES})")
        target.write(chunk)


def _most() -> int | None:
    text = os.environ.get(MOST_BYTES, "")
    return int(text) if text.isascii() and text.isdigit() else None


def _system(url: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise GpuprofError(f"{url}: reading from object stores needs fsspec: install gpuprof's extra `scale`") from None
    try:
        return url_to_fs(url)
    except Exception as error:  # an unreachable host, a scheme that needs more than a path
        raise UnreadableTrace(f"{url}: {_first_line(error)}") from None


def _first_line(error: Exception) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
