"""A memory snapshot as columns: per device the allocator's events and the blocks that were active at the end."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpuprof.errors import UnreadableTrace
from gpuprof.memory.unpickle import load
from gpuprof.tracefile.trace import I32, I64
from gpuprof.units import Assumed, Bytes, Code, Convention, Gpus

ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, OOM, OTHER = range(9)
"""What an event is."""

_ACTIONS = {
    "alloc": ALLOC,
    "free_requested": FREE_REQUESTED,
    "free": FREE_REQUESTED,
    "free_completed": FREE_COMPLETED,
    "segment_alloc": SEGMENT_ALLOC,
    "segment_free": SEGMENT_FREE,
    "segment_map": SEGMENT_MAP,
    "segment_unmap": SEGMENT_UNMAP,
    "oom": OOM,
}

ABSENT_TIME: Convention[Code] = -1
NO_STACK: Convention[Code] = -1
"""The stack of memory that was allocated before the recorded history."""

_BAD = (TypeError, ValueError, KeyError, AttributeError, OverflowError, IndexError, RecursionError)
_MOST_DEVICES: Assumed[Gpus] = 4096
_LARGEST_BYTES: Convention[Bytes] = 1 << 63


class Frame(NamedTuple):
    """One frame of a stack."""

    filename: str
    line: int
    name: str


@dataclass(frozen=True, slots=True)
class Stacks:
    """Every distinct stack once; frames from the innermost outwards."""

    frames: tuple[Frame, ...]
    stacks: tuple[tuple[int, ...], ...]
    """Rows of `frames`. Stack 0 has no frames."""


@dataclass(frozen=True, slots=True)
class Events:
    """What the allocator of one device did, in order."""

    action: I32
    address: I64
    size: I64
    """Bytes that were requested, also if the allocation failed."""
    time_us: I64
    """Microseconds from a fixed moment; ABSENT_TIME where the snapshot does not say."""
    stack: I32
    device_free: I64
    """Of a failed allocation, the bytes that the driver still had; else 0."""

    def __len__(self) -> int:
        return len(self.action)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Memory in use when the snapshot was taken."""

    address: I64
    size: I64
    """Requested bytes."""
    awaiting: np.ndarray
    """Mask of blocks that were freed and that another stream may still use."""
    stack: I32


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """One device's part of a snapshot."""

    device: int
    events: Events
    blocks: Blocks
    reserved_bytes: int | None
    """Bytes of all segments at the end; None if the snapshot has none."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A memory snapshot."""

    path: str
    bytes: int
    stacks: Stacks
    devices: tuple[DeviceMemory, ...]
    """Those that have events or segments."""


def read_snapshot(path: str | os.PathLike[str]) -> Snapshot:
    """The snapshot in a file. Raises UnreadableTrace, one line, if it is not one."""
    place = Path(path)
    data = load(place)
    try:
        found = from_data(data, str(path), place.stat().st_size)
    except _BAD:
        raise UnreadableTrace(
            f"{path} is a pickle, but not a memory snapshot: torch.cuda.memory._dump_snapshot writes one"
        ) from None
    if not found.devices:
        raise UnreadableTrace(f"{path} is an empty memory snapshot: no device has an event or a segment in it")
    return found


def from_data(data: Any, path: str = "", size: int = 0) -> Snapshot:
    """A snapshot's plain data as columns. Raises what plain data of another shape raises (TypeError, KeyError …).

    data: {"segments": [...], "device_traces": [[...], ...]}, or the list of segments alone, as older versions of
    torch wrote it. It is left as it is, and must stay alive until this returns.
    """
    if isinstance(data, list):
        data = {"segments": data}
    if not isinstance(data, dict) or not ("segments" in data or "device_traces" in data):
        raise TypeError("no snapshot")
    has_segments = "segments" in data
    segments: dict[int, list[dict[str, Any]]] = {}
    for segment in data.get("segments", ()):
        segments.setdefault(int(segment.get("device", 0)), []).append(segment)
    traces = data.get("device_traces", ())
    if max(len(traces), max(segments, default=0)) > _MOST_DEVICES or min(segments, default=0) < 0:
        raise ValueError("not the number of a device")
        # A small file may refer to one list many times, and each counts in full.
    rows = sum(map(len, traces)) + sum(len(segment["blocks"]) for own in segments.values() for segment in own)
    if size and rows > size:
        raise ValueError("more events than the file has bytes")
    interned = _Interned()
    devices = []
    for device in range(max(len(traces), max(segments, default=-1) + 1)):
        entries = traces[device] if device < len(traces) else ()
        own = segments.get(device, [])
        if len(entries) or own:
            reserved = sum(int(segment["total_size"]) for segment in own) if has_segments else None
            if reserved is not None and not 0 <= reserved < _LARGEST_BYTES:
                raise ValueError("not a number of bytes")
            devices.append(DeviceMemory(device, _events(entries, interned), _blocks(own, interned), reserved))
    return Snapshot(path, size, interned.stacks(), tuple(devices))


