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
from typing import Any

import numpy as np

from gpuprof import runfile
from gpuprof.errors import UnreadableTrace
from gpuprof.nsight.convert import REPORTS
from gpuprof.tracefile.nsys.address import with_process
from gpuprof.tracefile.nsys.report import EXPORTS
from gpuprof.tracefile.run_folder.compiler import Compiler, compiler_of
from gpuprof.tracefile.run_folder.phased_steps import PhasedStep, phased_steps
from gpuprof.tracefile.run_folder.program import Program, program_of
from gpuprof.tracefile.run_folder.telemetry import TelemetryColumns, bare_uuid, telemetry_of, uuids
from gpuprof.tracefile.run_folder.untrusted import LARGEST_NUMBER, dicts, items, mapping, of_counts, string, whole
from gpuprof.tracefile.trace import ABSENT, I32, I64, LATEST_NS, U8, Columns, Mask
from gpuprof.units import Assumed, Bytes, Code, Convention

UNKNOWN_STAGE: Convention[Code] = 255
"""A stage unknown to this version."""

STATUSES = ("running", "finished", "failed", "killed", "interrupted")


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
    """A recorded window, and the steps in it."""

    window: str
    file: str | None
    first_step: int | None
    steps: int | None
    unrecorded: int = 0
    """Forward passes of generate loops that it left out."""


@dataclass(frozen=True, slots=True)
class Rank:
    """One rank's facts (rank<N>.json)."""

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
    command: tuple[str, ...] | None = None
    """Words of the recorded command, secrets masked; None where the program recorded itself."""
    """CPU cores that the run may use: those of its affinity, or its control group's share of them."""
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
    manifest = _document(folder / runfile.MANIFEST, damaged)
    ranks = _ranks(folder, names, damaged)
    lines = _lines(folder / runfile.STEPS, damaged)
    steps = _steps(lines)
    used = {bare_uuid(r.gpu.uuid) for r in ranks if r.gpu and r.gpu.uuid}
    samples = _lines(folder / runfile.TELEMETRY, damaged)
    telemetry, reasons = telemetry_of(samples, used)
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
        exit_code=whole(exit_.get("code"), least=-LARGEST_NUMBER),
        exit_signal=_signal(exit_.get("signal")),
        ranks=ranks,
        steps=steps,
        telemetry=telemetry,
        throttle_reasons=reasons,
        rank=rank,
        trace=traces.get(rank),
        nsys=_export(folder, names, next((one.pid for one in ranks if one.rank == rank), None)),
        damaged=tuple(damaged),
        started_ns=whole(manifest.get("started"), least=1, most=LATEST_NS),
        cpus=_cpus(manifest.get("host")),
        command=_command(manifest.get("command")),
        phased=phased_steps(lines),
        others_telemetry=telemetry_of(samples, set())[0] if len(ranks) == 1 and uuids(samples) - used else None,
    )


def _command(words: Any) -> tuple[str, ...] | None:
    """The words of a manifest's command; None where it has none, or they are no texts."""
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        return None
    return tuple(words)


def _cpus(host: Any) -> float | None:
    """The smaller of the number of cores and the quota in a manifest's host."""
    found = host if isinstance(host, dict) else {}
    values = [found.get(name) for name in ("cpus", "cpu_quota")]
    known = [
        float(v) for v in values if isinstance(v, (int, float)) and not isinstance(v, bool) and 0 < v < LARGEST_NUMBER
    ]
    return min(known, default=None)


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
            found.append(_rank(int(match[1]), document))
    return tuple(sorted(found, key=lambda rank: rank.rank))


def _rank(rank: int, document: dict[str, Any]) -> Rank:
    gpu = document.get("gpu")
    return Rank(
        rank=rank,
        pid=whole(document.get("pid"), least=1),
        world_size=whole(document.get("world_size"), least=1),
        versions=_versions(document),
        gpu=_gpu(gpu) if isinstance(gpu, dict) else None,
        step_source=string(document.get("step_source")),
        steps_total=whole(document.get("steps_total")),
        steps_seen=whole(document.get("steps_seen")),
        intervals=_intervals(document.get("intervals")),
        model=mapping(of_counts(document.get("model"))),
        optimizer=mapping(of_counts(document.get("optimizer"))),
        loader=mapping(of_counts(document.get("loader"))),
        program=program_of(document.get("program")),
        compiler=compiler_of(document.get("compiler")),
        stages=tuple(
            StageTime(name, whole(stage.get("first_step")), whole(stage.get("steps")), whole(stage.get("ns"), least=1))
            for stage in dicts(document.get("stages"))
            if (name := string(stage.get("stage")))
        ),
        windows=tuple(
            RecordedWindow(
                name,
                string(window.get("file")),
                whole(window.get("first_step")),
                whole(window.get("steps")),
                sum(whole(one.get("forwards")) or 0 for one in dicts(window.get("unrecorded"))),
            )
            for window in dicts(document.get("windows"))
            if (name := string(window.get("window")))
        ),
        notes=tuple(text for note in items(document.get("notes")) if (text := string(note))),
    )


def _intervals(value: Any) -> dict[str, int]:
    found = value if isinstance(value, dict) else {}
    each = {name: whole(found.get(name), least=1) for name in ("save", "evaluation", "logging")}
    return {name: every for name, every in each.items() if every is not None}


def _gpu(gpu: dict[str, Any]) -> RunGpu:
    return RunGpu(
        index=whole(gpu.get("index"), most=2**31 - 1),
        uuid=string(gpu.get("uuid")),
        name=string(gpu.get("name")),
        memory_bytes=whole(gpu.get("memory_bytes"), least=1),
    )


def _versions(document: dict[str, Any]) -> dict[str, str]:
    """Versions under the names used in Kineto traces, then those of packages."""
    found = {
        key: text
        for key, name in (("torch_version", "torch"), ("cuda_version", "cuda"), ("python_version", "python"))
        if (text := string(document.get(name)))
    }
    packages = mapping(document.get("packages")) or {}
    return found | {name: text for name, value in packages.items() if name not in found and (text := string(value))}


def _steps(lines: list[dict[str, Any]]) -> StepColumns:
    stages = {stage: i for i, stage in enumerate(runfile.STAGES)}
    # A line without a step's number or duration is useless.
    rows = [line for line in lines if whole(line.get("step")) is not None and whole(line.get("ns")) is not None]
    named = [stage if isinstance(stage := line.get("stage"), str) else "" for line in rows]
    return StepColumns(
        rank=np.array([whole(line.get("rank"), most=2**31 - 1) or 0 for line in rows], np.int32),
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
        # Anything except false counts as profiled: a doubtful step must not become part of the baseline.
        profiled=np.array([line.get("profiled") not in (False, None) for line in rows], bool),
    )


def _column(rows: list[dict[str, Any]], key: str, most: int = LARGEST_NUMBER) -> I64:
    found = [whole(row.get(key), most=most) for row in rows]
    return np.array([ABSENT if value is None else value for value in found], np.int64)


def _signal(value: Any) -> str | None:
    """The name of a signal, which may be given by number."""
    number = whole(value, least=1)
    if number is not None:
        try:
            return signal.Signals(number).name
        except ValueError:
            return f"signal {number}"
    return string(value)
