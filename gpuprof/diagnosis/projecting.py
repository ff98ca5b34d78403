"""From a diagnosis to what a projection needs of it."""

from __future__ import annotations

import numpy as np

from gpuprof.costs.ceilings import ceilings_of
from gpuprof.costs.hardware import Gpu, find
from gpuprof.costs.roofline import roofline
from gpuprof.diagnosis.case import Case
from gpuprof.diagnosis.findings.expert_loop import find_loops
from gpuprof.diagnosis.findings.larger_batch import micro_tokens
from gpuprof.diagnosis.model import Diagnosis
from gpuprof.diagnosis.passes import backward_of, nodes_in, without_recompute
from gpuprof.errors import GpuprofError
from gpuprof.projection.depth import find_layers
from gpuprof.projection.memory import Told
from gpuprof.projection.model import Interval
from gpuprof.projection.subject import Subject
from gpuprof.replay.graph import Mask

OFFLOADING = "unsloth"
"""A stack that keeps the layers' inputs in the host's memory while checkpointing."""
_BYTES = 2
"""Of an element of embeddings and hidden states in half precision."""


def subject_of(diagnosis: Diagnosis, recorded_on: Gpu | None = None) -> Subject:
    """The recording behind a diagnosis, ready to be projected; `recorded_on`: where it does not name its GPU.

    Raises GpuprofError, one line, where nothing can be projected from it.
    """
    case = diagnosis._case
    path = diagnosis.source.path
    if case is None:
        why = diagnosis.replay.reason or diagnosis.verdict.summary or "its step could not be replayed"
        raise GpuprofError(f"{path}: nothing can be projected from this recording: {why}")
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
    nodes = _expert_nodes(case)
    micro = (work.micro_steps if work else None) or 1.0
    tokens = (work.tokens if work else None) or micro_tokens(case)
    optimizer = (run.optimizer if run else None) or {}
    trained = optimizer.get("parameters")
    return Subject(
        path=path,
        gpu=gpu,
        device_name=info.name if info else None,
        memory_bytes=info.memory_bytes if info else None,
        graph=removal.graph,
        quicker=removal.quicker,
        slower=removal.slower,
        step_ns=Interval(removal.low_ns, removal.step_ns, removal.high_ns),
        roofline=roof,
        samples=_samples(diagnosis),
        tokens=tokens,
        micro_steps=micro,
        layers=find_layers(removal.graph, model.get("layers")),
        expert_nodes=nodes,
        experts=experts.get("count") if nodes is not None else None,
        experts_active=experts.get("active"),
        expert_adapters=_expert_adapters(model) if nodes is not None else 0.0,
        memory=_memory(diagnosis, micro, nodes is not None),
        trained_bytes=None if not trained else float(trained) * _gradient_bytes(model),
        notes=tuple(issue.message for issue in diagnosis.quality.issues if issue.severity == "warning"),
    )


def _samples(diagnosis: Diagnosis) -> float | None:
    """Samples of a step. A batch that was joined into one row counts as the loader's batch."""
    run = diagnosis.run
    samples = run.work.samples if run else None
    if not run or not samples:
        return None
    micro = run.work.micro_steps or 1.0
    size = (run.loader or {}).get("batch_size")
    return size * micro if samples / micro == 1 and isinstance(size, int) and size > 1 else samples


def _expert_nodes(case: Case) -> Mask | None:
    """Nodes of loops over experts, forward and backward; None where there are none."""
    loops = find_loops(case)
    if loops is None:
        return None
    forward = nodes_in(case, loops.stretches)
    backward = without_recompute(case, nodes_in(case, backward_of(case, loops.stretches)))
    return (forward >= 0) | (backward >= 0)


def _expert_adapters(model: dict) -> float:
    """Of the adapted modules those of experts, which are numbered."""
    adapted = (model.get("lora") or {}).get("adapted") or {}
    total = sum(adapted.values())
    return sum(count for name, count in adapted.items() if name.isdigit()) / total if total else 0.0


def _gradient_bytes(model: dict) -> int:
    """Of one trained parameter: adapters are fp32 where the model says that it has fp32 parameters for them."""
    trainable, fp32 = model.get("trainable") or 0, (model.get("dtypes") or {}).get("float32", 0)
    return 4 if fp32 >= trainable > 0 else _BYTES


def _memory(diagnosis: Diagnosis, micro: float, loops: bool) -> Told | None:
    """What the run tells of its memory."""
    run, folder = diagnosis.run, diagnosis._folder
    if run is None or not run.memory.peak_bytes or run.memory.allocated_bytes is None:
        return None
    model = run.model or {}
    tokens = (run.work.tokens or 0) / micro
    if folder is not None:
        known = folder.steps.tokens[(folder.steps.tokens > 0) & ~folder.steps.profiled]
        each = folder.steps.micro_steps[(folder.steps.tokens > 0) & ~folder.steps.profiled].clip(1)
        tokens = float((known / each).max()) if len(known) else tokens
    if not tokens:
        return None
    hidden, vocabulary = model.get("hidden_size") or 0, model.get("vocabulary") or 0
    matrix = hidden * vocabulary
    whole = (model.get("dtypes") or {}).get("bfloat16", 0)
    # Where the head is the embedding's own matrix there is one, else there are two.
    matrices = min(int(np.round(whole / matrix)), 2) if matrix else 0
    offloaded = OFFLOADING in (diagnosis.environment.versions or {})
    return Told(
        allocated_bytes=run.memory.allocated_bytes,
        peak_bytes=run.memory.peak_bytes,
        tokens=tokens,
        embedding_bytes=float(matrices * matrix * _BYTES),
        expert_share=_expert_weights(model) if loops else 0.0,
        checkpointing=bool(model.get("checkpointing")),
        kept_bytes=0.0 if offloaded else float(hidden * _BYTES),
    )


def _expert_weights(model: dict) -> float:
    """Of the layers' parameters those of experts: all that is quantised but for attention, whose four projections are
    taken to be as wide as the model."""
    quantised = (model.get("quantization") or {}).get("parameters") or 0
    attention = 4 * (model.get("hidden_size") or 0) ** 2 * (model.get("layers") or 0)
    return max(quantised - attention, 0) / quantised if quantised else _expert_adapters(model)
