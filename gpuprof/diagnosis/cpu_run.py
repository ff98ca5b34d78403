"""Diagnosis of a training without a GPU, from timed steps. Nothing is replayed, so the verdict has no confidence."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpuprof.diagnosis.detect.cpu.own_lines import batch_lines
from gpuprof.diagnosis.detect.declared.proposal import (
    CERTAIN_CHANCE,
    LEAST_CHANCE,
    LEAST_GAIN,
    MARKED_GAIN,
    SEVERE_GAIN,
    SURE_GAIN,
)
from gpuprof.diagnosis.findings import with_role
from gpuprof.diagnosis.fixes.chance import probability, time_left
from gpuprof.diagnosis.fixes.more_workers import usual_workers, with_more_workers
from gpuprof.diagnosis.mean_step.budget import in_words
from gpuprof.diagnosis.plain_diagnosis import plain_diagnosis
from gpuprof.diagnosis.result.cpu_step import CpuStep, prepares_batches
from gpuprof.diagnosis.result.diagnosis import Diagnosis, Verdict
from gpuprof.diagnosis.result.finding_model import Evidence, Finding, Remaining
from gpuprof.diagnosis.result.fix import call
from gpuprof.diagnosis.sentences import duration
from gpuprof.diagnosis.verdict.verdict import family_of
from gpuprof.record.patches import WORKERS
from gpuprof.value_range import Range

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.result.run_model import Run
    from gpuprof.timeline.unit import Unit


def of_cpu_run(analysis: Analysis, step: CpuStep, advise: bool) -> Diagnosis:
    """The diagnosis of a run without a GPU: where the mean step goes, and more workers if they gain."""
    assert analysis.budget is not None
    found = plain_diagnosis(
        analysis, verdict=_verdict(analysis, step), quality=analysis.quality, steps=analysis.step_times
    )
    fix = _more_workers(analysis, step) if advise else None
    certain = fix is not None and fix.probability >= CERTAIN_CHANCE and fix.speedup.low >= SURE_GAIN
    return replace(
        found,
        cpu_step=step,
        findings=(fix,) if fix is not None and certain else (),
        worth_trying=(fix,) if fix is not None and not certain else (),
    )


def _verdict(analysis: Analysis, step: CpuStep) -> Verdict:
    """`input` if batches take the largest part of the step, else `host`."""
    assert analysis.budget is not None
    parts = {"input": float(step.input_ns), "own": float(step.own_ns), "other": float(step.other_ns)}
    if step.ops_ns is not None:
        del parts["own"]
        parts |= {"ops": step.ops_ns, "python": step.own_ns - step.ops_ns}
    first = max(parts, key=lambda name: parts[name])
    bound = "input" if first == "input" else "host"
    said = (*in_words(analysis.budget, analysis.unit), _sentence(analysis.run, step, analysis.unit))
    return Verdict(bound, family_of(bound), "python" if first == "python" else None, None, said)


def _sentence(run: Run | None, step: CpuStep, unit: Unit) -> str:
    """`Preparing batches takes 35.9 ms of the mean step, PyTorch's ops about 6.0 ms, the Python between them 1 ms.`"""
    if not step.input_ns:
        return _own_sentence(step, unit)
    takes = "Preparing batches takes" if prepares_batches(run) else "Waiting for batches takes"
    own = f"the training itself {duration(step.own_ns)}"
    if step.ops_ns is not None:
        python = duration(step.own_ns - step.ops_ns)
        own = f"PyTorch's ops about {duration(step.ops_ns)}, the Python between them about {python}"
    return f"{takes} {duration(step.input_ns)} of the mean {unit}, {own}."


def _own_sentence(step: CpuStep, unit: Unit) -> str:
    """`PyTorch's ops take about 6.0 ms of the mean step, the Python between them about 1 ms.`"""
    if step.ops_ns is None:
        return f"The training itself takes {duration(step.own_ns)} of the mean {unit}."
    ops, python = duration(step.ops_ns), duration(step.own_ns - step.ops_ns)
    return f"PyTorch's ops take about {ops} of the mean {unit}, the Python between them about {python}."


def _more_workers(analysis: Analysis, step: CpuStep) -> Finding | None:
    """The fix of more input workers, if the loader's queue says that they gain; None if not, or if it was not
    measured."""
    folder, run = analysis.folder, analysis.run
    assert folder is not None
    wanted = usual_workers(folder)
    predicted = with_more_workers(folder, wanted, has_gpu=False)
    if predicted is None:
        return None
    (step_ns, gain), now = predicted, int((folder.own.loader or {}).get("num_workers") or 0)
    odds = probability(gain, SURE_GAIN)
    if gain.expected < LEAST_GAIN or odds < LEAST_CHANCE or 1 / time_left(gain) < LEAST_GAIN:
        return None
    loader = call("DataLoader", ..., num_workers=wanted, persistent_workers=True)
    setting = analysis.stack.setting({"dataloader_num_workers": wanted}, {"dataloader_persistent_workers": True})
    fix = analysis.stack.fix(loader, setting).by(WORKERS, wanted)
    left = run.remaining_ns if run else None
    does = "waits for its workers" if now else "prepares its batches itself"
    return Finding(
        id=with_role("loader_workers"),
        title=f"input workers {now} → {wanted}" if now else f"input workers: {wanted}",
        severity="high" if gain.expected >= SEVERE_GAIN else "medium" if gain.expected >= MARKED_GAIN else "low",
        evidence=(
            Evidence(
                f"the training {does}: {duration(step.input_ns)} of the mean step of {duration(step.mean_ns)}",
                lines=batch_lines(folder),
            ),
        ),
        fix=str(fix),
        fix_lines=fix.lines,
        settings=fix.settings,
        patch=fix.patch,
        step_ns=Range(*(round(ns) for ns in (step_ns.low, step_ns.expected, step_ns.high))),
        speedup=gain,
        remaining_ns=None
        if not left
        else Remaining(left, *(round(left / times) for times in (gain.high, gain.expected, gain.low))),
        probability=round(odds, 3),
        settle=None if fix.patch is None else fix.patch.command(run.command if run else None),
        acts_on=("input",),
    )
