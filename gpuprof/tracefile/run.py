"""A run folder, as `gpuprof trace` leaves it: what was run, its steps, its telemetry, and where its trace is.

The folder is written as the run goes, by several processes, and may be read while it grows or after a crash: any
file may be missing, cut, or hold anything. What cannot be made sense of is passed over, and the names of the files
that were are in `damaged`. `gpuprof.runfile` says what the files hold.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gpuprof import runfile
from gpuprof.errors import UnreadableTrace
from gpuprof.nsight.convert import REPORTS
from gpuprof.tracefile.compiler import Compiler, compiler_of
from gpuprof.tracefile.nsys.address import split_process, with_process
from gpuprof.tracefile.nsys.report import EXPORTS
from gpuprof.tracefile.phased_steps import PhasedStep, phased_steps
from gpuprof.tracefile.program import Program, program_of
from gpuprof.tracefile.trace import ABSENT, F64, I32, I64, LATEST_NS, U8, Columns, Mask

UNKNOWN_STAGE = 255
"""A stage that this version knows nothing of."""

STATUSES = ("running", "finished", "failed", "killed", "interrupted")

_LARGEST = 2**53
"""Numbers beyond this are damage: as nanoseconds 104 days, as bytes 9 PB."""
_DEEPEST, _MOST_ITEMS, _LONGEST_TEXT = 6, 1000, 2000
"""What is kept of the parts of a file that are passed on as they are."""
_MOST_REASONS = 62
"""Throttle reasons are bits of an int64."""

_LONGEST_DOCUMENT = 4 * 2**20
"""Bytes of a manifest or of what a rank says of itself: some KB, and what users' own notes and options add."""
_GZIP, _EVENTS = b"\x1f\x8b", b'"traceEvents"'
_SCHEMAS = runfile.SCHEMA.partition("/")[0] + "/"
"""What the schemas of all versions begin with."""

_RANK_FILE = re.compile(r"rank(\d{1,6})\.json")
_TRACE_FILE = re.compile(r"trace\.rank(\d{1,6})\.json(\.gz)?(\.partial)?")


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
    """Of tokens in one row, each with each."""
    useful_pairs: I64
    """Of one document, without padding."""
    labelled_tokens: I64
    allocated_bytes: I64
    reserved_bytes: I64
    peak_bytes: I64
    device_allocations: I64
    """Calls of cudaMalloc and cudaFree by torch's allocator since the program started."""
    new_shapes: I64
    """Calls of the model with shapes that no call before had."""
    save_ns: I64
    evaluation_ns: I64
    logging_ns: I64
    garbage_collection_ns: I64
    compile_ns: I64
    """Host time of what comes in lumps; ABSENT where the step had none, or the recorder did not measure it."""
    profiled: Mask

    def rows(self, stage: str, rank: int) -> I64:
        """Rows of one stage of one rank."""
        return np.flatnonzero((self.stage == runfile.STAGES.index(stage)) & (self.rank == rank))


@dataclass(frozen=True, slots=True)
class TelemetryColumns(Columns):
    """One row per sample and GPU; NaN where a sample does not give it."""

    unix_ns: I64
    gpu: I32
    power_w: F64
    energy_j: F64
    """Since the driver was loaded."""
    limit_w: F64
    sm_mhz: F64
    temperature_c: F64
    utilization: F64
    load1: F64
    throttle: I64
    """Bits: the n-th of `RunFolder.throttle_reasons` held the clock back."""


@dataclass(frozen=True, slots=True)
class RunGpu:
    """The GPU that a rank uses."""

    index: int | None
    uuid: str | None
    name: str | None
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class StageTime:
    """A stage that a rank went through."""

    stage: str
    first_step: int | None
    steps: int | None
    ns: int | None
    """The whole stage between two device synchronisations."""


@dataclass(frozen=True, slots=True)
class RecordedWindow:
    """A window that was recorded, and the steps in it."""

    window: str
    file: str | None
    first_step: int | None
    steps: int | None
    unrecorded: int = 0
    """Forward passes of generate loops that it left out."""


