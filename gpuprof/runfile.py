"""The contents of a run folder: file names and formats, and safe functions to write and read them.
A run folder is made by `gpuprof trace` (or a `Recorder`), and is written during the run, so that it is readable however
the run ends. Files are text, with one JSON document per file or line; a file that takes long to write has a name that
ends in `.partial` until it is complete. Times are integer nanoseconds: `*_ns` durations on a monotonic
clock, `unix_ns` moments since 1970.

    gpuprof-runs/
      latest -> 2026-11-21_101500_train
      2026-11-21_101500_train/
        manifest.json        by the launcher: what was run, with which options, how it ended
        rank0.json           by the process of rank 0: its versions, model, stages and windows; so for every rank
        steps.jsonl          one line per step and rank (thinned out after the windows)
        telemetry.jsonl      power, clocks, load, a few times a second
        phases.4711.jsonl    spans of the phases that a process marked, by its pid
        written.jsonl        paths that the program wrote, made, deleted or renamed; at most 200 a process
        trace.rank0.json.gz  the window with shapes, from torch.profiler (.json until it is compressed)
        samples.rank0.json   Python stacks of unprofiled steps, sampled
        trace.rank0.digest.npz    of several ranks: what a joint diagnosis needs of the window
        stacks.rank0.json.gz memory.rank0.json.gz    the windows that --stacks and --memory ask for
        memory.rank0.oom.pickle memory.rank0.pickle    snapshots of the allocator, with --memory: of the last allocation
                             that failed, and of the end of the recorded steps
        nsys.sqlite          with --nsys, of all ranks: what Nsight Systems recorded, without environment and arguments
        nsys.nsys-rep        its own report, which keeps them (nsys.qdstrm where nsys could not finish it)
        nsys.log             what nsys printed
        hang/                stack.rank0, flight.rank0 …: Python stacks and torch's flight recorder of each rank when it
                             took no step for long; hang.json: what `gpuprof hang` says of them
        nodes/               of a job on several nodes with GPUPROF_TOKEN: on rank 0's node the digests that other nodes
                             sent (trace.rank8.digest.npz …), no_digest.rank9.json {why} of a rank that has none, and
                             exchange.json: received[rank], without_digest{rank: why}, dropped[rank] (not verified),
                             silent[rank], waited_s, failed|null
        changed.txt changed.json    by `gpuprof attach --watch`: what differs from the last good recording, for people
                             and as gpuprof.comparison/1
        history.json         verdict and numbers of the run, for `gpuprof history`
        trial.json           by `gpuprof try`: fixes that were applied from outside, and what they gained
        gpuprof.log          what gpuprof did, and what it failed to do

What each key means, and in which unit, is in record/schema/run-1.json; in short:

manifest.json: schema, gpuprof (version), status (running | finished | failed | killed | interrupted), started and
ended (unix_ns; ended null while running), command (redacted; null for a Recorder), cwd, python, options, variables,
exit{code, signal}|null, host{cpus, memory_bytes, platform}|null.

rank<N>.json: schema, rank, local_rank, world_size, pid, python, torch, cuda, packages{name: version}, step_source
(recorder | trainer | optimizer), steps_seen (that have ended so far), stages[{stage, first_step, steps, unix_ns (its
begin), ns|null}] (ns: the whole stage between two device synchronisations, where it was timed), windows[{window:
trace|stacks|memory|nsys, file, first_step, steps, shapes, stacks, memory, bytes|null (nsys), stop_ns (how long the
  training stalled while the profiler stopped and wrote the file), unrecorded[{step, forwards, ns}] (stretches of
  generate
loops that were left out), where there are any}], imported
(unix_ns at which torch and the trainer's library had been imported)|null, notes[str] (what the user should know: a
profiler of their own was active, shapes left out ...). Once the run has settled also: gpu{index, uuid, name,
memory_bytes}|null (index: as the process counts the GPUs that it sees; uuid: as torch reports it, without the prefix
GPU-), steps_total (what the training said it would take)|null, threads|null (of an op on tensors in host memory),
intervals{save, evaluation, logging (steps from one to the next)}|null, and what could be found of model{}, optimizer{},
loader{}. program{trainer{class, module,
bases[]}|null, arguments{class, module, bases[], fields[], set{}}|null (of the trainer: names of all fields, values of a
few harmless ones), autocast (bfloat16 …, off)|null, switches[str] (of torch that are on: anomaly, deterministic,
cudnn_benchmark, cudnn_deterministic; no_flash_sdp, no_mem_efficient_sdp, no_cudnn_sdp: attention kernels switched off),
flags[{names[], kind}] (that the program declared; never their values),
warnings[{source, text, count}] (about slow paths; secrets masked), reference[{class, function, modules}]
(modules that use a function named by such a warning)}|null. compiler (what torch.compile did){counters,
functions[{id, function, file, line, resumed_at|null (line of the graph break after which it resumes), versions, ops,
guards, guard_us, compile_us, ended_unix_us, limit (of recompilations, reached), failed|null, recompiles[{guard, file,
line, function, count}]}], functions_left_out, breaks[{reason, detail|null, calls[{file, line, function}] (the innermost
last), count}], cudagraph_skips[{reason, count}], recompile_limit|null, read_ns}|null.

A line of steps.jsonl: rank, step (from 1), stage, unix_ns (its end), ns (wall time since the end of the previous step),
device_ns|null (the same measured with events on the GPU's timeline), data_ns (waiting in the DataLoader),
micro_steps|null, samples|null, tokens|null (padded), real_tokens|null, pairs|null (of tokens in one row),
useful_pairs|null (within one document, without padding), labelled_tokens|null, new_shapes|null (calls of the model with
shapes that it had not seen), allocated_bytes|null, reserved_bytes|null, peak_bytes|null, device_allocations|null (calls
of cudaMalloc and cudaFree since the start), profiled (a profiler was active); where they are not 0 also the time that
  the step spent on save_ns, evaluation_ns, logging_ns, garbage_collection_ns, compile_ns. Of an RL training that
  generates also phases_ns{phase: wall time} (sums to ns), rewards_ns{reward function: wall time}, rewards_cpu_ns (CPU
time of its thread), log_probability_passes (times that they were computed without gradients) and generation{calls,
forwards, slots, sequences, prefill_ns, decode_ns, tokens|null, longest|null, p95|null} (of generate loops).

samples.rank<N>.json: schema, python, period_ns (from one sample to the next, on average), begun_ns, ended_ns (on the
monotonic clock), unread (stacks that made no sense), first_step (its number), steps_ns[] (the beginning of the first
step, then the end of each), marks[[what (data, data_end, forward, backward, backward_end, optimizer), ns]],
functions[[whose (own, library, standard, generated, gpuprof), file, name, first line]], nodes[[the calling node (-1:
none), function, line]], samples[[ns since begun_ns, node of the training thread's innermost call, the same of
autograd's thread (-1: no Python)]]; with --sample-workers also workers (processes that were sampled) and
worker_samples[[ns since begun_ns, number of the worker, node]].

A line of telemetry.jsonl: unix_ns, load1, cpu (busy share of all cores, 0-1), gpus[{index (as nvidia-smi counts; a
rank's GPU is found by uuid), uuid, power_w, energy_j (since the driver was loaded), limit_w, sm_mhz, memory_mhz,
temperature_c, utilization and memory_utilization (shares of the time, 0-1), used_bytes, throttle[str] (empty: nothing
holds the clock back; null: the driver does not say)}]; what the driver refuses is null.

phases.<pid>.jsonl: a first line pid, program|null, host, boot|null (identity of the host's boot: its processes share
a monotonic clock), monotonic_ns and unix_ns (of one moment); then a line per span that a program or its trainer marked,
in the order in which they end: phase, thread, begin_ns (on the monotonic clock), ns, cpu_begin_ns (CPU time of the
thread at its begin), cpu_ns. Spans may nest. At most 50,000 of a process.

A line of written.jsonl: verb (writes | makes | deletes | renames | links | changes), path (absolute), pid (of the
Python that did it; null: native code or another program changed it during the run). Caches, temporary files and
compiled Python are left out.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

SCHEMA = "gpuprof.run/1"

RUNS = "gpuprof-runs"
"""Folder that gets a folder per run, in the working directory."""
LATEST = "latest"
MANIFEST = "manifest.json"
STEPS = "steps.jsonl"
TELEMETRY = "telemetry.jsonl"
LOG = "gpuprof.log"
REPORT = "report.html"
PARTIAL = ".partial"

RUN_VARIABLE = "GPUPROF_RUN"
"""Environment variable with the run's folder, for its processes."""

