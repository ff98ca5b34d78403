"""The collectives of one recording: kernels that exchange data with other ranks, and facts about each.

What a collective is comes from the first of three sources that has it: the arguments that NCCL's kernels and their ops
are recorded with (group, elements, type), the range `nccl:all_reduce` around the launch, the kernel's name.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

import msgspec
import numpy as np

from gpuprof.timeline.collectives.point_to_point import COMMS, Arguments, batched, pair_text
from gpuprof.timeline.devices import COMMUNICATE
from gpuprof.timeline.links import Links
from gpuprof.timeline.nesting import climb
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import ABSENT, I32, I64, NO_TEXT, Columns, Trace
from gpuprof.units import Bytes, Published

KINDS = (
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "all_to_all",
    "barrier",
    "broadcast",
    "reduce",
    "send_recv",
    "other",
)
TOGETHER = frozenset(("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier"))
"""Collectives in which every rank needs data from every other, so that none can end before the last rank arrives."""
UNKNOWN_GROUP = ""
"""Group of a collective that cannot be matched, although others of the recording name theirs."""
_KIND = {name.replace("_", ""): code for code, name in enumerate(KINDS)}
_IN_NAME = re.compile(
    r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|barrier|broadcast|send_?recv|send|recv|reduce)",
    re.IGNORECASE,
)
_SAYS_NOTHING = ("default_pg", "undefined", "mesh_default")
_SEND_RECV = KINDS.index("send_recv")
_RANGE = re.compile(r"^(nccl|rccl):")
_ELEMENT_BYTES: Published[dict[str, Bytes]] = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "long": 8, "int": 4, "short": 2, "char": 1, "byte": 1, "bool": 1,
    "longint": 8, "unsignedchar": 1, "signedchar": 1, "shortint": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class CollectiveColumns(Columns):
    """One row per kernel of a collective, in order of start. Texts are ids into `texts`."""

    row: I64
    """Row of the GPU event."""
    kind: I32
    """Index into KINDS."""
    group: I32
    """Text: process group and its ranks, or the pair of a send and receive (`p2p_text`). If no collective of the
    recording names its group, the number of its communicating stream; UNKNOWN_GROUP if only this one does not name it
    and its stream does not show it."""
    dtype: I32
    group_size: I64
    """Ranks that take part; ABSENT where not known."""
    bytes: I64
    """The larger of what a rank gives and what it gets; ABSENT where not known."""
    sequence: I64
    """Number within its group, from 0, in order of start."""
    recorded_sequence: I64
    """`Seq` of the process group, the same on all ranks (torch after 2.11); ABSENT where not recorded."""
    step: I64
    """Step in which it was launched, -1 outside the window."""
    start_ns: I64
    end_ns: I64


@dataclass(frozen=True, slots=True)
class Collectives:
    """The collectives of one trace, free of the trace itself."""

    columns: CollectiveColumns
    texts: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.columns)


def find_collectives(timeline: Timeline) -> Collectives:
    """All collectives of the trace, including those outside the window: other ranks' windows may be elsewhere."""
    trace, links = timeline.trace, timeline.links
    gpu = trace.gpu
    rows = np.flatnonzero(timeline.kind == COMMUNICATE)
    rows = rows[np.lexsort((rows, gpu.start_ns[rows]))]
    texts: dict[str, int] = {}

    def text_id(text: str) -> int:
        return texts.setdefault(text, len(texts))

    scope = links.scope[rows]
    named = trace.rows_named(trace.ops.name, _RANGE.search)
    around = climb(scope, timeline.nesting.parent, named)
    stream = _streams(timeline, rows)
    n = len(rows)
    kind, dtype = (np.zeros(n, np.int32) for _ in range(2))
    groups: list[str] = []
    size, moved, recorded = (np.full(n, ABSENT) for _ in range(3))
    own = [_said(trace, int(links.op[row]), int(row)) for row in rows]  # some thousand collectives at most
    one_to_one = _sends_and_receives(trace, links, rows, own)
    for i, row in enumerate(rows.tolist()):
        parts = one_to_one.get(i, [])
        said = own[i] or (parts[0] if parts else {})
        range_row = int(around[i])
        range_name = trace.strings[trace.ops.name[range_row]] if range_row >= 0 else ""
        name = said.get("Collective name") or _RANGE.sub("", range_name) or trace.strings[gpu.name[row]]
        kind[i] = _kind(name, trace.strings[gpu.name[row]])
        pair = pair_text(trace.meta.rank, parts)
        groups.append(pair or _one_group(said))
        element, elements, size[i] = said.get("dtype"), _most_elements(said), _whole(said.get("Group size")) or ABSENT
        if pair:  # the recorded number counts sends and receives of all ranks of the group
            size[i], elements = 2, _most_exchanged(parts)
        elif _whole(said.get("Seq")) is not None:
            recorded[i] = said["Seq"]
        if elements is None and range_row >= 0:
            element, elements = _range_elements(trace, range_row)
        dtype[i] = text_id(str(element or ""))
        width = _ELEMENT_BYTES.get(str(element).replace("c10::", "").replace(" ", "").lower())
        if elements is not None and width is not None:
            moved[i] = elements * width
    group = np.array([text_id(text) for text in _by_stream(groups, stream)], np.int32)
    return Collectives(
        CollectiveColumns(
            row=rows, kind=kind, group=group, dtype=dtype, group_size=size, bytes=moved, sequence=_counted(group),
            recorded_sequence=recorded,
            step=_steps(timeline, rows), start_ns=gpu.start_ns[rows], end_ns=gpu.end_ns[rows],
        ),
        tuple(texts),
    )  # fmt: skip


