"""A run folder, as `gpuprof trace` leaves it: what was run, its steps, its telemetry, and where its trace is.

The folder is written as the run goes, by several processes, and may be read while it grows or after a crash: any
file may be missing, cut, or hold anything. Invalid contents are skipped, and the names of such files are listed
in `damaged`. `gpuprof.runfile` says what the files hold.
"""

from __future__ import annotations

import dataclasses
import json
import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import numpy as np
from msgspec import Meta

from gpuprof import runfile
from gpuprof.errors import UnreadableTrace
from gpuprof.nsight.convert import REPORTS
from gpuprof.tracefile.nsys.address import with_process
from gpuprof.tracefile.nsys.report import EXPORTS
from gpuprof.tracefile.run_folder.compiler import Compiler
from gpuprof.tracefile.run_folder.phased_steps import PhasedStep, phased_steps
from gpuprof.tracefile.run_folder.program import Program
from gpuprof.tracefile.run_folder.telemetry import TelemetryColumns, bare_uuid, samples_of, telemetry_of, uuids
from gpuprof.tracefile.run_folder.untrusted import (
    LARGEST_NUMBER,
    Counts,
    Index,
    Key,
    Moment,
    Positive,
    Text,
    Whole,
    read,
    read_all,
)
from gpuprof.tracefile.trace import ABSENT, I32, I64, LATEST_NS, U8, Columns, Mask
from gpuprof.units import Assumed, Bytes, Code, Convention

UNKNOWN_STAGE: Convention[Code] = 255
"""A stage unknown to this version."""

_Status = Literal["running", "finished", "failed", "killed", "interrupted"]
STATUSES = get_args(_Status)

_LONGEST_DOCUMENT: Assumed[Bytes] = 4 * 2**20
"""Most bytes of a manifest or of a rank's facts: a few kB, plus users' own notes and options."""
_GZIP, _EVENTS = b"\x1f\x8b", b'"traceEvents"'
_SCHEMAS = runfile.SCHEMA.partition("/")[0] + "/"
"""Prefix of the schemas of all versions."""

_RANK_FILE = re.compile(r"rank(\d{1,6})\.json")
TRACE_FILE = re.compile(r"trace\.rank(\d{1,6})\.json(\.gz)?(\.partial)?")


@dataclass(frozen=True, slots=True)
class StepColumns(Columns):
    """Steps of all ranks, in file order. What a line does not give is ABSENT."""

    rank: I32
    step: I64
    stage: U8
    """Index into `runfile.STAGES`, or UNKNOWN_STAGE."""
    unix_ns: I64
    ns: I64
    device_ns: I64
    data_ns: I64
    micro_steps: I64
    samples: I64
    tokens: I64
    real_tokens: I64
    pairs: I64
    """Pairs of tokens in the same row."""
    useful_pairs: I64
    """Pairs within one document, without padding."""
    labelled_tokens: I64
    allocated_bytes: I64
    reserved_bytes: I64
    peak_bytes: I64
    device_allocations: I64
    """Calls of cudaMalloc and cudaFree by torch's allocator since the program started."""
    new_shapes: I64
    """Calls of the model with shapes that no earlier call had."""
    save_ns: I64
    evaluation_ns: I64
    logging_ns: I64
    garbage_collection_ns: I64
    compile_ns: I64
    """CPU wall time of events of some steps only; ABSENT if the step had none, or if the recorder did not measure
    it."""
    profiled: Mask

    def rows(self, stage: str, rank: int) -> I64:
        """Rows of one stage of one rank."""
        return np.flatnonzero((self.stage == runfile.STAGES.index(stage)) & (self.rank == rank))