HANG = "hang"
"""Folder in a run's folder into which a rank writes its stacks and collectives when it stalls, or on request."""

NODES = "nodes"
"""Folder in a run's folder for files from other nodes of the job; it exists if digests are exchanged."""
EXCHANGE = "exchange.json"
"""File in NODES with the outcome of rank 0's exchange."""

SUMMARY = "history.json"
"""File with a run's verdict and numbers for `gpuprof history`, so that it need not be diagnosed again."""

CHANGED_TEXT, CHANGED_JSON = "changed.txt", "changed.json"
"""Files of `gpuprof attach --watch` about a change of the step time, in the folder of its recording."""

TRIAL = "trial.json"
"""File with the results of `gpuprof try` for this run, in the run's folder."""
TRIAL_VARIABLE = "GPUPROF_TRIAL"
"""Environment variable with the trial's folder, for its processes."""

NSYS = "nsys"
"""The window of Nsight Systems, which records instead of torch.profiler; also the stem of its files' names."""
NSYS_EXPORT = f"{NSYS}.sqlite"
NSYS_LOG = f"{NSYS}.log"
COUNTED_VARIABLE = "GPUPROF_COUNTED"
"""Set if Nsight Compute runs the target for us; nothing else shows that to the target."""

_KINETO_WINDOWS = ("trace", "stacks", "memory")
WINDOWS = (*_KINETO_WINDOWS, NSYS)

