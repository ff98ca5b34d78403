"""Files in a run folder that are damaged, too large for their kind, or not files at all."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.cpu_time import times_as_long
from helpers.rank_program import RankProgram, write

from gpuprof import runfile
from gpuprof.diagnosis.ranks.rank_digest import digest_of_trace
from gpuprof.diagnosis.ranks.rank_digests import digest_path, digests_of, write_digest
from gpuprof.errors import UnreadableTrace
from gpuprof.memory.snapshot import read_snapshot
from gpuprof.ranks.digest_data import Digest
from gpuprof.tracefile.nsys.reader import pids_in
from gpuprof.tracefile.read import read_trace


def nested(depth: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(depth):
        found = [found] * 10
    return found


def event(**more: Any) -> dict[str, Any]:
    return {"action": "alloc", "addr": 1, "size": 512, "frames": [], **more}


EVENTS = [event()] * 30_000
SNAPSHOTS = {
    "a device far away": {"segments": [{"device": 10**10, "total_size": 1, "blocks": []}]},
    "a device below 0": {"segments": [{"device": -(10**10), "total_size": 1, "blocks": []}]},
    "shared events": {"device_traces": [EVENTS] * 4000},
    "shared blocks": {"segments": [{"total_size": 1, "blocks": EVENTS}] * 4000},
    "a name of nested lists": {"device_traces": [[event(frames=[{"filename": nested(40), "line": 1, "name": "f"}])]]},
    "more bytes than there are": {"segments": [{"total_size": 10**30, "blocks": []}]},
}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_small_snapshot_cannot_take_long(tmp_path: Path, name: str) -> None:
    path = tmp_path / "memory.rank0.pickle"
    path.write_bytes(pickle.dumps(SNAPSHOTS[name]))
    sound = tmp_path / "memory.rank1.pickle"
    sound.write_bytes(pickle.dumps({"device_traces": [[event(addr=512 * i) for i in range(30_000)]]}))

    def refused() -> None:
        with pytest.raises(UnreadableTrace, match="not a memory snapshot"):
            read_snapshot(path)

    assert times_as_long(refused, lambda: read_snapshot(sound), 2) < 3


@pytest.mark.parametrize("data", [
    b"\x80\x04]r\xff\xff\xff\x1f.", b"\x80\x04]p536870911\n.", b"\x80\x04\x8f.", b"\x80\x04X\xff\xff\xff\xff.",
    b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\x7f.", b"\x80\x04]", b"\x80\x04]r\xff",
])  # fmt: skip
def test_a_pickle_asks_for_no_more_memory_than_its_size_explains(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "memory.rank0.pickle"
    path.write_bytes(data)
    with pytest.raises(UnreadableTrace, match="damaged or was cut off"):
        read_snapshot(path)


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
def test_every_protocol_with_a_head_is_read(tmp_path: Path, protocol: int) -> None:
    path = tmp_path / "memory.rank0.pickle"
    frames = [{"filename": f"{n}.py", "line": n, "name": "f" * n} for n in range(400)]
    events = [event(frames=[frame], addr=n << 40, more=(0, n, 1.5, None, True, "é")) for n, frame in enumerate(frames)]
    path.write_bytes(pickle.dumps({"device_traces": [events]}, protocol))
    assert len(read_snapshot(path).devices[0].events) == 400


@pytest.mark.timeout(20)
def test_a_pipe_is_never_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    assert runfile.read_json(pipe) is None
    assert list(runfile.read_lines(pipe)) == []
    with pytest.raises(OSError, match="pipe or a device"):
        runfile.open_regular(pipe)
    with pytest.raises((UnreadableTrace, OSError)):
        pids_in(pipe)


def test_a_folder_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        runfile.open_regular(tmp_path)


def changed(data: bytes, **columns: Any) -> bytes:
    with np.load(io.BytesIO(data)) as file:
        all_columns = {name: file[name] for name in file.files}
    for name, change in columns.items():
        name = name.replace("__", ".")
        all_columns[name] = change(all_columns[name])
    out = io.BytesIO()
    np.savez_compressed(out, **all_columns)
    return out.getvalue()


CHANGES = {
    "a row that there is not": {"recorded__pred": lambda one: one + 10**6},
    "too few rows": {"rows__group": lambda one: one[:-1]},
    "text": {"rows__kind": lambda one: one.astype(str)},
    "no number": {"unprofiled__lag_ns": lambda one: one * np.nan},
    "a group that there is not": {"rows__group": lambda one: one + 10**4},
    "another shape": {"unprofiled__shares": lambda one: one[:, :1]},
    "bytes": {},
    "a pipe": {},
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("name", CHANGES)
def test_a_damaged_digest_is_noted_and_the_recording_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("GPUPROF_CACHE", str(tmp_path / "cache"))
    place = write(tmp_path, [RankProgram(), RankProgram()])[0]
    assert write_digest(place) is None
    path = digest_path(place)
    data = path.read_bytes()
    path.unlink()
    if name == "a pipe":
        os.mkfifo(path)
    else:
        path.write_bytes(data[: len(data) // 2] if name == "bytes" else changed(data, **CHANGES[name]))
    (found,) = digests_of([place], read_trace)
    assert isinstance(found, Digest)
    assert [note[0] for note in found.notes] == ["digest_damaged"]
    made = digest_of_trace(place, read_trace)
    assert isinstance(made, Digest) and np.array_equal(found.rows.group, made.rows.group)