@dataclass(frozen=True, slots=True)
class RunGpu:
    """The GPU that a rank uses."""

    index: Index | None
    uuid: Text | None
    name: Text | None
    memory_bytes: Positive | None


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage that a rank went through."""

    stage: Text
    first_step: Whole | None
    steps: Whole | None
    ns: Positive | None
    """The whole stage between two device synchronisations."""


class _Unrecorded(msgspec.Struct):
    forwards: Whole = 0


def _forwards(loops: Any) -> int:
    return sum(one.forwards for one in read(tuple[_Unrecorded, ...], loops) or ())


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """A recorded window, and the steps in it."""

    window: Text
    file: Text | None
    first_step: Whole | None
    steps: Whole | None
    unrecorded: Annotated[int, _forwards] = 0
    """Forward passes of generate loops that it left out."""


def _versions(document: dict[str, Any]) -> dict[str, Any]:
    """Versions under the names used in Kineto traces, then those of packages."""
    names = {"torch_version": "torch", "cuda_version": "cuda", "python_version": "python"}
    found = {key: document[name] for key, name in names.items() if document.get(name)}
    packages = document.get("packages")
    return found | {key: v for key, v in packages.items() if key not in found} if isinstance(packages, dict) else found


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's facts (rank<N>.json)."""

    rank: Index = 0
    pid: Positive | None = None
    world_size: Positive | None = None
    versions: Annotated[dict[str, Text], _versions, Key()] = dataclasses.field(default_factory=dict)
    gpu: RunGpu | None = None
    step_source: Text | None = None
    steps_total: Whole | None = None
    threads: Positive | None = None
    """Threads of one op of torch on tensors in host memory."""
    steps_seen: Whole | None = None
    intervals: dict[Literal["save", "evaluation", "logging"], Positive] = dataclasses.field(default_factory=dict)
    """Event → steps from one to the next, as the trainer's settings say."""
    model: Counts | None = None
    optimizer: Counts | None = None
    loader: Counts | None = None
    program: Program | None = None
    compiler: Compiler | None = None
    stages: tuple[StageTime, ...] = ()
    windows: tuple[RecordedWindow, ...] = ()
    notes: tuple[Text, ...] = ()

    def stage(self, name: str) -> StageTime | None:
        """The last stage of that name."""
        return next((stage for stage in reversed(self.stages) if stage.stage == name), None)


def _signal(given: Any) -> Any:
    """The name of a signal that is given by number."""
    if not isinstance(given, int) or isinstance(given, bool):
        return given
    try:
        return signal.Signals(given).name
    except ValueError:
        return f"signal {given}" if 0 < given <= LARGEST_NUMBER else None


_Cpus = Annotated[float, Meta(gt=0, lt=LARGEST_NUMBER)]


@dataclass(frozen=True, slots=True)
class _Manifest:
    """manifest.json."""

    status: _Status | None = None
    exit_code: Annotated[Annotated[int, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)] | None, Key("exit", "code")] = None
    exit_signal: Annotated[Text | None, _signal, Key("exit", "signal")] = None
    started: Annotated[int, Meta(ge=1, le=LATEST_NS)] | None = None
    cpus: Annotated[_Cpus | None, Key("host", "cpus")] = None
    cpu_quota: Annotated[_Cpus | None, Key("host", "cpu_quota")] = None
    command: Annotated[list[str], Meta(min_length=1)] | None = None