STAGES = ("settle", "baseline_free", "baseline_sync", "sampling", "warmup", *WINDOWS, "after")
"""What a step was used for, in the order of a run; `sampling` comes after the windows if the training's length is not
known."""


WINDOW_FILE = r"(" + "|".join(_KINETO_WINDOWS) + r")\.rank\d+\.json"
"""Pattern of the name of a window's complete, uncompressed trace."""


STALLED = "stalled"
"""File in HANG whose modification says that a rank stalls."""
ASKED = "asked"
"""File in HANG whose modification asks all ranks for their stacks."""


def stack_file(rank: int) -> str:
    """Name of one rank's Python stacks, in the folder HANG."""
    return f"stack.rank{rank}"


def flight_file(rank: int) -> str:
    """Name of one rank's flight recorder dump, in HANG."""
    return f"flight.rank{rank}"


def other_flight_file(rank: int) -> str:
    """Name of the dump of its second recorder, if NCCL and another backend are both in use."""
    return f"flight.other.rank{rank}"


def answer_file(rank: int) -> str:
    """Name of the file in HANG that a rank touches once it has written the others."""
    return f"rank{rank}.wrote"


def ended_file(rank: int) -> str:
    """Name of the file in HANG with the error that ended a rank's program."""
    return f"ended.rank{rank}.error"


def rank_file(rank: int) -> str:
    """Name of one rank's file of facts."""
    return f"rank{rank}.json"


def trace_file(rank: int, window: str = "trace") -> str:
    """Name of a window's trace before it is compressed."""
    return f"{window}.rank{rank}.json"


def digest_file(rank: int) -> str:
    """Name of a rank's digest, in the run's folder or in its folder NODES."""
    return f"trace.rank{rank}.digest.npz"


def no_digest_file(rank: int) -> str:
    """Name of the file in NODES with the reason why a rank has no digest."""
    return f"no_digest.rank{rank}.json"


def samples_file(rank: int) -> str:
    """Name of the samples of a rank's Python stacks, taken without a profiler."""
    return f"samples.rank{rank}.json"


def snapshot_file(rank: int, failed: bool) -> str:
    """Name of a snapshot of torch's allocator: when an allocation failed, or when the recorded steps ended."""
    return f"memory.rank{rank}{'.oom' if failed else ''}.pickle"


def snapshots_in(run: Path) -> list[Path]:
    """The snapshots of a run: those of failed allocations first, lower ranks first. Raises OSError."""
    found = [path for path in run.iterdir() if re.fullmatch(r"memory\.rank\d+(\.oom)?\.pickle", path.name)]
    return sorted(found, key=lambda path: (".oom." not in path.name, len(path.name), path.name))


