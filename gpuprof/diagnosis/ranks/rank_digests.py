"""The digests of many ranks, made in parallel if joblib is installed, and cached per state of a recording."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from gpuprof.diagnosis.ranks.rank_digest import digest_of_trace
from gpuprof.errors import UnreadableTrace
from gpuprof.ranks.digest_data import Digest
from gpuprof.ranks.storage import from_bytes, to_bytes
from gpuprof.runfile import open_regular, whole_file
from gpuprof.tracefile.read import read_trace
from gpuprof.tracefile.remote import content, end_of, local_copy, state_of, url_of
from gpuprof.tracefile.trace import Trace
from gpuprof.tracefile.traces_in_folder import is_digest
from gpuprof.units import Assumed, Bytes, Entries, Measured, Published, Times

Note = tuple[str, str]
FEWEST_IN_PARALLEL: Assumed[Entries] = 8
"""From this number of recordings on, digests are cached and made in parallel: a worker takes 0.4 s to start."""
WORKER_BYTES: Measured[Bytes] = 100 << 20
WORKER_PER_RECORDING: Measured[Times] = 4
"""Memory of a worker: its imports, and this many times the size of an unpacked recording (160 MB over one of 40 MB)."""
GZIP_END: Published[Bytes] = 8
"""Size of the checksum and length at the end of a gzip file, bytes."""
MOST_PACKED: Assumed[Times] = 12
"""Largest ratio of unpacked to gzipped size of a recording."""

_LOCAL = ("LokyBackend", "MultiprocessingBackend", "SequentialBackend", "ThreadingBackend")
"""joblib's backends whose workers share this machine's memory, which limits their number."""


def digests_of(
    places: Sequence[str | Path], read: Callable[[Path], Trace], step: str | None = None, skip: int = 0
) -> Iterator[Digest | Note]:
    """One digest per path or URL, in order, or (id, sentence) if there can be none. Digests are not kept in memory
    here.

    A digest next to a recording (`digest_path`) is used if it belongs to that recording. For FEWEST_IN_PARALLEL or more
    recordings, digests are cached in `cache_folder()` and made by joblib, with as many processes as cores and memory
    allow or as the caller's `joblib.parallel_config` says (Dask, Ray). Fewer are read here, with `read`."""
    names = [os.fspath(place) for place in places]
    if len(names) < FEWEST_IN_PARALLEL and not any(map(url_of, names)):
        for name in names:
            found = _there(name, step, skip)
            yield _made(name, step, skip, read) if found is None else _digest(found, name)
        return
    # Other processes may have another working directory.
    arguments = [(name if url_of(name) else str(Path(name).absolute()), step, skip) for name in names]
    try:
        import joblib
    except ImportError:
        joblib = None
    if joblib is None or len(places) < FEWEST_IN_PARALLEL:
        yield from (_digest(make(*one), name) for one, name in zip(arguments, names, strict=True))
        return
    active: tuple[Any, Any] = joblib.parallel.get_active_backend()
    backend, configured = active
    workers = -1 if configured is None else int(configured)  # joblib's default is one, also for Ray
    if type(backend).__name__ in _LOCAL:
        workers = min(_workers(places), joblib.effective_n_jobs(workers))
    made = joblib.Parallel(n_jobs=workers)(joblib.delayed(make)(*one) for one in arguments)
    yield from (_digest(one or b"", name) for one, name in zip(made, names, strict=True))


def make(place: str, step: str | None, skip: int) -> bytes | Note:
    """One packed digest: an existing one, the cached one, or a new one that is then cached. Runs in its own process."""
    found = _there(place, step, skip)
    if found is not None:
        return found
    cached, key = _cached(url_of(place) or place, step, skip)
    if cached is not None and (found := _kept(cached, key)) is not None:
        return found
    digest = _made(place, step, skip, read_trace)
    if not isinstance(digest, Digest):
        return digest
    data = to_bytes(digest, key)
    if cached is not None and key:
        _keep(cached, data)
    return data


def _there(place: str, step: str | None, skip: int) -> bytes | Note | None:
    """The packed digest that another node sent, or the one next to the recording if it covers the same steps."""
    url = url_of(place)
    if not url and is_digest(place):
        return _sent(Path(place))
    if step is not None or skip:
        return None
    return _kept_at(url) if url else _kept(digest_path(Path(place)), _state(Path(place)))


def _made(place: str, step: str | None, skip: int, read: Callable[[Path], Trace]) -> Digest | Note:
    """Reads a recording and returns its digest, with a note if the existing digest next to it cannot be used."""
    url = url_of(place)
    try:
        with local_copy(place) as path:
            digest = digest_of_trace(path, read, step, skip, source=url)
    except UnreadableTrace as error:
        return "rank_unreadable", str(error)
    usual = url is None and step is None and not skip
    return _with_damage(digest, digest_path(Path(place))) if usual else digest


def _sent(path: Path) -> bytes | Note:
    """The packed digest that another node sent."""
    try:
        return _read(path, path.name)[0]
    except OSError as error:
        return "rank_unreadable", f"{path.name}: cannot be read ({error.strerror or error})"
    except UnreadableTrace as error:
        return "rank_unreadable", str(error)