@dataclass(frozen=True, slots=True)
class RunFolder:
    """The contents of a run folder, except its traces."""

    path: str
    status: str | None
    """One of STATUSES."""
    exit_code: int | None
    exit_signal: str | None
    ranks: tuple[Rank, ...]
    steps: StepColumns
    telemetry: TelemetryColumns
    throttle_reasons: tuple[str, ...]
    rank: int
    """The rank that is diagnosed: that of `trace`, else the lowest with facts."""
    trace: Path | None
    """The recording of that rank by torch.profiler."""
    nsys: Path | None
    """Its recording by Nsight Systems, as `read_trace` takes it."""
    damaged: tuple[str, ...]
    """Existing files that could not be read."""
    started_ns: int | None = None
    """Start of the program, unix ns."""
    cpus: float | None = None
    """CPU cores that the run may use: those of its affinity, or its control group's share of them."""
    command: tuple[str, ...] | None = None
    """Words of the recorded command, secrets masked; None where the program recorded itself."""
    phased: tuple[PhasedStep, ...] = ()
    """Steps of an RL training, with their wall time split by phase."""
    others_telemetry: TelemetryColumns | None = None
    """Samples of all GPUs that the only rank sees, if it sees more than the one it names."""

    @property
    def seen_telemetry(self) -> TelemetryColumns:
        """Samples of all GPUs visible to the run."""
        return self.telemetry if self.others_telemetry is None else self.others_telemetry

    @property
    def window(self) -> str:
        """The window, and so the stage, of the recording whose times count: that of Nsight Systems if there is one."""
        by_nsys = any(window.window == runfile.NSYS for window in self.own.windows)
        steps = len(self.steps.rows(runfile.NSYS, self.rank)) > 0
        return runfile.NSYS if (self.nsys is not None and by_nsys) or (self.trace is None and steps) else "trace"

    @property
    def own(self) -> Rank:
        """The facts of the diagnosed rank."""
        return next((rank for rank in self.ranks if rank.rank == self.rank), Rank(self.rank))


def is_document(path: Path) -> bool:
    """Whether a file is a manifest or a rank's facts, also if it was cut. Traces and documents of other programs may
    have the same names (`rank0.json`)."""
    if not path.is_file():  # do not wait for a pipe
        return False
    try:
        with runfile.open_regular(path) as file:
            text = file.read(_LONGEST_DOCUMENT + 1)
    except OSError:  # who reads it will say so
        return True
    if len(text) > _LONGEST_DOCUMENT or text.startswith(_GZIP):
        return False
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return _EVENTS not in text
    return isinstance(document, dict) and str(document.get("schema")).startswith(_SCHEMAS)


def read_run(folder: Path, rank: int | None = None) -> RunFolder:
    """Reads a run folder. `rank`: the one to diagnose. Never raises for the contents of files."""
    damaged: list[str] = []
    names = _names(folder)
    manifest = read(_Manifest, _document(folder / runfile.MANIFEST, damaged)) or _Manifest()
    ranks = _ranks(folder, names, damaged)
    lines = _lines(folder / runfile.STEPS, damaged)
    steps = _steps(lines)
    used = {bare_uuid(r.gpu.uuid) for r in ranks if r.gpu and r.gpu.uuid}
    samples = samples_of(_lines(folder / runfile.TELEMETRY, damaged))
    telemetry, reasons = telemetry_of(samples, used)
    traces = _traces(folder, names, finished=manifest.status != "running")
    if rank is None:
        known = [r.rank for r in ranks] or np.unique(steps.rank).tolist()
        rank = min(traces or known, default=0)
    return RunFolder(
        path=str(folder),
        status=manifest.status,
        exit_code=manifest.exit_code,
        exit_signal=manifest.exit_signal,
        ranks=ranks,
        steps=steps,
        telemetry=telemetry,
        throttle_reasons=reasons,
        rank=rank,
        trace=traces.get(rank),
        nsys=_export(folder, names, next((one.pid for one in ranks if one.rank == rank), None)),
        damaged=tuple(damaged),
        started_ns=manifest.started,
        cpus=min((one for one in (manifest.cpus, manifest.cpu_quota) if one is not None), default=None),
        command=None if manifest.command is None else tuple(manifest.command),
        phased=phased_steps(lines),
        others_telemetry=telemetry_of(samples, set())[0] if len(ranks) == 1 and uuids(samples) - used else None,
    )


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UnreadableTrace(f"{folder}: cannot be read ({error.strerror})") from None


