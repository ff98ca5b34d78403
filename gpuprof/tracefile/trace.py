"""The Trace: a recording as numpy columns over one string table.

Nothing here is computed: a reader fills the columns, `timeline/` derives from them. Times are int64 nanoseconds
on the trace's own clock (Kineto: `ts` × 1000, exact). A missing number is `ABSENT`; a missing
text is string id `NO_TEXT`. Durations are kept as recorded, zero and negative ones included.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gpuprof.tracefile.rows_by_id import RowsById, same_again
from gpuprof.units import Code, Convention, WholeNs

if TYPE_CHECKING:
    from typing_extensions import Self

I64 = NDArray[np.int64]
I32 = NDArray[np.int32]
U8 = NDArray[np.uint8]
F64 = NDArray[np.float64]
Mask = NDArray[np.bool_]

ABSENT = np.iinfo(np.int64).min  # lies outside every value's range: negative thread ids and correlations exist
NO_TEXT: Convention[Code] = -1
LATEST_NS: Convention[WholeNs] = 2**62
"""Unix time reaches this in 2116. The difference of any two earlier times fits into 64 bits."""

_DTYPES = {
    "I64": np.int64,
    "I32": np.int32,
    "U8": np.uint8,
    "NDArray[np.float32]": np.float32,
    "F64": np.float64,
    "Mask": np.bool_,
}
"""The dtype of a column, by its annotation below."""

# Ops.kind
OP, ANNOTATION = 0, 1
# Calls.kind
RUNTIME, DRIVER = 0, 1
# Gpu.kind
KERNEL, MEMCPY, MEMSET = 0, 1, 2
WHOLE_GRAPH = "CUDA graph"
"""Prefix of the name of a kernel that represents a whole CUDA graph whose kernels were not recorded individually."""
AUTOGRAD_ENGINE = "autograd::engine::evaluate_function: "
"""Prefix of the op or range around a node that autograd's engine runs."""
# Flows.kind
FLOW_LAUNCH, FLOW_FWDBWD, FLOW_OTHER = 0, 1, 2


class Columns:
    """Base of the tables: parallel arrays of one length, in file order."""

    __slots__ = ()

    def __len__(self) -> int:
        return len(getattr(self, dataclasses.fields(self)[0].name))  # type: ignore[arg-type]

    @classmethod
    def none(cls) -> Self:
        """The table without a row."""
        return cls(**{f.name: np.empty(0, _DTYPES[str(f.type)]) for f in dataclasses.fields(cls)})  # type: ignore[arg-type]

    def take(self, rows: NDArray) -> Self:
        """The same table with only `rows` (indices or a mask)."""
        columns = {f.name: getattr(self, f.name)[rows] for f in dataclasses.fields(self)}  # type: ignore[arg-type]
        return type(self)(**columns)


@dataclass(frozen=True, slots=True)
class Ops(Columns):
    """Host operators and user annotations (`record_function`, ProfilerStep#N)."""

    kind: U8
    name: I32
    thread: I32
    start_ns: I64
    end_ns: I64
    external: I64
    """External id, by which other events refer to this op."""
    sequence: I64
    """Autograd sequence number; a forward op and its backward share it."""
    forward_thread: I64
    """Fwd thread id; above 0 for backward ops."""
    dims: I32
    """Raw JSON text of `Input Dims`; likewise the next three."""
    types: I32
    strides: I32
    concrete: I32
    stack: I32
    """`Call stack` of the 2021 schema, innermost frame first."""
    extra: I32
    """Raw JSON text of all args, kept for collectives (group, element counts, dtype)."""


@dataclass(frozen=True, slots=True)
class Calls(Columns):
    """CUDA/HIP runtime and driver calls: launches, copies, synchronisations, allocations, queries."""

    kind: U8
    name: I32
    thread: I32
    start_ns: I64
    end_ns: I64
    correlation: I64
    external: I64


@dataclass(frozen=True, slots=True)
class GpuEvents(Columns):
    """Work on a device: kernels, copies and sets."""

    kind: U8
    name: I32
    device: I32
    stream: I64
    start_ns: I64
    end_ns: I64
    correlation: I64
    external: I64
    thread: I32
    """Its track (pid, tid) in the file."""
    grid_x: I32
    grid_y: I32
    grid_z: I32
    block_x: I32
    block_y: I32
    block_z: I32
    registers: I32
    shared_bytes: I64
    occupancy: NDArray[np.float32]
    """Estimated achieved occupancy in percent; NaN if missing."""
    bytes: I64
    graph_node: I64
    extra: I32


@dataclass(frozen=True, slots=True)
class Frames(Columns):
    """Python functions and nn.Module calls (`with_stack`)."""

    name: I32
    thread: I32
    start_ns: I64
    end_ns: I64
    python_id: I64
    parent_id: I64
    module_id: I64
    """ABSENT unless the frame is an nn.Module call."""


@dataclass(frozen=True, slots=True)
class Syncs(Columns):
    """CUPTI synchronisation records: which stream or event something waited for."""

    name: I32
    device: I32
    stream: I64
    start_ns: I64
    end_ns: I64
    correlation: I64
    wait_stream: I64
    wait_correlation: I64


@dataclass(frozen=True, slots=True)
class AllocatorEvents(Columns):
    """Allocator events: one per allocation or release."""

    thread: I32
    time_ns: I64
    device_type: I64
    device: I64
    address: I64
    bytes: I64
    allocated_bytes: I64
    reserved_bytes: I64