@dataclass(frozen=True, slots=True)
class Rank:
    """What one rank says of itself."""

    rank: int = 0
    pid: int | None = None
    world_size: int | None = None
    versions: dict[str, str] = dataclasses.field(default_factory=dict)
    gpu: RunGpu | None = None
    step_source: str | None = None
    steps_total: int | None = None
    steps_seen: int | None = None
    intervals: dict[str, int] = dataclasses.field(default_factory=dict)
    """Event (save, evaluation, logging) → steps from one to the next, as the trainer's settings say."""
    model: dict[str, Any] | None = None
    optimizer: dict[str, Any] | None = None
    loader: dict[str, Any] | None = None
    program: Program | None = None
    compiler: Compiler | None = None
    stages: tuple[StageTime, ...] = ()
    windows: tuple[RecordedWindow, ...] = ()
    notes: tuple[str, ...] = ()

    def stage(self, name: str) -> StageTime | None:
        """The last stage of that name."""
        return next((stage for stage in reversed(self.stages) if stage.stage == name), None)


@dataclass(frozen=True, slots=True)
class RunFolder:
    """Everything a run folder holds but its traces."""

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
    """The rank that is diagnosed: that of `trace`, else the lowest that is there."""
    trace: Path | None
    """The recording of that rank by torch.profiler."""
    nsys: Path | None
    """Its recording by Nsight Systems, as `read_trace` takes it."""
    damaged: tuple[str, ...]
    """Files that are there and say nothing."""
    started_ns: int | None = None
    """Moment at which the program was started, unix ns."""
    cpus: float | None = None
    command: tuple[str, ...] | None = None
    """Words of the recorded command, secrets masked; None where the program recorded itself."""
    """Processors that the run may use: those of its affinity, or its control group's share of them."""
    phased: tuple[PhasedStep, ...] = ()
    """Steps whose host time was split by phase: of a training on its own generations."""
    others_telemetry: TelemetryColumns | None = None
    """Samples of all GPUs that the only rank sees, where these are more than the one it names."""

    @property
    def seen_telemetry(self) -> TelemetryColumns:
        """Samples of all GPUs that the run sees."""
        return self.telemetry if self.others_telemetry is None else self.others_telemetry

    @property
    def window(self) -> str:
        """The window, and so the stage, of the recording whose times count: that of Nsight Systems if there is one."""
        by_nsys = any(window.window == runfile.NSYS for window in self.own.windows)
        steps = len(self.steps.rows(runfile.NSYS, self.rank)) > 0
        return runfile.NSYS if (self.nsys is not None and by_nsys) or (self.trace is None and steps) else "trace"

    @property
    def own(self) -> Rank:
        """What the diagnosed rank says of itself."""
        return next((rank for rank in self.ranks if rank.rank == self.rank), Rank(self.rank))


def latest_run(folder: Path | None = None) -> Path:
    """The newest run in a folder of runs, `gpuprof-runs` if none is named; one that took no step only where there is no
    other.

    Raises UnreadableTrace if there is none.
    """
    runs = Path(runfile.RUNS) if folder is None else folder
    latest = runs / runfile.LATEST
    if holds_run(latest):
        # By its own name: what is made of it must not say latest when another run is.
        return Path(os.path.normpath(runs / latest.readlink())) if latest.is_symlink() else latest
    found = runs_in(runs)
    if found:
        took_steps = [path for path in found if any(path.glob("rank*.json"))]
        return (took_steps or found)[-1]
    raise UnreadableTrace(
        f"{runs} holds no run: make one with gpuprof trace train.py, or name a recording: gpuprof diagnose PATH"
    )


def runs_in(folder: Path) -> list[Path]:
    """The runs in a folder, oldest first: their names begin with the date."""
    try:
        return sorted(path for path in folder.iterdir() if path.name != runfile.LATEST and holds_run(path))
    except (OSError, ValueError):
        return []


def holds_run(folder: Path) -> bool:
    """Whether a folder is a run's, its manifest lost or not."""
    try:
        if not folder.is_dir():
            return False
        return any((folder / name).is_file() for name in (runfile.STEPS, runfile.TELEMETRY)) or any(
            _is_document(folder / name) for name in (runfile.MANIFEST, runfile.rank_file(0))
        )
    except (OSError, ValueError):
        return False


def _is_document(path: Path) -> bool:
    """Whether a file is a manifest, or what a rank says of itself. One that was cut still is; traces may bear these
    names (`rank0.json`), and so may documents of other programs."""
    if not path.is_file():  # a pipe is not waited for
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


def find_run(path: Path) -> tuple[Path, int | None] | None:
    """The run folder that a path means, and the rank that it asks for; None if it means something else.

    A path may be the run's folder, a folder of runs (its newest is meant), the manifest of a run or one of its
    recordings.
    """
    if holds_run(path):
        return path, None
    if holds_run(path / runfile.LATEST) or (path.name == runfile.RUNS and runs_in(path)):
        return latest_run(path), None
    export, pid = split_process(path)
    if export.name.endswith((*EXPORTS, *REPORTS)) and export.is_file() and holds_run(export.parent):
        return export.parent, _rank_of(export.parent, pid)
    named = _TRACE_FILE.fullmatch(path.name)
    if (not named or named[3]) and path.name != runfile.MANIFEST:
        return None
    if not path.is_file() or not holds_run(path.parent):
        return None
    return path.parent, int(named[1]) if named else None