def _traces(folder: Path, names: Iterable[str], finished: bool) -> dict[int, Path]:
    """The trace of each rank. An incomplete one counts once the run has ended."""
    found: dict[int, tuple[int, Path]] = {}
    for name in names:
        match = TRACE_FILE.fullmatch(name)
        if not match or (match[3] and not finished) or not (folder / name).is_file():
            continue
        rank = int(match[1])
        choice = (2 if match[3] else 1 if match[2] else 0, folder / name)
        found[rank] = min(found.get(rank, choice), choice)
    return {rank: path for rank, (_, path) in found.items()}


def _export(folder: Path, names: Iterable[str], pid: int | None) -> Path | None:
    """An Nsight Systems export in the folder, or else a report; of several processes, the rank's own."""
    found = [name for ends in (EXPORTS, REPORTS) for name in sorted(names) if name.endswith(ends)]
    if not found:
        return None
    path = folder / found[0]
    if pid is None or found[0].endswith(REPORTS):
        return path
    from gpuprof.tracefile.nsys.reader import pids_in

    try:
        return Path(with_process(path, pid)) if pid in pids_in(path) else path
    except (UnreadableTrace, OSError):  # who reads it will say so
        return path


# -- the files


def _document(path: Path, damaged: list[str]) -> dict[str, Any]:
    """A document, {} if it is not there or damaged."""
    value = None
    with suppress(RecursionError):
        value = runfile.read_json(path) if path.is_file() else {}
    if value is None:
        damaged.append(path.name)
    return value or {}


def _lines(path: Path, damaged: list[str]) -> list[dict[str, Any]]:
    """The documents of a file of lines."""
    found: list[dict[str, Any]] = []
    if not path.is_file():
        return found
    try:
        found.extend(runfile.read_lines(path))
    except (OSError, RecursionError):  # what was read before it still counts
        damaged.append(path.name)
        return found
    with suppress(OSError):
        if not found and path.stat().st_size:
            damaged.append(path.name)
    return found


def ranks_in(folder: Path) -> tuple[Rank, ...]:
    """The facts of a run's ranks."""
    return _ranks(folder, _names(folder), [])


def _ranks(folder: Path, names: Iterable[str], damaged: list[str]) -> tuple[Rank, ...]:
    found = []
    for name in names:
        match = _RANK_FILE.fullmatch(name)
        if not match or not is_document(folder / name):
            continue
        if document := _document(folder / name, damaged):
            found.append(dataclasses.replace(read(Rank, document) or Rank(), rank=int(match[1])))
    return tuple(sorted(found, key=lambda rank: rank.rank))


_STAGE: dict[str, int] = {stage: i for i, stage in enumerate(runfile.STAGES)}
_COUNTED = [
    one.name for one in dataclasses.fields(StepColumns) if one.name not in ("rank", "stage", "unix_ns", "profiled")
]
_Line: Any = msgspec.defstruct(
    "_Line",
    [
        ("step", Whole),  # a line without a step's number or duration is useless
        ("ns", Whole),
        ("rank", Index, 0),
        ("stage", str, ""),
        ("unix_ns", Moment | None, None),
        ("profiled", Any, None),
        *((name, Whole | None, None) for name in _COUNTED if name not in ("step", "ns")),
    ],
)
"""A line of steps.jsonl."""


def _steps(lines: list[dict[str, Any]]) -> StepColumns:
    found = read_all(_Line, lines)
    return StepColumns(
        rank=np.array([line.rank for line in found], np.int32),
        stage=np.array([_STAGE.get(line.stage, UNKNOWN_STAGE) for line in found], np.uint8),
        # Anything except false counts as profiled: a doubtful step must not become part of the baseline.
        profiled=np.array([line.profiled not in (False, None) for line in found], bool),
        **{name: _column([getattr(line, name) for line in found]) for name in ("unix_ns", *_COUNTED)},
    )


def _column(values: list[int | None]) -> I64:
    return np.array([ABSENT if value is None else value for value in values], np.int64)
