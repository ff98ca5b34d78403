"""Iterations in TensorBoard's event files: records of a length and a protocol buffer, of which scalars are read.

Formats: TFRecord (length, its masked CRC-32C, data, the data's) and `tensorflow.Event` (event.proto, summary.proto).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gpuprof.tracefile.training_logs.record import LogEntry
from gpuprof.tracefile.training_logs.rows import known
from gpuprof.units import Assumed, Bytes

LARGEST_RECORD_BYTES: Assumed[Bytes] = 64 << 20
"""Longer records, in bytes, are skipped. Scalars take a few dozen bytes, graphs and images more."""
_WALL_TIME, _STEP, _SUMMARY = 1, 2, 5
_VALUE, _TAG, _SIMPLE, _TENSOR = 1, 1, 2, 8
_DTYPE, _CONTENT, _FLOATS, _DOUBLES = 1, 4, 5, 6
_PACKED = {1: "<f", 2: "<d"}
"""Type of a tensor (float, double) → struct format of its numbers."""


def is_event_file(path: Path) -> bool:
    """Whether its name is that of an event file; TensorBoard decides by the name, too."""
    return "tfevents" in path.name


def event_files(path: Path) -> list[Path]:
    """The event files at a path: itself, or those in the folder, oldest first. Raises OSError."""
    if not path.is_dir():
        return [path] if is_event_file(path) else []
    return sorted((one for one in path.iterdir() if is_event_file(one) and one.is_file()), key=lambda one: one.name)


def event_entries(path: Path) -> Iterator[LogEntry]:
    """The scalars of an event file with a framework's names, one at a time. A file that is still being written may end
    within a record; complete records are read. Raises OSError."""
    with path.open("rb") as file:
        for record in _records(file):
            try:
                yield from _scalars(record)
            except (IndexError, struct.error, ValueError):
                continue


def _records(file: BinaryIO) -> Iterator[bytes]:
    while len(head := file.read(12)) == 12:
        length, check = struct.unpack("<QI", head)
        if _masked(_crc32c(head[:8])) != check:
            return
        if length > LARGEST_RECORD_BYTES:
            file.seek(length + 4, 1)
            continue
        record = file.read(length + 4)
        if len(record) < length + 4:
            return
        yield record[:length]


def _scalars(event: bytes) -> Iterator[LogEntry]:
    wall_time, step, summaries = None, 0, []
    for field, value in _fields(event):
        if field == _WALL_TIME and isinstance(value, bytes):
            wall_time = struct.unpack("<d", value)[0]
        elif field == _STEP and isinstance(value, int):
            step = value
        elif field == _SUMMARY and isinstance(value, bytes):
            summaries.append(value)
    at_s = wall_time if wall_time is not None and math.isfinite(wall_time) else None
    values: dict[str, float] = {}
    for summary in summaries:
        for field, value in _fields(summary):
            if field == _VALUE and isinstance(value, bytes) and (found := _scalar(value)) is not None:
                values[found[0]] = found[1]
    named = known(values)
    if named and step < 1 << 53:
        yield LogEntry(step, named, at_s)


def _scalar(value: bytes) -> tuple[str, float] | None:
    tag, number = None, None
    for field, content in _fields(value):
        if field == _TAG and isinstance(content, bytes):
            tag = content.decode("utf-8", "replace")
        elif field == _SIMPLE and isinstance(content, bytes):
            number = struct.unpack("<f", content)[0]
        elif field == _TENSOR and isinstance(content, bytes):
            number = _of_tensor(content)
    return (tag, number) if tag is not None and number is not None and math.isfinite(number) else None


def _of_tensor(tensor: bytes) -> float | None:
    """The number in a tensor of one element; None for any other tensor."""
    dtype, numbers = 0, b""
    for field, content in _fields(tensor):
        if field == _DTYPE and isinstance(content, int):
            dtype = content
        elif field in (_CONTENT, _FLOATS, _DOUBLES) and isinstance(content, bytes):
            numbers += content
    packed = _PACKED.get(dtype)
    if packed is None or len(numbers) != struct.calcsize(packed):
        return None
    return struct.unpack(packed, numbers)[0]


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(number, value) of a message's fields; fixed and delimited ones as bytes. Raises IndexError if the message is
    cut, ValueError if it is not a message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
            continue
        if kind == 2:
            length, at = _varint(message, at)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of kind {kind}")
        if at + length > len(message):
            raise IndexError("a field is cut")
        yield key >> 3, message[at : at + length]
        at += length


def _varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = message[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
    raise ValueError("a number of more than 64 bits")


def _table() -> tuple[int, ...]:
    found = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        found.append(byte)
    return tuple(found)


_TABLE = _table()


def _crc32c(data: bytes) -> int:
    found = 0xFFFFFFFF
    for byte in data:
        found = found >> 8 ^ _TABLE[(found ^ byte) & 255]
    return found ^ 0xFFFFFFFF


def _masked(check: int) -> int:
    return ((check >> 15 | check << 17) + 0xA282EAD8) & 0xFFFFFFFF