def _rank_of(folder: Path, pid: int | None) -> int | None:
    """The rank that a process was, as the run tells."""
    ranks = _ranks(folder, _names(folder), [])
    return None if pid is None else next((rank.rank for rank in ranks if rank.pid == pid), None)


def read_run(folder: Path, rank: int | None = None) -> RunFolder:
    """What a run folder holds; `rank`: the one to diagnose. Never raises for what is in the files."""
    damaged: list[str] = []
    names = _names(folder)
    manifest = _document(folder / runfile.MANIFEST, damaged)
    ranks = _ranks(folder, names, damaged)
    lines = _lines(folder / runfile.STEPS, damaged)
    steps = _steps(lines)
    used = {_bare_uuid(r.gpu.uuid) for r in ranks if r.gpu and r.gpu.uuid}
    samples = _lines(folder / runfile.TELEMETRY, damaged)
    telemetry, reasons = _telemetry(samples, used)
    status = manifest.get("status")
    status = status if status in STATUSES else None
    traces = _traces(folder, names, finished=status != "running")
    if rank is None:
        known = [r.rank for r in ranks] or np.unique(steps.rank).tolist()
        rank = min(traces or known, default=0)
    exit_ = manifest.get("exit")
    exit_ = exit_ if isinstance(exit_, dict) else {}
    return RunFolder(
        path=str(folder),
        status=status,
        exit_code=_whole(exit_.get("code"), least=-_LARGEST),
        exit_signal=_signal(exit_.get("signal")),
        ranks=ranks,
        steps=steps,
        telemetry=telemetry,
        throttle_reasons=reasons,
        rank=rank,
        trace=traces.get(rank),
        nsys=_export(folder, names, next((one.pid for one in ranks if one.rank == rank), None)),
        damaged=tuple(damaged),
        started_ns=_whole(manifest.get("started"), least=1, most=LATEST_NS),
        cpus=_cpus(manifest.get("host")),
        command=_command(manifest.get("command")),
        phased=phased_steps(lines),
        others_telemetry=_telemetry(samples, set())[0] if len(ranks) == 1 and _uuids(samples) - used else None,
    )


def _command(words: Any) -> tuple[str, ...] | None:
    """The words of a manifest's command; None where it has none, or they are no texts."""
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return None
    return tuple(words)


def _cpus(host: Any) -> float | None:
    """The smaller of the processors and the quota in a manifest's host."""
    found = host if isinstance(host, dict) else {}
    values = [found.get(name) for name in ("cpus", "cpu_quota")]
    known = [float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < _LARGEST]
    return min(known, default=None)


def _names(folder: Path) -> list[str]:
    try:
        return sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UnreadableTrace(f"{folder}: cannot be read ({error.strerror})") from None


def _traces(folder: Path, names: Iterable[str], finished: bool) -> dict[int, Path]:
    """The trace of each rank. One that was never completed counts where no one can be writing it any more."""
    found: dict[int, tuple[int, Path]] = {}
    for name in names:
        match = _TRACE_FILE.fullmatch(name)
        if not match or (match[3] and not finished) or not (folder / name).is_file():
            continue
        rank = int(match[1])
        choice = (2 if match[3] else 1 if match[2] else 0, folder / name)
        found[rank] = min(found.get(rank, choice), choice)
    return {rank: path for rank, (_, path) in found.items()}


def _export(folder: Path, names: Iterable[str], pid: int | None) -> Path | None:
    """An export of Nsight Systems in the folder, or else a report of it; of several processes the rank's own."""
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


def _ranks(folder: Path, names: Iterable[str], damaged: list[str]) -> tuple[Rank, ...]:
    found = []
    for name in names:
        match = _RANK_FILE.fullmatch(name)
        if not match or not _is_document(folder / name):
            continue
        if document := _document(folder / name, damaged):
            found.append(_rank(int(match[1]), document))
    return tuple(sorted(found, key=lambda rank: rank.rank))


