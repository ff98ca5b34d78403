"""The digests of many ranks: in parallel where joblib is installed, and made once for each state of a recording."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

from gpuprof.diagnosis.rank_digest import digest_of_trace
from gpuprof.errors import UnreadableTrace
from gpuprof.ranks.digest_data import Digest
from gpuprof.ranks.storage import from_bytes, to_bytes
from gpuprof.tracefile.read import read_trace
from gpuprof.tracefile.remote import fetched, state_of, url_of
from gpuprof.tracefile.trace import Trace

Note = tuple[str, str]
MANY = 8
"""Recordings from which on digests are kept and made in parallel: a worker takes 0.4 s to start."""
WORKER_BYTES, TIMES_SIZE = 100 << 20, 4
"""Memory of a worker: its imports, and this many times the size of an unpacked recording (160 MB over one of 40 MB)."""
PACKED = 12
"""How many times as large a gzipped recording is unpacked, at most."""


def digests_of(
    places: Sequence[str | Path], read: Callable[[Path], Trace], step: str | None = None, skip: int = 0
) -> list[Digest | Note]:
    """One digest per path or URL, in their order, or (id, sentence) where there can be none.

    Of MANY and more, digests are kept in `cache_folder()`, and joblib makes them: with as many processes as cores and
    memory allow, or as the caller's `joblib.parallel_config` says (Dask, Ray). Fewer are read here, with `read`.
    """
    if len(places) < MANY and not any(url_of(place) for place in places):
        return [digest_of_trace(Path(place), read, step, skip) for place in places]
    arguments = [(os.fspath(place), step, skip) for place in places]
    try:
        import joblib
    except ImportError:
        return [_digest(made, one[0]) for one in arguments for made in (make(*one),)]
    if len(places) < MANY:
        return [_digest(make(*one), one[0]) for one in arguments]
    # Without a backend of the caller's own, no more processes than fit into memory.
    backend, _ = joblib.parallel.get_active_backend()
    local = type(backend).__name__ in ("LokyBackend", "MultiprocessingBackend", "SequentialBackend", "ThreadingBackend")
    workers = min(_workers(places), joblib.effective_n_jobs(-1)) if local else None
    made = list(joblib.Parallel(n_jobs=workers)(joblib.delayed(make)(*one) for one in arguments))
    return [_digest(one, argument[0]) for one, argument in zip(made, arguments, strict=True) if one is not None]


def make(place: str, step: str | None, skip: int) -> bytes | Note:
    """One digest, packed: from the cache, or made and put there. Runs in a process of its own."""
    url = url_of(place)
    kept, key = _kept(url or place, step, skip)
    if kept is not None and key:
        try:
            data = kept.read_bytes()
            if from_bytes(data, str(kept), key) is not None:
                return data
        except (OSError, UnreadableTrace):
            pass
    try:
        if url is None:
            found = digest_of_trace(Path(place), read_trace, step, skip)
        else:
            with fetched(url) as path:
                found = digest_of_trace(path, read_trace, step, skip, source=url)
    except UnreadableTrace as error:
        return "rank_unreadable", str(error)
    if not isinstance(found, Digest):
        return found
    data = to_bytes(found, key)
    if kept is not None and key:
        _keep(kept, data)
    return data


def cache_folder() -> Path:
    """Where digests are kept: `GPUPROF_CACHE`, else gpuprof in the user's cache folder."""
    own = os.environ.get("GPUPROF_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser())
    return (Path(own) if own else base / "gpuprof") / "digests"


def _kept(place: str, step: str | None, skip: int) -> tuple[Path | None, str]:
    """Where the digest of a recording is kept, and the state of the recording that it is of."""
    if url_of(place):
        state = state_of(place)
    else:
        try:
            found = Path(place).stat()
            place, state = str(Path(place).resolve()), f"{found.st_size} {found.st_mtime_ns}"
        except (OSError, ValueError, RuntimeError):
            return None, ""
    try:
        folder = cache_folder()
    except RuntimeError:  # no one's home
        return None, ""
    name = hashlib.sha256(f"{place}\0{step}\0{skip}".encode()).hexdigest()[:32]
    return folder / f"{name}.npz", state


def _keep(path: Path, data: bytes) -> None:
    """Writes the digest, if that is possible: what cannot be kept is made again."""
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)


def _digest(made: bytes | Note, name: str) -> Digest | Note:
    if isinstance(made, tuple):
        return made
    found = from_bytes(made, name)
    if found is None:
        return "rank_unreadable", f"{name}: its digest is of another version of gpuprof"
    return found


def _workers(places: Sequence[str | Path]) -> int:
    """Processes that fit into the free memory."""
    largest = 0
    for place in places:
        try:
            size = Path(place).stat().st_size
        except (OSError, ValueError):
            size = 4 << 20
        largest = max(largest, size * (PACKED if str(place).endswith(".gz") else 1))
    try:
        free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        free = 4 << 30
    return max(1, free // (WORKER_BYTES + TIMES_SIZE * largest))
