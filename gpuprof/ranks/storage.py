"""Digests on disk or in an object store: one .npz each, columns as they are and the rest as JSON."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from dataclasses import fields
from typing import Any

import numpy as np

from gpuprof.errors import UnreadableTrace
from gpuprof.ranks.digest_data import VERSION, Digest, Doing, Labels, Own, Rows, Ways

FORMAT = "gpuprof.digest"
_PLAIN = (
    "source", "rank", "world_size", "host", "gpus", "gpu", "clock_ns", "begin_ns", "looped", "groups", "dtypes",
    "host_pace", "fit", "notes",
)  # fmt: skip


def to_bytes(digest: Digest, key: str = "") -> bytes:
    """`key`: what the recording was when the digest was made (size, time of change); `from_bytes` compares it."""
    head = {name: getattr(digest, name) for name in _PLAIN}
    head |= {"format": FORMAT, "version": VERSION, "key": key}
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
    """None for a digest of another version or, where `key` is given, of another state of its recording. Raises
    UnreadableTrace, one line, for what is no digest."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            head: dict[str, Any] = json.loads(bytes(file["head"]))
            if head.get("format") != FORMAT:
                raise UnreadableTrace(f"{name} is no digest of a rank: give the recording, or delete the file")
            if head["version"] != VERSION or (key is not None and head["key"] != key):
                return None
            tables: dict[str, Any] = {
                table: kind(**{f.name: file[f"{table}.{f.name}"] for f in fields(kind)})
                for table, kind in (("rows", Rows), ("recorded", Ways), ("unprofiled", Labels))
            }
            plain = {one: head[one] for one in _PLAIN}
            plain |= {"groups": tuple(head["groups"]), "dtypes": tuple(head["dtypes"])}
            return Digest(
                **(plain | {"notes": tuple((a, b) for a, b in head["notes"])}),
                **tables,
                step_begin_ns=file["step_begin_ns"],
                removed_ns=file["removed_ns"],
                own=Own(**head["own"]),
                doings=tuple(Doing(**one) for one in head["doings"]),
            )
    except (KeyError, ValueError, TypeError, EOFError, OSError, zipfile.BadZipFile):
        raise UnreadableTrace(f"{name} is no digest of a rank, or is damaged: delete it, it is made again") from None


def _number(value: Any) -> Any:
    """numpy's numbers as Python's."""
    return value.item()