@dataclass(frozen=True, slots=True)
class Flows(Columns):
    """Arrow ends: launch → kernel, forward → backward."""

    kind: U8
    begins: U8
    """1 where the arrow starts, 0 where it ends."""
    id: I64
    thread: I32
    time_ns: I64


@dataclass(frozen=True, slots=True)
class CounterSamples(Columns):
    """Samples of a GPU's counters, each the mean since the previous sample: sm_active, tensor_active, dram_read, …"""

    name: I32
    device: I32
    time_ns: I64
    percent: F64
    """Percent of the device's peak, 0 to 100."""


@dataclass(frozen=True, slots=True)
class Other(Columns):
    """Every other event: profiler overhead, GPU-track annotations, spans, instants, unknown categories."""

    category: I32
    name: I32
    thread: I32
    start_ns: I64
    end_ns: I64
    external: I64


@dataclass(frozen=True, slots=True)
class Thread:
    """A track of the file: process and thread as the file names them, and the name it gives them."""

    process: str
    thread: str
    name: str = ""
    process_name: str = ""


@dataclass(frozen=True, slots=True)
class GpuInfo:
    """A device as the file describes it."""

    device: int
    name: str
    memory_bytes: int | None = None
    properties: dict = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Meta:
    """What the file says about the recording as a whole."""

    gpus: tuple[GpuInfo, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    distributed: dict = field(default_factory=dict)
    base_time_ns: int | None = None
    """Nanoseconds to add to a time of the trace to get Unix time."""
    versions: dict = field(default_factory=dict)
    options: dict = field(default_factory=dict)
    """Recording options that the file states: record_shapes, with_stack, profile_memory, with_flops, with_modules."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Statistics of the reading, from which the trace's quality is judged."""

    path: str
    kind: str
    """kineto | nsys | run."""
    size_bytes: int
    text_bytes: int
    """Bytes of text after decompression."""
    events: int
    """Events kept."""
    truncated: str | None = None
    """Why the file ends early, or None."""
    repaired: int = 0
    """Events that were not valid JSON and were mended."""
    dropped: int = 0
    """Events that could not be read."""
    dropped_sample: str = ""
    rounded: int = 0
    """Times with digits below a nanosecond, rounded to the nearest."""
    more: str = ""
    """document: the file holds another document after the one that was read; list: it holds two event lists, both
    read."""
    reader: str = ""
    other_processes: tuple[str, ...] = ()
    """The other processes in the file, as paths for `read_trace`."""


@dataclass(frozen=True)
class Trace:
    """One recording of one process, ready to analyse."""

    reading: Reading
    meta: Meta
    strings: list[str]
    threads: tuple[Thread, ...]
    ops: Ops
    calls: Calls
    gpu: GpuEvents
    frames: Frames
    syncs: Syncs
    memory: AllocatorEvents
    flows: Flows
    other: Other
    counters: CounterSamples = field(default_factory=CounterSamples.none)
    ops_from: str | None = None
    """The recording from which the ops were taken, if they were not recorded here."""

    @cached_property
    def string_ids(self) -> dict[str, int]:
        """From text to its id in `strings`."""
        return {text: i for i, text in enumerate(self.strings)}

    def rows_named(self, name: I32, test: Callable[[str], object]) -> Mask:
        """Mask of the rows of a name column whose text passes. Each distinct name is tested once, and by a test that
        can only give the same result again, once for this trace."""
        rows, strings = self._rows_of(name), self.strings
        column = next((key for key, own in self._names.items() if own is name), None)
        key = None if column is None else same_again(test)
        if key is None:
            return rows.mask([one for one in rows.present if test(strings[one])])
        if (column, key) not in self._passed:
            self._passed[column, key] = [one for one in rows.present if test(strings[one])]
        return rows.mask(self._passed[column, key])

    def _rows_of(self, name: I32) -> RowsById:
        """Index of the rows of a name column; cached for this trace's own columns."""
        column = next((key for key, own in self._names.items() if own is name), None)
        if column is None:
            return RowsById(name, len(self.strings))
        if column not in self._sorted:
            self._sorted[column] = RowsById(name, len(self.strings))
        return self._sorted[column]

    @cached_property
    def _names(self) -> dict[str, I32]:
        return {"ops": self.ops.name, "calls": self.calls.name, "gpu": self.gpu.name, "frames": self.frames.name}

    @cached_property
    def _sorted(self) -> dict[str, RowsById]:
        return {}

    @cached_property
    def _passed(self) -> dict[tuple[str | None, Hashable], list[int]]:
        """Ids of the names of a column that pass a test."""
        return {}

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled: everything except what tests passed, some of which cannot be."""
        return {name: value for name, value in self.__dict__.items() if name != "_passed"}

    def text(self, string_id: int) -> str | None:
        """The text of a string id, None for NO_TEXT."""
        return None if string_id < 0 else self.strings[string_id]

    def texts(self, string_ids: NDArray[Any]) -> list[str]:
        """The texts of string ids, "" for NO_TEXT."""
        strings = self.strings
        return [strings[one] if one >= 0 else "" for one in string_ids.tolist()]

    def __repr__(self) -> str:
        return (
            f"<Trace {self.reading.path!r}: {len(self.ops):,} ops, {len(self.calls):,} calls, "
            f"{len(self.gpu):,} GPU events, {len(self.frames):,} frames>"
        )
