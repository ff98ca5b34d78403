"""What a trial is of: the run of the same command, and what its diagnosis and its steps predict."""

from __future__ import annotations

import contextlib
import math
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpuprof import runfile
from gpuprof.diagnosis.chance import probability
from gpuprof.diagnosis.detect.proposal import CERTAIN, SURE
from gpuprof.diagnosis.diagnose_recording import diagnose_recording
from gpuprof.diagnosis.diagnosis import Diagnosis, Range
from gpuprof.diagnosis.findings.input_workers import SPREAD
from gpuprof.errors import GpuprofError
from gpuprof.record.redact import redact
from gpuprof.replay.loader_queue import Loader, fed_step_ns
from gpuprof.replay.mean_step import FETCH_NS, least_on_cores, slowed_by_sharing
from gpuprof.replay.noise import PROCESS_NOISE
from gpuprof.tracefile.recording import resolve
from gpuprof.tracefile.run import RunFolder, read_run
from gpuprof.trial.fixes import Candidate, saving
from gpuprof.trial.own_flags import own_flags
from gpuprof.trial.trial import Fix, Interval

WORKERS = 4
"""Input workers that are tried where no finding says how many; no more than there are cores."""
START_S = 20.0
"""From the start of a training to its first step, where no run says it."""


@dataclass(frozen=True, slots=True)
class Subject:
    """A run of the command."""

    folder: Path
    run: RunFolder
    diagnosis: Diagnosis | None
    """None where it cannot be diagnosed."""
    start_s: float
    step_s: float | None

    @property
    def has_gpu(self) -> bool:
        """Whether a GPU was recorded."""
        return self.diagnosis is not None and bool(self.diagnosis.environment.gpus)

    @property
    def world_size(self) -> int:
        return self.run.own.world_size or 1


def run_of_command(argv: Sequence[str], folder: Path | None = None) -> Path | None:
    """The newest run of this command in this working directory; None where there is none that took steps."""
    wanted = redact(argv)
    return next((run for run, command in _runs_here(folder) if command == wanted), None)


def latest_command(folder: Path | None = None) -> list[str] | None:
    """The command of the newest run in this working directory, secrets masked; None where there is none that took
    steps."""
    return next((command for _, command in _runs_here(folder) if command), None)


def _runs_here(folder: Path | None) -> Iterator[tuple[Path, list[str] | None]]:
    """The runs of this working directory that took steps, newest first, with their commands."""
    here = os.path.realpath(Path.cwd())
    try:
        found = (folder or Path(runfile.RUNS)).glob(f"*/{runfile.MANIFEST}")
        manifests = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return
    for path in manifests:
        manifest = runfile.read_json(path)
        if manifest is None or path.parent.name == runfile.LATEST:
            continue
        if os.path.realpath(str(manifest.get("cwd"))) == here and any(path.parent.glob("rank*.json")):
            words = manifest.get("command")
            known = isinstance(words, list) and all(isinstance(word, str) for word in words)
            yield path.parent, words if known else None


def subject_of(folder: Path) -> Subject:
    """Reads and diagnoses a run. Raises GpuprofError where the folder is no run."""
    run = read_run(folder)
    diagnosis = None
    with contextlib.suppress(GpuprofError):
        diagnosis = diagnose_recording(resolve(folder))  # of several ranks that of the job
    manifest = runfile.read_json(folder / runfile.MANIFEST) or {}
    rank = runfile.read_json(folder / runfile.rank_file(run.rank)) or {}
    first = next((one.get("unix_ns") for one in rank.get("stages") or () if isinstance(one, dict)), None)
    started = manifest.get("started")
    known = isinstance(first, int) and isinstance(started, int) and first > started
    start_s = (first - started) / 1e9 if known else START_S  # type: ignore[operator]
    step_ns = diagnosis.step_ns if diagnosis is not None else None
    return Subject(folder, run, diagnosis, start_s, None if step_ns is None else step_ns / 1e9)


def predict_workers(subject: Subject, candidate: Candidate) -> Candidate:
    """The step with more input workers, from what the run measured in its loader, where no finding says it.

    On a machine without a GPU nothing is replayed; but the loader is a queue all the same. All of them share the cores
    that were there: a step is no shorter than the CPU time of its batches and of the training's own part, over these.
    """
    run, made = subject.run, (subject.run.own.loader or {}).get("made")
    workers = int((run.own.loader or {}).get("num_workers") or 0)
    if candidate.fix.name != "input_workers" or candidate.step_ns is not None or not isinstance(made, dict):
        return candidate
    wanted = int(candidate.fix.value)
    rows = run.steps.rows("baseline_free", run.rank)
    batch_ns = float(made.get("batch_ns") or 0)
    if not len(rows) or wanted <= workers or not batch_ns:
        return candidate
    took = run.steps.ns[rows].astype(np.float64)
    waited = np.maximum(run.steps.data_ns[rows], 0).astype(np.float64)
    now_ns, consumer_ns = float(took.mean()), float((took - waited).mean())
    micro = run.steps.micro_steps[rows]
    batches = max(float(micro[micro > 0].mean()) if (micro > 0).any() else 1.0, 1.0)
    loader = Loader(batch_ns, workers, spread=float(made.get("spread") or 0.0))
    cpu_ns = float(made.get("batch_cpu_ns") or batch_ns)
    then = slowed_by_sharing(loader, wanted, cpu_ns, run.cpus)
    fed_ns = fed_step_ns(then, consumer_ns, batches, FETCH_NS)
    # The training's own part may use one core, as next to a GPU, or all of them, as torch's CPU kernels do.
    threads = max(run.cpus, 1.0) if run.cpus and not subject.has_gpu else 1.0
    least = [least_on_cores(cpu_ns * batches, consumer_ns * cores, run.cpus) for cores in (1.0, threads)]
    ends = [max(fed_ns, ns) for ns in least]
    step_ns, factor = math.sqrt(ends[0] * ends[1]), SPREAD * (1 + PROCESS_NOISE)
    step = Interval(ends[0] / factor, step_ns, ends[1] * factor)
    gain = Interval(now_ns / (ends[1] * factor), now_ns / step_ns, now_ns / (ends[0] / factor))
    saves = saving(Range(gain.low, gain.expected, gain.high))  # type: ignore[arg-type]
    return replace(candidate, step_ns=step, speedup=gain, saves=saves)


def with_flags(subject: Subject, candidate: Candidate, argv: Sequence[str]) -> Candidate:
    """The candidate made by the program's own flags, where it declared them."""
    own = subject.run.own
    workers = int((own.loader or {}).get("num_workers") or 0)
    if candidate.fix.name == "input_workers" and workers >= int(candidate.fix.value):
        return candidate
    return replace(candidate, flags=own_flags(candidate.fix, own.program, argv))


def with_workers(subject: Subject, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The advised fixes; where no GPU could be diagnosed, workers if the loader's queue says that they gain: four, and
    no more than there are cores."""
    found = subject.diagnosis
    if candidates or found is None or found.findings or found.worth_trying:
        return list(candidates)
    count = max(min(WORKERS, int(subject.run.cpus or WORKERS)), 1)
    predicted = predict_workers(subject, Candidate(Fix("input_workers", str(count))))
    gain = predicted.speedup
    if gain is None or not gain.low or not gain.high or gain.low <= 1:
        return []
    odds = probability(Range(gain.low, gain.expected, gain.high), SURE)
    return [replace(predicted, advised="fixes" if odds >= CERTAIN else "worth_trying", probability=round(odds, 3))]
