"""How the peaks of two snapshots differ."""

from __future__ import annotations

import dataclasses

from gpuprof.memory.memory_report import Difference, LineDifference, MemoryReport, OwnerDifference, ReportedDevice


def with_difference(before: MemoryReport, after: MemoryReport, lines: int) -> MemoryReport:
    """The report of the second snapshot, with the difference of its peak from the first one's.

    The device with the second snapshot's highest peak is compared. Both must have been analysed with all their lines:
    a line that one of them lacks holds nothing there. lines: how many are kept.
    """
    new = after.devices[0]
    old = next((device for device in before.devices if device.device == new.device), before.devices[0])
    owners = _owners(old, new)
    total = [sum(getattr(one, side) for one in owners) for side in ("before_bytes", "after_bytes")]
    found = Difference(
        before=before.source,
        device=new.device,
        before_bytes=total[0],
        after_bytes=total[1],
        bytes=total[1] - total[0],
        owners=owners,
        lines=_lines(old, new)[:lines],
    )
    return dataclasses.replace(after, difference=found, devices=tuple(_cut(device, lines) for device in after.devices))


def _cut(device: ReportedDevice, lines: int) -> ReportedDevice:
    """The device with its largest lines only."""
    peak = device.peak
    rest = peak.lines_rest_bytes + sum(line.bytes for line in peak.lines[lines:])
    return dataclasses.replace(device, peak=dataclasses.replace(peak, lines=peak.lines[:lines], lines_rest_bytes=rest))


def _owners(old: ReportedDevice, new: ReportedDevice) -> tuple[OwnerDifference, ...]:
    held = [{one.owner: one.bytes for one in device.peak.owners} for device in (old, new)]
    if old.peak.reserved_bytes is None or new.peak.reserved_bytes is None:  # then only allocated bytes can be compared
        for side in held:
            side.pop("unused", None)
    names = dict.fromkeys([*held[1], *held[0]])
    rows = [
        OwnerDifference(name, held[0].get(name, 0), held[1].get(name, 0), held[1].get(name, 0) - held[0].get(name, 0))
        for name in names
    ]
    return tuple(sorted(rows, key=lambda row: -abs(row.bytes)))


def _lines(old: ReportedDevice, new: ReportedDevice) -> tuple[LineDifference, ...]:
    held: dict[tuple[str, str | None, int | None, str | None], list[int]] = {}
    for side, device in enumerate((old, new)):
        for line in device.peak.lines:
            both = held.setdefault((line.owner, line.file, line.line, line.function), [0, 0])
            both[side] += line.bytes
    rows = [LineDifference(*key, before, after, after - before) for key, (before, after) in held.items()]
    return tuple(sorted((row for row in rows if row.bytes), key=lambda row: -abs(row.bytes)))