def _sends_and_receives(trace: Trace, links: Links, rows: I64, own: list[Arguments]) -> dict[int, list[Arguments]]:
    """Per kernel of sends and receives, by its index in `rows`, the arguments of each; `own`: what the kernels and
    their ops say."""
    bare = []
    found: dict[int, list[Arguments]] = {}
    for i, said in enumerate(own):
        if "Dst Rank" in said or "Src Rank" in said:
            found[i] = [said]
        elif not said and _kind("", trace.strings[trace.gpu.name[rows[i]]]) == _SEND_RECV:
            bare.append(i)
    if bare:
        comms = np.flatnonzero(trace.rows_named(trace.ops.name, COMMS.__eq__))
        said_by = {row: _arguments(trace, int(trace.ops.extra[row])) for row in comms.tolist()}
        announced = [row for row, said in said_by.items() if "Dst Rank" in said or "Src Rank" in said]
        at = np.array(bare, np.int64)
        of = batched(trace, announced, links.op[rows], at, links.thread[rows[at]], links.begun_ns[rows[at]])
        found.update({i: [said_by[op] for op in ops] for i, ops in of.items()})
    return found


def _one_group(said: Arguments) -> str:
    """Name, ranks and description of the process group that the arguments name; UNKNOWN_GROUP where they name none."""
    ranks, name = said.get("Process Group Ranks"), said.get("Process Group Name")
    if not ranks and not name:
        return UNKNOWN_GROUP
    described = str(said.get("Process Group Description") or "")
    described = "" if described in _SAYS_NOTHING else "_".join(described.split())
    return " ".join(filter(None, (str(name or ""), _ranks_text(ranks), described)))


def described_as(text: str) -> str:
    """The description of a process group, such as `mesh_tp`; empty where it has none."""
    return text.rpartition("] ")[2] if "] " in text else ""


