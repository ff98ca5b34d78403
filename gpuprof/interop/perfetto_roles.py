"""Writes the roles of a job as a Chrome trace: each is a process with its phases and waits, and an arrow leads from the
awaited span to the end of each wait. Times are relative to the window's start."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from gpuprof.diagnosis.roles.model import WAITING, Role, Roles, Span
from gpuprof.interop.perfetto import write_events
from gpuprof.interop.trace_events import json_text

PHASES, WAITS = 1, 2
"""A role's two lanes. Thread numbers are unique in the file: viewers merge threads of the same number."""


def write_perfetto_roles(found: Roles, file: BinaryIO) -> int:
    """Writes the gzipped file; returns the number of events."""
    from gpuprof import __version__

    head = {
        "exporter": f"gpuprof {__version__}", "schemaVersion": 1, "displayTimeUnit": "ns",
        "baseTimeNanoseconds": found.start_unix_ns,
        "otherData": {"recordings": {one.role: Path(one.source).name for one in found.roles}, "verdict": found.limit},
    }  # fmt: skip
    return write_events(head, _events(found), file)


def _events(found: Roles) -> Iterator[list[str]]:
    pids = {role.role: i for i, role in enumerate(found.roles, start=1)}
    ends = {(role.role, one.start_ns): one.end_ns for role in found.roles for one in role.lane}
    arrows = 0
    for role in found.roles:
        pid = pids[role.role]
        yield list(_names(role, pid))
        yield [_complete(one, pid, found) for one in role.lane]
        for one in role.lane:
            if one.awaited is None or (end_ns := ends.get((one.awaited.role, one.awaited.start_ns))) is None:
                continue
            arrows += 1
            # Each end of an arrow lies in the span that it belongs to, and an arrow does not go back in time.
            last = one.end_ns - 1
            yield [
                _arrow("s", arrows, pids[one.awaited.role], PHASES, min(end_ns - 1, last)),
                _arrow("f", arrows, pid, WAITS, last),
            ]


def _names(role: Role, pid: int) -> Iterator[str]:
    program = f" · {role.program}" if role.program else ""
    for what, lane, args in (
        ("process_name", 0, f'{{"name":{json_text(role.role + program)}}}'),
        ("process_sort_index", 0, f'{{"sort_index":{pid}}}'),
        ("thread_name", PHASES, '{"name":"phases"}'),
        ("thread_name", WAITS, '{"name":"waits"}'),
    ):
        yield f'{{"ph":"M","name":"{what}","pid":{pid},"tid":{_tid(pid, lane)},"ts":0,"args":{args}}}'


def _complete(one: Span, pid: int, found: Roles) -> str:
    waits = one.phase == WAITING
    args: dict[str, Any] = {"share of the window": round(one.ns / found.window_ns, 6)}
    name = one.phase
    if one.awaited is not None:
        name = f"waits for the {one.awaited.role}'s {one.awaited.phase}"
        args |= {"role": one.awaited.role, "phase": one.awaited.phase}
    times = f'"ts":{_micros(one.start_ns)},"dur":{_micros(one.ns)}'
    lane, category = (WAITS, "wait") if waits else (PHASES, "phase")
    named = f'"name":{json_text(name)},"cat":"{category}"'
    return f'{{"ph":"X",{named},"pid":{pid},"tid":{_tid(pid, lane)},{times},"args":{json.dumps(args)}}}'


def _tid(pid: int, lane: int) -> int:
    return 0 if not lane else 2 * (pid - 1) + lane


def _arrow(ph: str, number: int, pid: int, lane: int, ns: int) -> str:
    more = ',"bp":"e"' if ph == "f" else ""
    where = f'"id":{number},"pid":{pid},"tid":{_tid(pid, lane)},"ts":{_micros(ns)}'
    return f'{{"ph":"{ph}"{more},"cat":"waits","name":"waits for",{where}}}'


def _micros(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