def phases_file(pid: int) -> str:
    """Name of the file with the phase spans of one process."""
    return f"phases.{pid}.jsonl"


def phase_files_in(run: Path) -> list[Path]:
    """The phase files of a run's processes. Raises OSError."""
    return sorted(path for path in run.iterdir() if re.fullmatch(r"phases\.\d+\.jsonl", path.name))


_RECORDING = re.compile(
    r"(?:trace|stacks)\.rank\d+\.json(?:\.gz)?|memory\.rank\d+\.(?:json(?:\.gz)?|(?:oom\.)?pickle)"
    r"|trace\.rank\d+\.digest\.npz|nsys\.(?:sqlite|nsys-rep|qdstrm)|.*\.partial"
)


def recordings_in(run: Path) -> list[Path]:
    """The large, dispensable files of a run: traces, snapshots, Nsight Systems reports; not logs and verdicts, links or
    folders. Raises OSError."""
    return sorted(
        path for path in run.iterdir() if _RECORDING.fullmatch(path.name) and stat.S_ISREG(path.lstat().st_mode)
    )


def open_regular(path: Path) -> BinaryIO:
    """Opens a regular file for reading. A pipe would block and a device may never end: for these it raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device, not a file", str(path))
        return os.fdopen(descriptor, "rb")
    except BaseException:
        with contextlib.suppress(OSError):
            os.close(descriptor)
        raise


def partial_of(path: Path) -> Path:
    """Where this process writes a file before renaming it to `path`."""
    return path.with_name(f".{path.name[:100]}.{os.getpid()}{PARTIAL}")


def is_being_written(path: Path) -> bool:
    """Whether a running process of this machine is writing this file, or has announced it."""
    names = re.compile(rf"\.{re.escape(path.name[:100])}\.(\d+){re.escape(PARTIAL)}")
    try:
        writers = [found[1] for one in path.parent.iterdir() if (found := names.fullmatch(one.name))]
    except OSError:
        return False
    return any(Path("/proc", pid).exists() for pid in writers)


@contextlib.contextmanager
def whole_file(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A file that gets its name when it is complete: a reader sees the old or the new file, never a part.
    `mode`: its permissions, minus the umask. Raises OSError; after any exception nothing is left behind.
    """
    partial = partial_of(path)
    try:
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            yield file
        partial.replace(path)
    finally:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Writes a document atomically, readable only by its owner. Raises OSError."""
    with whole_file(path, 0o600) as file:
        file.write(json.dumps(value, indent=1, allow_nan=False, default=str).encode() + b"\n")


def read_json(path: Path) -> dict[str, Any] | None:
    """A document, or None if it is missing or incomplete."""
    try:
        with open_regular(path) as file:
            value = json.loads(file.read().decode())
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def ranks_in(run: Path) -> list[dict[str, Any]]:
    """What the ranks of a run have written about themselves, by rank."""
    found = {int(m[1]): path for path in run.iterdir() if (m := re.fullmatch(r"rank(\d{1,6})\.json", path.name))}
    ranks = (read_json(found[rank]) for rank in sorted(found))
    return [rank for rank in ranks if rank is not None]


_ENCODER = json.JSONEncoder(separators=(",", ":"), default=str)


def append_lines(path: Path, values: list[dict[str, Any]]) -> None:
    """Adds lines in one write, so that several processes may share the file. Raises OSError."""
    text = "".join([f"{_ENCODER.encode(value)}\n" for value in values])
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The documents of a file of lines; cut or invalid lines are skipped."""
    try:
        file = io.TextIOWrapper(open_regular(path), encoding="utf-8", errors="replace")
    except OSError:
        return
    with file:
        for line in file:
            try:
                value = json.loads(line)
            except (ValueError, RecursionError):
                continue
            if isinstance(value, dict):
                yield value


def log(folder: Path, message: str) -> None:
    """Appends to the run's log. Never raises: a full disk must not affect the training."""
    stamp = time.strftime("%Y-%m-%d %H:%M:%S")
    line = f"{stamp} [{os.getpid()}] {' '.join(message.split())}\n"
    try:
        descriptor = os.open(folder / LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(descriptor, line.encode("utf-8", "replace"))
        finally:
            os.close(descriptor)
    except OSError:
        pass