def _by_stream(groups: list[str], stream: I64) -> list[str]:
    """If no collective names its group, the stream replaces it. If some do, one that does not (its launch was not
    recorded) gets the group of the others on its stream, if they all have the same."""
    if not any(groups):
        return [f"stream {one}" for one in stream.tolist()]
    of_stream: dict[int, set[str]] = {}
    for text, one in zip(groups, stream.tolist(), strict=True):
        if text:
            of_stream.setdefault(one, set()).add(text)
    return [
        text or (next(iter(of)) if len(of := of_stream.get(one, set())) == 1 else UNKNOWN_GROUP)
        for text, one in zip(groups, stream.tolist(), strict=True)
    ]


def _streams(timeline: Timeline, rows: I64) -> I64:
    """Which of the streams with collectives each is on, counted in the order of their first one: alike on all ranks."""
    gpu = timeline.trace.gpu
    pairs = np.stack([gpu.device[rows], gpu.stream[rows]], axis=1) if len(rows) else np.empty((0, 2), np.int64)
    _, first, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[inverse.reshape(-1)]


def _steps(timeline: Timeline, rows: I64) -> I64:
    ends = timeline.steps.end_ns
    begun = timeline.links.begun_ns[rows]
    begun = np.where(begun == ABSENT, timeline.trace.gpu.start_ns[rows], begun)
    step = np.searchsorted(ends, begun, side="right")
    inside = (begun >= timeline.window[0]) & (begun < timeline.window[1])
    return np.where(inside, np.minimum(step, len(ends) - 1), -1)


def _counted(group: I32) -> I64:
    number = np.zeros(len(group), np.int64)
    for one in np.unique(group).tolist():
        mine = np.flatnonzero(group == one)
        number[mine] = np.arange(len(mine))
    return number


def _said(trace: Trace, op: int, row: int) -> Arguments:
    """The recorded arguments of a collective's op and kernel."""
    return {
        **_arguments(trace, int(trace.ops.extra[op]) if op >= 0 else NO_TEXT),
        **_arguments(trace, int(trace.gpu.extra[row])),
    }


def _arguments(trace: Trace, text_id: int) -> dict:
    """An event's recorded arguments; empty if they are missing or damaged."""
    text = trace.text(text_id)
    if not text:
        return {}
    try:
        found = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _kind(name: object, kernel: str) -> int:
    """Of the collective's own name first; NCCL runs all-to-all as `SendRecv`."""
    for text in (str(name), kernel):
        match = _IN_NAME.search(text)
        if match:
            plain = match[1].replace("_", "").lower()
            return _KIND[{"send": "sendrecv", "recv": "sendrecv"}.get(plain, plain)]
    return _KIND["other"]


def _ranks_text(ranks: object) -> str:
    return str(ranks).replace(" ", "") if ranks else ""


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _most_elements(said: dict) -> int | None:
    found = [n for n in (_whole(said.get("In msg nelems")), _whole(said.get("Out msg nelems"))) if n is not None]
    return max(found, default=None)


def _most_exchanged(parts: list[Arguments]) -> int | None:
    """Elements that a kernel of sends and receives sends, or receives if those are more."""
    counts = {"Dst Rank": 0, "Src Rank": 0}
    for one in parts:
        counts["Dst Rank" if "Dst Rank" in one else "Src Rank"] += _most_elements(one) or 0
    return max(counts.values()) or None


def _range_elements(trace: Trace, row: int) -> tuple[str | None, int | None]:
    """Type and elements of the tensors of a range: of several tensors their sum."""
    try:
        dims = msgspec.json.decode(trace.text(int(trace.ops.dims[row])) or "[]")
        types = msgspec.json.decode(trace.text(int(trace.ops.types[row])) or "[]")
    except msgspec.DecodeError:
        return None, None
    if not isinstance(dims, list) or not isinstance(types, list):
        return None, None
    shapes = [d for d in dims if isinstance(d, list) and d and all(isinstance(n, int) for n in d)]
    element = next((t for t in types if isinstance(t, str) and t), None)
    return element, _whole(sum(math.prod(shape) for shape in shapes)) if shapes else None