def _rank(rank: int, document: dict[str, Any]) -> Rank:
    gpu = document.get("gpu")
    return Rank(
        rank=rank,
        pid=_whole(document.get("pid"), least=1),
        world_size=_whole(document.get("world_size"), least=1),
        versions=_versions(document),
        gpu=_gpu(gpu) if isinstance(gpu, dict) else None,
        step_source=_text(document.get("step_source")),
        steps_total=_whole(document.get("steps_total")),
        steps_seen=_whole(document.get("steps_seen")),
        intervals=_intervals(document.get("intervals")),
        model=_object(_of_counts(document.get("model"))),
        optimizer=_object(_of_counts(document.get("optimizer"))),
        loader=_object(_of_counts(document.get("loader"))),
        program=program_of(document.get("program")),
        compiler=compiler_of(document.get("compiler")),
        stages=tuple(
            StageTime(
                name, _whole(stage.get("first_step")), _whole(stage.get("steps")), _whole(stage.get("ns"), least=1)
            )
            for stage in _dicts(document.get("stages"))
            if (name := _text(stage.get("stage")))
        ),
        windows=tuple(
            RecordedWindow(
                name,
                _text(window.get("file")),
                _whole(window.get("first_step")),
                _whole(window.get("steps")),
                sum(_whole(one.get("forwards")) or 0 for one in _dicts(window.get("unrecorded"))),
            )
            for window in _dicts(document.get("windows"))
            if (name := _text(window.get("window")))
        ),
        notes=tuple(text for note in _list(document.get("notes")) if (text := _text(note))),
    )


def _intervals(value: Any) -> dict[str, int]:
    found = value if isinstance(value, dict) else {}
    each = {name: _whole(found.get(name), least=1) for name in ("save", "evaluation", "logging")}
    return {name: every for name, every in each.items() if every is not None}


def _gpu(gpu: dict[str, Any]) -> RunGpu:
    return RunGpu(
        index=_whole(gpu.get("index"), most=2**31 - 1),
        uuid=_text(gpu.get("uuid")),
        name=_text(gpu.get("name")),
        memory_bytes=_whole(gpu.get("memory_bytes"), least=1),
    )


def _versions(document: dict[str, Any]) -> dict[str, str]:
    """Versions by the names that a Kineto trace gives them, then those of packages."""
    found = {
        key: text
        for key, name in (("torch_version", "torch"), ("cuda_version", "cuda"), ("python_version", "python"))
        if (text := _text(document.get(name)))
    }
    packages = _object(document.get("packages")) or {}
    return found | {name: text for name, value in packages.items() if name not in found and (text := _text(value))}


def _steps(lines: list[dict[str, Any]]) -> StepColumns:
    stages = {stage: i for i, stage in enumerate(runfile.STAGES)}
    # A line without a step's number or duration says nothing of a step.
    rows = [line for line in lines if _whole(line.get("step")) is not None and _whole(line.get("ns")) is not None]
    named = [stage if isinstance(stage := line.get("stage"), str) else "" for line in rows]
    return StepColumns(
        rank=np.array([_whole(line.get("rank"), most=2**31 - 1) or 0 for line in rows], np.int32),
        step=_column(rows, "step"),
        stage=np.array([stages.get(stage, UNKNOWN_STAGE) for stage in named], np.uint8),
        unix_ns=_column(rows, "unix_ns", LATEST_NS),
        ns=_column(rows, "ns"),
        device_ns=_column(rows, "device_ns"),
        data_ns=_column(rows, "data_ns"),
        micro_steps=_column(rows, "micro_steps"),
        samples=_column(rows, "samples"),
        tokens=_column(rows, "tokens"),
        real_tokens=_column(rows, "real_tokens"),
        pairs=_column(rows, "pairs"),
        useful_pairs=_column(rows, "useful_pairs"),
        labelled_tokens=_column(rows, "labelled_tokens"),
        allocated_bytes=_column(rows, "allocated_bytes"),
        reserved_bytes=_column(rows, "reserved_bytes"),
        peak_bytes=_column(rows, "peak_bytes"),
        device_allocations=_column(rows, "device_allocations"),
        new_shapes=_column(rows, "new_shapes"),
        save_ns=_column(rows, "save_ns"),
        evaluation_ns=_column(rows, "evaluation_ns"),
        logging_ns=_column(rows, "logging_ns"),
        garbage_collection_ns=_column(rows, "garbage_collection_ns"),
        compile_ns=_column(rows, "compile_ns"),
        # Anything but a plain no is a yes: a doubtful step must not become the baseline.
        profiled=np.array([line.get("profiled") not in (False, None) for line in rows], bool),
    )


def _column(rows: list[dict[str, Any]], key: str, most: int = _LARGEST) -> I64:
    found = [_whole(row.get(key), most=most) for row in rows]
    return np.array([ABSENT if value is None else value for value in found], np.int64)


