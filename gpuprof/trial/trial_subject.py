"""The subject of a trial: a run of the same command, and the predictions of its diagnosis."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from gpuprof import runfile
from gpuprof.diagnosis.detect.declared.proposal import CERTAIN_CHANCE, SURE_GAIN
from gpuprof.diagnosis.diagnose_recording import diagnose_recording
from gpuprof.diagnosis.fixes.chance import probability
from gpuprof.diagnosis.fixes.more_workers import usual_workers, with_more_workers
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.errors import GpuprofError
from gpuprof.record.base.redact import redact
from gpuprof.record.patches import WORKERS
from gpuprof.tracefile.recording import resolve
from gpuprof.tracefile.run_folder.run import RunFolder, read_run
from gpuprof.trial.fixes import FixToTry, saving
from gpuprof.trial.own_flags import own_flags
from gpuprof.trial.trial import TriedFix
from gpuprof.units import Assumed, Seconds

START_S: Assumed[Seconds] = 20.0
"""Assumed time from the start of a training to its first step, if no run has measured it."""


@dataclass(frozen=True, slots=True)
class TrialSubject:
    """A run of the command."""

    folder: Path
    run: RunFolder
    diagnosis: Diagnosis | None
    """None if it cannot be diagnosed."""
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
    """The newest run of this command in this working directory that took steps; None if there is none."""
    wanted = redact(argv)
    return next((run for run, command in _runs_here(folder) if command == wanted), None)


def latest_command(folder: Path | None = None) -> list[str] | None:
    """The command of the newest run in this working directory that took steps, secrets masked; None if there is
    none."""
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


def subject_of(folder: Path) -> TrialSubject:
    """Reads and diagnoses a run. Raises GpuprofError if the folder is not a run."""
    run = read_run(folder)
    diagnosis = None
    with contextlib.suppress(GpuprofError):
        diagnosis = diagnose_recording(resolve(folder))  # with several ranks, the job's
    manifest = runfile.read_json(folder / runfile.MANIFEST) or {}
    rank = runfile.read_json(folder / runfile.rank_file(run.rank)) or {}
    first = next((one.get("unix_ns") for one in rank.get("stages") or () if isinstance(one, dict)), None)
    started = manifest.get("started")
    known = isinstance(first, int) and isinstance(started, int) and first > started
    start_s = (first - started) / 1e9 if known else START_S  # type: ignore[operator]
    step_ns = diagnosis.step_ns if diagnosis is not None else None
    return TrialSubject(folder, run, diagnosis, start_s, None if step_ns is None else step_ns / 1e9)


def predict_workers(subject: TrialSubject, candidate: FixToTry) -> FixToTry:
    """Adds a prediction for more input workers from the run's loader measurements, if no finding has one."""
    if candidate.fix.name != WORKERS or candidate.step_ns is not None:
        return candidate
    found = with_more_workers(subject.run, int(candidate.fix.value), subject.has_gpu)
    if found is None:
        return candidate
    step_ns, gain = found
    return replace(candidate, step_ns=step_ns, speedup=gain, saves=saving(gain))


def with_flags(subject: TrialSubject, candidate: FixToTry, argv: Sequence[str]) -> FixToTry:
    """The candidate applied through the program's own flags, if it declares them."""
    own = subject.run.own
    workers = int((own.loader or {}).get("num_workers") or 0)
    if candidate.fix.name == WORKERS and workers >= int(candidate.fix.value):
        return candidate
    return replace(candidate, flags=own_flags(candidate.fix, own.program, argv))


def with_workers(subject: TrialSubject, candidates: Sequence[FixToTry]) -> list[FixToTry]:
    """The advised fixes; if no GPU was diagnosed and the loader is the bottleneck, also input workers: four, or the
    number of cores if smaller."""
    found = subject.diagnosis
    if candidates or found is None or found.findings or found.worth_trying:
        return list(candidates)
    predicted = predict_workers(subject, FixToTry(TriedFix(WORKERS, str(usual_workers(subject.run)))))
    gain = predicted.speedup
    if gain is None or gain.low <= 1:
        return []
    odds = probability(gain, SURE_GAIN)
    return [
        replace(predicted, advised="fixes" if odds >= CERTAIN_CHANCE else "worth_trying", probability=round(odds, 3))
    ]
