"""Digests on disk or in an object store: one .npz each, columns as they are and the rest as JSON."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import zipfile
from dataclasses import fields
from typing import Any

import numpy as np

from gpuprof.errors import UnreadableTrace
from gpuprof.ranks.digest_data import FORMAT_VERSION, LABELS, WORK, Digest, Doing, Labels, Own, Rows, Ways
from gpuprof.timeline.collectives.collectives import KINDS
from gpuprof.units import Assumed, Bytes

FORMAT = "gpuprof.digest"
LARGEST_DIGEST_BYTES: Assumed[Bytes] = 1 << 30
"""Largest unpacked digest; most have less than 1 MB."""
_PLAIN = (
    "source", "rank", "world_size", "host", "gpus", "gpu", "clock_ns", "begin_ns", "looped", "groups", "dtypes",
    "host_pace", "fit", "notes",
)  # fmt: skip


def to_bytes(digest: Digest, key: str = "") -> bytes:
    """`key`: state of the recording when the digest was made (size, modification time), compared by `from_bytes`."""
    head = {name: getattr(digest, name) for name in _PLAIN}
    head |= {"format": FORMAT, "version": FORMAT_VERSION, "key": key}
    head |= {"own": dataclasses.asdict(digest.own), "doings": [dataclasses.asdict(one) for one in digest.doings]}
    columns: dict[str, np.ndarray] = {
        "head": np.frombuffer(json.dumps(head, default=_number).encode(), np.uint8),
        "step_begin_ns": digest.step_begin_ns,
        "removed_ns": digest.removed_ns,
    }
    for table in ("rows", "recorded", "unprofiled"):
        value = getattr(digest, table)
        columns |= {f"{table}.{f.name}": getattr(value, f.name) for f in fields(value)}
    out = io.BytesIO()
    np.savez_compressed(out, allow_pickle=False, **columns)
    return out.getvalue()


def from_bytes(data: bytes, name: str, key: str | None = None) -> Digest | None:
    """None for a digest of another version or, if `key` is given, of another state of its recording. Raises
    UnreadableTrace, one line, if it is not a digest."""
    try:
        _look_for_a_bomb(data)
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            head: dict[str, Any] = json.loads(bytes(file["head"]))
            if head.get("format") != FORMAT:
                raise UnreadableTrace(f"{name} is not a digest of a rank: give the recording, or delete the file")
            if head["version"] != FORMAT_VERSION or (key is not None and head["key"] != key):
                return None
            tables: dict[str, Any] = {
                table: kind(**{f.name: file[f"{table}.{f.name}"] for f in fields(kind)})
                for table, kind in (("rows", Rows), ("recorded", Ways), ("unprofiled", Labels))
            }
            plain = {one: head[one] for one in _PLAIN}
            plain |= {"groups": tuple(head["groups"]), "dtypes": tuple(head["dtypes"])}
            found = Digest(
                **(plain | {"notes": tuple((a, b) for a, b in head["notes"])}),
                **tables,
                step_begin_ns=file["step_begin_ns"],
                removed_ns=file["removed_ns"],
                own=Own(**head["own"]),
                doings=tuple(Doing(**one) for one in head["doings"]),
            )
            _check(found)
            return found
    except UnreadableTrace:
        raise
    except Exception:  # numpy, zipfile and zlib raise many kinds for damage
        raise UnreadableTrace(f"{name} is not a digest of a rank, or is damaged: delete it, it is made again") from None


def _look_for_a_bomb(data: bytes) -> None:
    """Raises ValueError for an archive that unpacks to more than LARGEST_DIGEST_BYTES."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if sum(one.file_size for one in archive.infolist()) > LARGEST_DIGEST_BYTES:
            raise ValueError("too large")


def _check(digest: Digest) -> None:
    """Raises ValueError for a column of wrong length, type or range: the replay uses rows as indices."""
    rows, count = digest.rows, len(digest.rows)
    for column in fields(Rows):
        kind = "f" if column.name in ("expected_ns", "anchor_ns") else "iu"
        _check_column(getattr(rows, column.name), (count,), kind)
    _check_within(rows.group, -1, len(digest.groups))
    _check_within(rows.dtype, -1, len(digest.dtypes))
    _check_within(rows.kind, np.iinfo(np.int32).min, len(KINDS))
    _check_within(rows.step, -1, max(len(digest.step_begin_ns), 1))
    _check_column(digest.step_begin_ns, (len(digest.step_begin_ns),), "fiu")
    _check_column(digest.removed_ns, (count, LABELS), "f")
    for ways in (digest.recorded, digest.unprofiled):
        _check_column(ways.pred, (count, LABELS), "i")
        _check_within(ways.pred, -1 - count, count)
        _check_column(ways.lag_ns, (count, LABELS), "f")
        _check_column(ways.own_ns, (count,), "f")
        if not (np.isfinite(ways.lag_ns).all() and np.isfinite(ways.own_ns).all()):
            raise ValueError("a time that is not a number")
    _check_column(digest.unprofiled.shares, (count, LABELS, len(WORK)), "u")
    _check_column(digest.unprofiled.own_work, (count,), "iu")
    _check_within(digest.unprofiled.own_work, 0, len(WORK))
    texts = (digest.source, *digest.groups, *digest.dtypes, *(text for note in digest.notes for text in note))
    texts += tuple(text for one in digest.doings for text in (one.resource, one.phase, one.what))
    optional = (digest.host, digest.gpu, digest.own.bound, digest.own.cause, *(one.frame for one in digest.doings))
    whole = [digest.gpus, digest.clock_ns, digest.begin_ns]
    whole += [value for one in digest.doings for value in (one.start_ns, one.longest_ns)]
    whole += [value for value in (digest.rank, digest.world_size) if value is not None]
    numbers = [digest.host_pace, digest.fit, digest.own.low, digest.own.high, *(one.ns for one in digest.doings)]
    if not (
        all(isinstance(value, str) for value in texts)
        and all(value is None or isinstance(value, str) for value in optional)
        and all(type(value) is int and abs(value) < 1 << 63 for value in whole)
        and all(type(value) in (int, float) and math.isfinite(value) for value in numbers)
        and isinstance(digest.looped, bool)
    ):
        raise ValueError("a value of another type")


def _check_column(values: np.ndarray, shape: tuple[int, ...], kinds: str) -> None:
    if values.shape != shape or values.dtype.kind not in kinds:
        raise ValueError("a column of another type or length")


def _check_within(values: np.ndarray, least: int, end: int) -> None:
    if values.size and not (least <= int(values.min()) and int(values.max()) < end):
        raise ValueError("an index that is out of bounds")


def _number(value: Any) -> Any:
    """numpy's numbers as Python's."""
    return value.item()
