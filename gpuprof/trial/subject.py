"""What a trial is of: the run of the same command, and what its diagnosis and its steps predict."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gpuprof import runfile
from gpuprof.diagnosis.diagnose import diagnose
from gpuprof.diagnosis.diagnosis import Diagnosis
from gpuprof.diagnosis.findings.input_workers import SPREAD
from gpuprof.errors import GpuprofError
from gpuprof.record.redact import redact
from gpuprof.replay.loader_queue import Loader, fed_step_ns
from gpuprof.replay.mean_step import FETCH_NS, slowed_by_sharing
from gpuprof.replay.noise import PROCESS_NOISE
from gpuprof.tracefile.recording import resolve
from gpuprof.tracefile.run import RunFolder, read_run
from gpuprof.trial.fixes import Candidate
from gpuprof.trial.own_flags import own_flags
from gpuprof.trial.trial import Interval

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
    def world_size(self) -> int:
        return self.run.own.world_size or 1


def run_of_command(argv: Sequence[str], folder: Path | None = None) -> Path | None:
    """The newest run of this command in this working directory; None where there is none that took steps."""
    runs = folder or Path(runfile.RUNS)
    wanted, here = redact(argv), os.path.realpath(Path.cwd())
    try:
        manifests = sorted(runs.glob(f"*/{runfile.MANIFEST}"), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return None
    for path in manifests:
        manifest = runfile.read_json(path)
        if manifest is None or path.parent.name == runfile.LATEST or manifest.get("command") != wanted:
            continue
        if os.path.realpath(str(manifest.get("cwd"))) == here and any(path.parent.glob("rank*.json")):
            return path.parent
    return None


def subject_of(folder: Path) -> Subject:
    """Reads and diagnoses a run. Raises GpuprofError where the folder is no run."""
    run = read_run(folder)
    diagnosis = None
    try:
        found = resolve(folder).read()
        diagnosis = diagnose(found.trace, run=found.run, named=found.named, failure=found.failure)
    except GpuprofError:
        pass
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

    On a machine without a GPU nothing is replayed; but the loader is a queue all the same.
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
    then = slowed_by_sharing(loader, wanted, float(made.get("batch_cpu_ns") or batch_ns), run.cpus)
    step_ns = fed_step_ns(then, consumer_ns, batches, FETCH_NS)
    factor = SPREAD * (1 + PROCESS_NOISE)
    step = Interval(step_ns / factor, step_ns, step_ns * factor)
    gain = Interval(now_ns / (step_ns * factor), now_ns / step_ns, now_ns / (step_ns / factor))
    return replace(candidate, step_ns=step, speedup=gain)


def with_flags(subject: Subject, candidate: Candidate, argv: Sequence[str]) -> Candidate:
    """The candidate made by the program's own flags, where it declared them."""
    own = subject.run.own
    workers = int((own.loader or {}).get("num_workers") or 0)
    if candidate.fix.name == "input_workers" and workers >= int(candidate.fix.value):
        return candidate
    return replace(candidate, flags=own_flags(candidate.fix, own.program, argv))


def worth_trying(subject: Subject, candidates: Sequence[Candidate], workers: Candidate) -> list[Candidate]:
    """The advised fixes; where no GPU could be diagnosed, workers if the loader's queue says that they gain."""
    if candidates or subject.diagnosis is None or subject.diagnosis.findings:
        return list(candidates)
    predicted = predict_workers(subject, workers)
    return [predicted] if predicted.speedup and predicted.speedup.low and predicted.speedup.low > 1 else []