def _read(path: Path, name: str, key: str | None = None) -> tuple[bytes, Digest | None]:
    """A digest, packed and unpacked; the latter is None if the digest is from another version or, if `key` is given,
    from another state of its recording. Raises OSError, ValueError and UnreadableTrace, which names it `name`."""
    with open_regular(path) as file:
        data = file.read()
    return data, from_bytes(data, name, key)


def digest_path(recording: Path) -> Path:
    """Path next to a recording where its digest is looked for first."""
    return recording.with_name(_digest_name(recording.name))


def write_digest(recording: Path) -> str | None:
    """Writes the digest of a local recording next to it, unless it is there; returns why there is none. Raises
    OSError."""
    key = _state(recording)
    if _kept(digest_path(recording), key) is not None:
        return None
    made = digest_of_trace(recording, read_trace, source=recording.name)
    if not isinstance(made, Digest):
        return made[1]
    with whole_file(digest_path(recording)) as file:
        file.write(to_bytes(made, key))
    return None


def cache_folder() -> Path:
    """Folder of cached digests, inside `GPUPROF_CACHE` or else gpuprof's folder in the user's cache."""
    own = os.environ.get("GPUPROF_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return (Path(own) if own else base / "gpuprof") / "digests"


def _digest_name(recording: str) -> str:
    return recording.removesuffix(".gz").removesuffix(".json") + ".digest.npz"


def _cached(place: str, step: str | None, skip: int) -> tuple[Path | None, str]:
    """(path of a recording's digest in the cache, state of the recording); path None without a usable cache."""
    state = state_of(place) if url_of(place) else _state(Path(place))
    try:
        place = place if url_of(place) else str(Path(place).resolve())
        folder = cache_folder()
    except (OSError, ValueError, RuntimeError):  # an invalid path, or a user without a home
        return None, ""
    # File names are bytes, and not all are UTF-8.
    name = hashlib.sha256(f"{place}\0{step}\0{skip}".encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return folder / f"{name}.npz", state


def _state(recording: Path) -> str:
    """A text that changes when a local file does: for gzip its size, checksum and unpacked length, which a copy shares;
    otherwise size and modification time. Empty if there is no file."""
    try:
        found = recording.stat()
        if not recording.name.endswith(".gz"):
            return f"{found.st_size} {found.st_mtime_ns}"
        with open_regular(recording) as file:
            file.seek(max(found.st_size - GZIP_END, 0))
            return _gzip_state(found.st_size, file.read())
    except (OSError, ValueError):
        return ""


def _gzip_state(size: int, end: bytes) -> str:
    return f"{size} {end.hex()}"


def _kept(path: Path, key: str) -> bytes | None:
    """The packed digest at `path`, if it belongs to a recording in this state."""
    try:
        data, found = _read(path, str(path), key)
        return data if key and found is not None else None
    except (OSError, ValueError, UnreadableTrace):
        return None


def _with_damage(made: Digest | Note, path: Path) -> Digest | Note:
    """The digest made of a recording, with a note if the digest next to it cannot be used."""
    try:
        _read(path, path.name)
    except FileNotFoundError:
        return made
    except (OSError, ValueError, UnreadableTrace) as error:
        if not isinstance(made, Digest):
            return made
        why = str(error) if isinstance(error, UnreadableTrace) else f"{path.name} cannot be read"
        return replace(made, notes=(*made.notes, ("digest_damaged", f"{why}; the recording was read instead")))
    return made


def _kept_at(url: str) -> bytes | None:
    """The packed digest next to a gzipped recording in an object store, if it belongs to that recording."""
    if not url.endswith(".gz") or (data := content(_digest_name(url))) is None:
        return None
    size, end = end_of(url, GZIP_END)
    try:
        return data if from_bytes(data, url, _gzip_state(size, end)) is not None else None
    except UnreadableTrace:
        return None


def _keep(path: Path, data: bytes) -> None:
    """Writes the digest to the cache if possible; otherwise it will be made again."""
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _digest(made: bytes | Note, name: str) -> Digest | Note:
    """The unpacked digest. `name`: the recording's current path, which may differ from that when the digest was
    made."""
    if isinstance(made, tuple):
        finding, text = made  # other processes know the recording by its absolute path
        return finding, text if url_of(name) else text.replace(str(Path(name).absolute()), name)
    found = from_bytes(made, name)
    if found is None:
        return "rank_unreadable", f"{name}: its digest is of another version of gpuprof"
    return replace(found, source=url_of(name) or name)


def _workers(places: Sequence[str | Path]) -> int:
    """Number of processes that fit into free memory."""
    largest = 0
    for place in places:
        try:
            size = Path(place).stat().st_size
        except (OSError, ValueError):
            size = 4 << 20
        largest = max(largest, size * (MOST_PACKED if str(place).endswith(".gz") else 1))
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        free = 4 << 30
    return max(1, free // (WORKER_BYTES + WORKER_PER_RECORDING * largest))
