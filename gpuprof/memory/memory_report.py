"""The report on a memory snapshot: `gpuprof.memory/1`. Sizes are bytes; unknown values are None."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

from gpuprof import documents
from gpuprof.bounds import OneOf, Signed, Words
from gpuprof.memory.advice import Advice
from gpuprof.tracefile.source import Issue, Source

SCHEMA = "gpuprof.memory/1"
DOCUMENT = documents.Kind(SCHEMA)

UNUSED = "unused"
"""The owner of memory that the allocator holds and no allocation uses: fragmentation, rounding and cache."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Memory of one kind of owner."""

    owner: Annotated[str, OneOf(of="gpuprof.report.words.memory_words:NAMES")]
    bytes: int
    count: int
    """Number of allocations."""


@dataclass(frozen=True, slots=True)
class PhaseBytes:
    """Memory allocated in one phase and still held."""

    phase: Annotated[str, OneOf(of="gpuprof.memory.stacks:PHASES")]
    bytes: int


@dataclass(frozen=True, slots=True)
class Line:
    """Memory of one line of Python and one owner."""

    owner: Annotated[str, OneOf(of="gpuprof.report.words.memory_words:NAMES")]
    phase: Annotated[str, OneOf(of="gpuprof.memory.stacks:PHASES")]
    file: str | None
    """None: the stack has no frame of Python. Of a trace, the class of the module."""
    line: int | None
    function: str | None
    """Of a trace, the op."""
    bytes: int
    count: int


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which most was allocated."""

    event: Signed[int]
    """Number of the event in the history; -1: before its first event."""
    seconds: Signed[float] | None
    """Since the first event of the history."""
    step: int | None
    """Counted from 1 within the history; None if it shows no steps."""
    phase: Annotated[str, OneOf(of="gpuprof.memory.stacks:PHASES")]
    allocated_bytes: int
    """Requested bytes, before the allocator rounds sizes up."""
    reserved_bytes: int | None
    owners: tuple[Owner, ...]
    """Largest first. They sum to reserved_bytes, or to allocated_bytes where that is not known."""
    phases: tuple[PhaseBytes, ...]
    """They sum to allocated_bytes."""
    lines: tuple[Line, ...]
    """The largest ones."""
    lines_rest_bytes: int
    """All other lines together; with `lines` it sums to allocated_bytes."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The last allocation that failed."""

    requested_bytes: int
    device_free_bytes: int | None
    """Bytes that the driver still had free."""
    allocated_bytes: int
    unused_bytes: int | None
    """What the allocator held unused at that moment."""
    phase: Annotated[str, OneOf(of="gpuprof.memory.stacks:PHASES")]
    step: int | None
    file: str | None
    line: int | None
    function: str | None
    count: int
    """Failed allocations in the history."""


@dataclass(frozen=True, slots=True)
class HistorySteps:
    """The steps of the history."""

    source: Annotated[str, OneOf(("optimizer", "backward"))]
    """optimizer: a step ends with the optimizer; backward: with a backward pass."""
    count: int
    """Number of complete steps."""
    live_bytes: tuple[int, ...]
    """Allocated where one step ends and the next begins."""


@dataclass(frozen=True, slots=True)
class Leak:
    """Memory of one line that grows each step."""

    owner: Annotated[str, OneOf(of="gpuprof.report.words.memory_words:NAMES")]
    file: str | None
    line: int | None
    function: str | None
    bytes_per_step: Signed[int]
    """Median of the steps."""
    steps: int
    """Steps over which it was watched."""
    bytes: int
    """What it holds at the last of them."""


@dataclass(frozen=True, slots=True)
class Series:
    """Memory over time, thinned out but with its peaks; one number per moment."""

    event: tuple[Signed[int], ...]
    seconds: tuple[Signed[float], ...] | None
    owners: dict[Words, tuple[int, ...]]
    reserved_bytes: tuple[int, ...] | None
    phase: tuple[str, ...]


_NO_SERIES = Series((), None, {}, None, ())


@dataclass(frozen=True, slots=True)
class ReportedDevice:
    """One GPU."""

    device: Signed[int]
    events: int
    seconds: Signed[float] | None
    """From the first event of the history to the last."""
    before_bytes: int
    """Allocated before the history began."""
    peak: Peak
    """The moment at which most was allocated."""
    reserved_peak_bytes: int | None
    failure: Failure | None
    steps: HistorySteps | None
    leaks: tuple[Leak, ...]
    series: Series = field(default=_NO_SERIES, compare=False)
    """Memory over time, thinned out but with its peaks; one number per moment."""


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Memory of all GPUs of a snapshot, a run or a trace."""

    source: Source
    """Where it was read from."""
    issues: tuple[Issue, ...]
    devices: tuple[ReportedDevice, ...]
    """The one with the highest peak first. Empty: neither snapshot nor memory events were recorded."""
    difference: Difference | None = None
    advice: Advice | None = None
    """Of a run: what its measured peak consists of, and what would lower it."""


@dataclass(frozen=True, slots=True)
class OwnerDifference:
    """How much more an owner holds at the second peak; negative: less."""

    owner: Annotated[str, OneOf(of="gpuprof.report.words.memory_words:NAMES")]
    before_bytes: int
    after_bytes: int
    bytes: Signed[int]


@dataclass(frozen=True, slots=True)
class LineDifference:
    """How much more a line of Python holds at the second peak; negative: less."""

    owner: Annotated[str, OneOf(of="gpuprof.report.words.memory_words:NAMES")]
    file: str | None
    line: int | None
    function: str | None
    before_bytes: int
    after_bytes: int
    bytes: Signed[int]


@dataclass(frozen=True, slots=True)
class Difference:
    """The second snapshot's peak minus the first one's, for one device."""

    before: Source
    """Where it was read from."""
    device: Signed[int]
    before_bytes: int
    after_bytes: int
    bytes: Signed[int]
    owners: tuple[OwnerDifference, ...]
    """They sum to `bytes`."""
    lines: tuple[LineDifference, ...]
    """The largest differences of allocated memory."""