def _events(entries: Sequence[dict[str, Any]], interned: _Interned) -> Events:
    count = len(entries)

    def numbers(values: Iterable[int]) -> I64:
        return np.fromiter(values, np.int64, count)

    action = np.fromiter(
        (_ACTIONS.get(_text(name), OTHER) for name in map(itemgetter("action"), entries)), np.int32, count
    )
    size = numbers(map(itemgetter("size"), entries))
    if count and (size < 0).any():
        raise ValueError("a size below 0")
    return Events(
        action=action,
        address=numbers(entry.get("addr", 0) for entry in entries),
        size=size,
        time_us=numbers(entry.get("time_us", ABSENT_TIME) for entry in entries),
        stack=np.fromiter(map(interned.stack, (entry.get("frames") for entry in entries)), np.int32, count),
        device_free=numbers(entry.get("device_free", 0) for entry in entries),
    )


def _blocks(segments: list[dict[str, Any]], interned: _Interned) -> Blocks:
    address: list[int] = []
    size: list[int] = []
    awaiting: list[bool] = []
    stack: list[int] = []
    for segment in segments:
        at = int(segment.get("address") or 0)
        for block in segment["blocks"]:
            state = block["state"]
            if state.startswith("active"):
                history = block.get("history") or [{}]  # as torch 2.0 wrote it
                address.append(block.get("address", at))
                size.append(block.get("requested_size", history[0].get("real_size", block["size"])))
                awaiting.append(state != "active_allocated")
                stack.append(interned.stack(block.get("frames", history[0].get("frames"))))
            at = int(block.get("address", at)) + int(block["size"])
    return Blocks(
        np.array(address, np.int64), np.array(size, np.int64), np.array(awaiting, bool), np.array(stack, np.int32)
    )


def _text(value: Any) -> str:
    """A string as it is. Raises TypeError for anything else: to print or hash lists that contain each other many times
    may take forever."""
    if not isinstance(value, str):
        raise TypeError("no text")
    return value


class _Interned:
    """Numbers frames and stacks. Objects are looked up by identity first, as a pickle shares the frames."""

    def __init__(self) -> None:
        self._frame_of_object: dict[int, int] = {}
        self._frames: dict[Frame, int] = {}
        self._stack_of_object: dict[int, int] = {}
        self._stack_of_identities: dict[tuple[int, ...], int] = {}
        self._stacks: dict[tuple[int, ...], int] = {(): 0}

    def stack(self, frames: list[dict[str, Any]] | None) -> int:
        """The number of a stack; 0 for one without frames."""
        if not frames:
            return 0
        known = self._stack_of_object.get(id(frames))
        if known is not None:
            return known
        identities = tuple(map(id, frames))
        number = self._stack_of_identities.get(identities)
        if number is None:
            rows = tuple(map(self._frame, frames))
            number = self._stacks.setdefault(rows, len(self._stacks))
            self._stack_of_identities[identities] = number
        self._stack_of_object[id(frames)] = number
        return number

    def _frame(self, frame: dict[str, Any]) -> int:
        known = self._frame_of_object.get(id(frame))
        if known is None:
            row = Frame(_text(frame["filename"]), int(frame["line"]), _text(frame["name"]))
            known = self._frames.setdefault(row, len(self._frames))
            self._frame_of_object[id(frame)] = known
        return known

    def stacks(self) -> Stacks:
        return Stacks(tuple(self._frames), tuple(self._stacks))