_SENSORS = {"power_w": 1e5, "energy_j": 1e13, "limit_w": 1e5, "sm_mhz": 1e5, "temperature_c": 1e3, "utilization": 100.0}
"""What is read of a GPU, and the most that it can be."""


def _telemetry(lines: list[dict[str, Any]], used: set[str]) -> tuple[TelemetryColumns, tuple[str, ...]]:
    """Samples of the GPUs that the run used, by their UUIDs; of all where those are not known."""
    seen = _uuids(lines)
    others = seen - used if seen & used else set()
    reasons: dict[str, int] = {}
    times, gpus, loads, throttle = [], [], [], []
    sensors: dict[str, list[float]] = {name: [] for name in _SENSORS}
    for line in lines:
        moment = _whole(line.get("unix_ns"), most=LATEST_NS)
        if moment is None:
            continue
        gpus_seen = [gpu for gpu in _dicts(line.get("gpus")) if _bare_uuid(_text(gpu.get("uuid")) or "") not in others]
        for gpu in gpus_seen or [{}]:  # without a GPU a sample still tells the host's load
            times.append(moment)
            index = _whole(gpu.get("index"), most=2**31 - 1)
            gpus.append(-1 if index is None else index)
            loads.append(_number(line.get("load1"), 1e6))
            for name, most in _SENSORS.items():
                sensors[name].append(_number(gpu.get(name), most))
            bits = 0
            for reason in {text for item in _list(gpu.get("throttle")) if (text := _text(item))}:
                bit = reasons.setdefault(reason, len(reasons)) if len(reasons) < _MOST_REASONS else reasons.get(reason)
                bits |= 0 if bit is None else 1 << bit
            throttle.append(bits)
    columns = TelemetryColumns(
        unix_ns=np.array(times, np.int64),
        gpu=np.array(gpus, np.int32),
        load1=np.array(loads, np.float64),
        throttle=np.array(throttle, np.int64),
        **{name: np.array(values, np.float64) for name, values in sensors.items()},
    )
    return columns, tuple(reasons)


def _uuids(lines: list[dict[str, Any]]) -> set[str]:
    """Of all GPUs that were sampled."""
    return {_bare_uuid(_text(gpu.get("uuid")) or "") for line in lines for gpu in _dicts(line.get("gpus"))}


def _bare_uuid(uuid: str) -> str:
    """A GPU's UUID without what NVML writes before it, and torch does not."""
    return uuid.lower().removeprefix("gpu-")


# -- values, none of which can be trusted


def _whole(value: Any, least: int = 0, most: int = _LARGEST) -> int | None:
    """A whole number between two limits."""
    if isinstance(value, float) and math.isfinite(value):
        value = round(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most else None


def _number(value: Any, most: float) -> float:
    """A number from 0 to `most`, else NaN."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= most:
        return math.nan
    return float(value)


def _text(value: Any) -> str | None:
    return value[:_LONGEST_TEXT] if isinstance(value, str) and value else None


def _list(value: Any) -> list[Any]:
    return value[:_MOST_ITEMS] if isinstance(value, list) else []


def _dicts(value: Any) -> list[dict[str, Any]]:
    return [item for item in _list(value) if isinstance(item, dict)]


def _of_counts(value: Any, depth: int = 0) -> Any:
    """What describes a model, an optimizer or a loader: its numbers count something, so a negative one is unknown."""
    if depth > _DEEPEST:
        return None
    if isinstance(value, dict):
        return {key: _of_counts(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list):
        return [_of_counts(item, depth + 1) for item in value]
    return None if isinstance(value, (int, float)) and value < 0 else value


def _object(value: Any) -> dict[str, Any] | None:
    return _bounded(value) if isinstance(value, dict) else None


def _bounded(value: Any, depth: int = 0) -> Any:
    """A value as it was recorded, but no larger than anybody would read."""
    if isinstance(value, str):
        return value[:_LONGEST_TEXT]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, (int, float)):
        return value if -LATEST_NS < value < LATEST_NS else None  # NaN is in no range
    if depth >= _DEEPEST:
        return None
    if isinstance(value, dict):
        items = list(value.items())[:_MOST_ITEMS]
        return {key[:_LONGEST_TEXT]: _bounded(item, depth + 1) for key, item in items}
    return [_bounded(item, depth + 1) for item in _list(value)]


def _signal(value: Any) -> str | None:
    """The name of a signal, which may be given by number."""
    number = _whole(value, least=1)
    if number is not None:
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return _text(value)
