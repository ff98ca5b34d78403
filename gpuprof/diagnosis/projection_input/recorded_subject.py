"""The recorded step as the input of a projection, with its work, layers and experts."""

from __future__ import annotations

from gpuprof.costs.ceilings import ceilings_of
from gpuprof.costs.hardware import Gpu, find
from gpuprof.costs.roofline import roofline
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.detect.batches.batch_scaling import indices, micro_tokens
from gpuprof.diagnosis.detect.loops.expert_loops import expert_nodes
from gpuprof.diagnosis.fixes.memory_remedies import memory_fixes
from gpuprof.diagnosis.mean_step.budget_model import Budget
from gpuprof.diagnosis.projection_input.memory_input import gradient_size, recorded_memory, trained_parameters
from gpuprof.diagnosis.recorded.limits import limits
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.errors import GpuprofError
from gpuprof.projection.changes.depth import find_layers
from gpuprof.projection.subject import Subject
from gpuprof.units import Assumed, Ratio
from gpuprof.value_range import Range

POWER_RATIO: Assumed[tuple[Ratio, Ratio]] = 0.4, 2.5
"""Limits of measured / estimated power when that ratio is applied to other GPUs."""


def _why_not(diagnosis: Diagnosis) -> str:
    if diagnosis._analysis is None:
        return "its diagnosis was loaded from JSON, which holds no events; diagnose the recording again"
    if diagnosis.cpu_step is not None:
        return "the training ran on the CPU, and only the work of a GPU is projected"
    error = next((issue.message for issue in diagnosis.quality.issues if issue.severity == "error"), "")
    return diagnosis.replay.reason or error or diagnosis.verdict.summary or "its step could not be replayed"


def subject_of(diagnosis: Diagnosis, recorded_on: Gpu | None = None) -> Subject:
    """The recording behind a diagnosis, ready to be projected; `recorded_on`: its GPU, if the recording does not name
    it.

    Raises GpuprofError, one line, if nothing can be projected from it.
    """
    case = analysis_of(diagnosis)
    path = diagnosis.source.path
    if case is None:
        raise GpuprofError(f"{path}: nothing can be projected from this recording: {_why_not(diagnosis)}")
    info = next(iter(diagnosis.environment.gpus), None)
    gpu = recorded_on or (find(info.name, info.memory_bytes) if info else None)
    if gpu is None:
        named = f"its GPU, {info.name}, is not in the table" if info else "it does not name its GPU"
        raise GpuprofError(f"{path}: {named}; say which it was recorded on: --from GPU (gpuprof gpus lists them)")
    roof = case.roofline
    if roof is None or recorded_on is not None:
        roof = roofline(case.timeline, ceilings_of(gpu))
    assert roof is not None
    removal = case.removal
    run = diagnosis.run
    work = run.work if run else None
    model = (run.model if run else None) or {}
    experts = model.get("experts") or {}
    nodes = expert_nodes(case)
    micro = (work.micro_steps if work else None) or 1.0
    tokens = (work.tokens if work else None) or micro_tokens(case)
    trained = trained_parameters(model, (run.optimizer if run else None) or {})
    memory = recorded_memory(diagnosis, case, micro, 0.0 if nodes is None else _expert_weights(model))
    return Subject(
        path=path,
        gpu=gpu,
        device_name=info.name if info else None,
        memory_bytes=info.memory_bytes if info else None,
        graph=removal.graph,
        quicker=removal.quicker,
        slower=removal.slower,
        step_ns=_step(case, diagnosis.budget),
        mean=case.mean,
        bound=limits(case.timeline, case.roofline),
        roofline=roof,
        samples=_samples(diagnosis, case),
        tokens=tokens,
        micro_steps=micro,
        layers=find_layers(removal.graph, model.get("layers")),
        expert_nodes=nodes,
        experts=experts.get("count") if nodes is not None else None,
        experts_active=experts.get("active"),
        expert_adapters=_expert_adapters(model) if nodes is not None else 0.0,
        memory=memory,
        memory_fixes=() if memory is None else memory_fixes(memory, None if tokens is None else tokens / micro),
        world_size=diagnosis.environment.world_size or 1,
        trained_bytes=trained * gradient_size(model) or None,
        power_ratio=_power_ratio(run),
        unit=diagnosis.unit,
        notes=tuple(issue.message for issue in diagnosis.quality.issues if issue.severity == "warning"),
    )


def _power_ratio(run: Run | None) -> float:
    """Measured / estimated power, within POWER_RATIO; 1 if unknown."""
    energy = None if run is None else run.energy
    if energy is None or not energy.estimated_w or energy.power_w <= 0:
        return 1.0
    low, high = POWER_RATIO
    return min(max(energy.power_w / energy.estimated_w, low), high)


def _step(case: Analysis, budget: Budget | None) -> Range:
    """The mean step with its 80 % interval: that of the usual step, or of the timed mean if wider."""
    removal, mean = case.removal, case.mean_ns
    low, high = (mean * end / removal.step_ns for end in (removal.low_ns, removal.high_ns))
    if budget is not None and budget.source == "free":
        low, high = min(low, budget.low), max(high, budget.high)
    return Range(min(low, mean), mean, max(high, mean))


def _samples(diagnosis: Diagnosis, case: Analysis) -> float | None:
    """Samples per step. A batch joined into one row counts as the loader's batch size."""
    run = diagnosis.run
    samples = run.work.samples if run else None
    if not run or not samples:
        # Each row of indices is a sample; a single row may contain several packed samples.
        shape = indices(case)
        passes = (run.work.micro_steps or 1.0) if run else 1.0
        return shape[0] * passes if shape and len(shape) == 2 and shape[0] > 1 else None
    micro = run.work.micro_steps or 1.0
    size = (run.loader or {}).get("batch_size")
    return size * micro if samples / micro == 1 and isinstance(size, int) and size > 1 else samples


def _expert_adapters(model: dict) -> float:
    """Share of experts, whose names are numbers, among the adapted modules."""
    adapted = (model.get("lora") or {}).get("adapted") or {}
    total = sum(adapted.values())
    return sum(count for name, count in adapted.items() if name.isdigit()) / total if total else 0.0


def _expert_weights(model: dict) -> float:
    """Share of experts in the layers' parameters: everything quantised except attention, whose four projections are
    assumed to be as wide as the model."""
    quantised = (model.get("quantization") or {}).get("parameters") or 0
    attention = 4 * (model.get("hidden_size") or 0) ** 2 * (model.get("layers") or 0)
    return max(quantised - attention, 0) / quantised if quantised else _expert_adapters(model)
