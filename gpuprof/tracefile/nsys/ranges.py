"""NVTX: ranges that the user or a library put around code, and ops if torch marked them (`emit_nvtx`).
A range is an annotation. It is an op if its text says so (`aten::mm, op_id = 12`), or if `nsys --pytorch` made it.
"""

from __future__ import annotations

import json

import numpy as np

from gpuprof.tracefile.nsys import names
from gpuprof.tracefile.nsys.cpu_activity import OtherColumns, other
from gpuprof.tracefile.nsys.database import Database
from gpuprof.tracefile.nsys.processes import ExportedProcess, Threads, key_of
from gpuprof.tracefile.nsys.strings import Strings
from gpuprof.tracefile.trace import ABSENT, ANNOTATION, AUTOGRAD_ENGINE, I64, NO_TEXT, OP, Ops

TABLE = "NVTX_EVENTS"
MARK, PUSH_POP, START_END, DOMAIN = 34, 59, 60, 75
NVTX_MARK = "nvtx_mark"
"""Category of `Other`."""
OP_DOMAIN = "PyTorch"
"""Domain of the functions that `nsys --pytorch` wraps."""
_PAYLOADS = ("uint64Value", "int64Value", "uint32Value", "int32Value")


def read_ranges(
    database: Database, process: ExportedProcess, strings: Strings, threads: Threads
) -> tuple[Ops, OtherColumns]:
    """The ranges of a process as ops and annotations, by start, and its marks.
    A range without an end, cut by the recording, lasts until the last range ends.
    """
    columns = ("start", "end", "eventType", "globalTid", "textId", "domainId", *_PAYLOADS)
    found = database.numbers(TABLE, columns)
    texts = database.texts(TABLE, "text") or [None] * len(found["start"])
    rows = np.flatnonzero((key_of(found["globalTid"]) == process.key) & (found["start"] != ABSENT))
    rows = rows[rows < len(texts)]
    text = {
        row: texts[row] if texts[row] is not None else strings.stored(int(found["textId"][row]))
        for row in rows.tolist()
    }
    of_ops = _op_domains(found, text)
    marks = rows[found["eventType"][rows] == MARK]
    ranges = rows[np.isin(found["eventType"][rows], (PUSH_POP, START_END))]
    ranges = ranges[[text[row] is not None for row in ranges.tolist()]] if len(ranges) else ranges
    found["end"] = _closed(found, ranges)
    ranges = ranges[np.lexsort((-found["end"][ranges], found["start"][ranges]))]
    begun, thread = found["start"][marks], threads.host(found["globalTid"][marks])
    named = np.array([strings.id(text[row] or "") for row in marks.tolist()], np.int32)
    return _ops(found, ranges, text, of_ops, strings, threads), other(strings, NVTX_MARK, named, thread, begun, begun)


def _op_domains(found: dict[str, I64], text: dict[int, str | None]) -> set[int]:
    """Domains whose ranges are ops."""
    return {
        int(found["domainId"][row])
        for row, name in text.items()
        if found["eventType"][row] == DOMAIN and name == OP_DOMAIN
    }


def _closed(found: dict[str, I64], ranges: I64) -> I64:
    """Ends of ranges, with missing ones filled in."""
    ends = found["end"].copy()
    lost = ranges[ends[ranges] == ABSENT]
    if len(lost):
        known = ends[ranges][ends[ranges] != ABSENT]
        last = max(int(known.max()) if len(known) else 0, int(found["start"][ranges].max()))
        ends[lost] = last
    return ends


def _ops(
    found: dict[str, I64], ranges: I64, text: dict[int, str | None], of_ops: set[int], strings: Strings,
    threads: Threads,
) -> Ops:  # fmt: skip
    count = len(ranges)
    kind, name = np.full(count, ANNOTATION, np.uint8), np.empty(count, np.int32)
    sequence, external = np.full(count, ABSENT), np.full(count, ABSENT)
    dims, extra = np.full(count, NO_TEXT, np.int32), np.full(count, NO_TEXT, np.int32)
    domain = found["domainId"][ranges].tolist()
    payload = _payloads(found, ranges)
    nodes = set()
    for i, row in enumerate(ranges.tolist()):
        plain, seq, op_id, sizes = names.op(text[row] or "")
        name[i] = strings.id(plain)
        if op_id is not None or domain[i] in of_ops:
            kind[i] = OP
        if seq is not None:
            sequence[i] = seq
        if op_id is not None:
            external[i] = op_id
        if sizes is not None:
            dims[i] = strings.id(sizes)
        if payload[i] != ABSENT:
            extra[i] = strings.id(json.dumps({"payload": int(payload[i])}))
        if plain.startswith(AUTOGRAD_ENGINE):
            nodes.add(strings.id(plain.removeprefix(AUTOGRAD_ENGINE)))
    # Ops of autograd's engine are named after the node; torch.profiler gives them the thread of their forward, never 0.
    forward = np.where(kind == OP, np.isin(name, list(nodes)).astype(np.int64), ABSENT)
    nothing = np.full(count, NO_TEXT, np.int32)
    return Ops(
        kind=kind,
        name=name,
        thread=threads.host(found["globalTid"][ranges]),
        start_ns=found["start"][ranges],
        end_ns=found["end"][ranges],
        external=external,
        sequence=sequence,
        forward_thread=forward,
        dims=dims,
        types=nothing,
        strides=nothing,
        concrete=nothing,
        stack=nothing,
        extra=extra,
    )


def _payloads(found: dict[str, I64], ranges: I64) -> I64:
    """The number that each range carries, ABSENT where it carries none."""
    payload = np.full(len(ranges), ABSENT)
    for column in _PAYLOADS:
        payload = np.where(payload == ABSENT, found[column][ranges], payload)
    return payload
