"""The memory input of a projection: the recorded peak, and the part that scales with the tokens of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.batches.batch_scaling import indices
from gpuprof.diagnosis.detect.kept_ops import kept_of, mean_tokens, training_of
from gpuprof.diagnosis.detect.repeated.recomputed_passes import recomputed
from gpuprof.diagnosis.projection_input.logits import loss_of
from gpuprof.diagnosis.projection_input.pass_peaks import PassPeaks, pass_peaks
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.projection.changes.attention_scores import score_elements
from gpuprof.projection.memory.activations import SCORE_BYTES, RecordedPeak
from gpuprof.projection.memory.recorded_memory import RecordedMemory, Trained
from gpuprof.timeline.phases import FORWARD
from gpuprof.units import Assumed, Bytes, Convention, Measured, Ratio, Share

HALF_BYTES: Convention[Bytes] = 2
"""Bytes of an element of embeddings and hidden states in half precision."""
BYTES_OF_FORMAT: Convention[dict[str, Ratio]] = {
    "float64": 8.0,
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "int8": 1.0,
    "nf4": 0.52,
    "fp4": 0.52,
}
"""Bytes of a weight by storage format; 4-bit formats include the scales of their blocks."""
ADAMS = ("Adam", "AdamW")
"""Optimizers of torch.optim with two moments per parameter."""
HELD_GRADIENTS: Assumed[Share] = 0.8
"""Smallest share of the gradients' bytes that must be allocated in addition to weights and state, if gradients are
kept."""
OFFLOADED_INPUTS: Measured[Share] = 0.5
"""If more than this share of the layers' inputs is copied to the CPU in the forward pass, they are offloaded. Two
libraries copied all but the last layer's."""


def recorded_memory(diagnosis: Diagnosis, case: Analysis, micro: float, expert_share: float) -> RecordedMemory | None:
    """The memory of a run; None if the run did not record it, or did not record its tokens.

    micro: forward passes per step. expert_share: experts' share of the layers' weights.
    """
    run, folder = diagnosis.run, diagnosis.folder
    if run is None or not run.memory.peak_bytes or run.memory.allocated_bytes is None:
        return None
    rank = diagnosis.environment.rank or 0
    peaks = pass_peaks(folder.steps, rank) if folder is not None else PassPeaks(None, None)
    tokens = peaks.tokens or (run.work.tokens or 0) / micro
    if not tokens:
        return None
    model, optimizer = run.model or {}, run.optimizer or {}
    hidden, layers = model.get("hidden_size") or 0, model.get("layers") or 0
    shape = indices(case)
    traced = float(np.prod(shape)) if shape else tokens
    passes = case.steps * case.devices * max(micro, 1.0)
    gradients = trained_parameters(model, optimizer) * gradient_size(model)
    single = bool(optimizer.get("fused")) or optimizer.get("foreach") is False
    # Steps that end with the optimizer's step still hold gradients; a Trainer has freed them.
    own = run.step_source == "optimizer" and micro == 1
    held = own and _other_bytes(run.memory.allocated_bytes, model, optimizer) >= HELD_GRADIENTS * gradients
    again = bool(model.get("checkpointing")) or bool(recomputed(case).any())
    scores = score_elements(case.timeline) / passes
    at_once = scores.max(initial=0.0) * passes if again else scores.sum()
    counted, mean = kept_of(case, model, passes), mean_tokens(case, passes)
    recorded = RecordedPeak(
        above_bytes=float(max(run.memory.peak_bytes - run.memory.allocated_bytes, 0)),
        tokens=tokens,
        line_fixed_bytes=peaks.fixed_bytes,
        checkpointing=again,
        layers=layers,
        hidden=hidden,
        kept_bytes=0.0 if _offloads(case, layers * hidden * HALF_BYTES, passes) else float(hidden * HALF_BYTES),
        loss=loss_of(case, model.get("vocabulary") or 0, traced, passes),
        gradient_bytes=gradients if held else 0.0,
        temporary_bytes=0.0 if single else gradients,
        score_bytes=float(at_once) * SCORE_BYTES * tokens / traced,
        layer_bytes=counted.total_bytes / mean if counted and mean else None,
    )
    parameters = trained_parameters(model, optimizer)
    return RecordedMemory(
        allocated_bytes=run.memory.allocated_bytes,
        recorded=recorded,
        embedding_bytes=_embedding_bytes(model),
        expert_share=expert_share,
        cast_bytes=(counted.total_bytes - counted.with_half_adapters) / mean if counted and mean else None,
        trained=Trained(
            parameters=parameters,
            state_bytes=float(optimizer.get("state_bytes") or 0),
            gradient_bytes=gradients,
            adam=(optimizer.get("class") or "") in ADAMS,
            single_adapters=bool(model.get("lora")) and training_of(model).single_adapters,
            tensors=int(optimizer.get("tensors") or 0),
        ),
        reserved_bytes=run.memory.reserved_bytes,
    )


def trained_parameters(model: dict, optimizer: dict) -> float:
    """Number of parameters given to the optimizer, without frozen ones."""
    known = [float(count) for count in (optimizer.get("parameters"), model.get("trainable")) if count]
    return min(known, default=0.0)


def gradient_size(model: dict) -> int:
    """Bytes of one parameter's gradient: 4 if the model has enough fp32 parameters to hold all trained ones."""
    trainable, fp32 = model.get("trainable") or 0, (model.get("dtypes") or {}).get("float32", 0)
    return 4 if fp32 >= trainable > 0 else HALF_BYTES


def weight_bytes(model: Mapping[str, Any]) -> float:
    """Size of all weights, adapters included."""
    return sum(
        count * BYTES_OF_FORMAT.get(name, BYTES_OF_FORMAT["float32"])
        for name, count in (model.get("dtypes") or {}).items()
    )


def _other_bytes(allocated: int, model: dict, optimizer: dict) -> float:
    """Memory allocated between steps in addition to weights and optimizer state; negative if those are sharded."""
    return allocated - weight_bytes(model) - (optimizer.get("state_bytes") or 0)


def _embedding_bytes(model: dict) -> float:
    """Size of embeddings and head: one matrix if they are tied, else two."""
    matrix = (model.get("hidden_size") or 0) * (model.get("vocabulary") or 0)
    whole = (model.get("dtypes") or {}).get("bfloat16", 0)
    return float(min(int(np.round(whole / matrix)), 2) * matrix * HALF_BYTES) if matrix else 0.0


def _offloads(case: Analysis, token_bytes: float, passes: float) -> bool:
    """Whether the forward pass copies the layers' inputs to the CPU; `token_bytes`: size of one token's inputs of all
    layers."""
    timeline, gpu, shape = case.timeline, case.trace.gpu, indices(case)
    if not shape or not token_bytes:
        return False
    to_host = case.trace.rows_named(gpu.name, lambda text: "DtoH" in text) & (timeline.phase == FORWARD)
    rows = timeline.members[to_host[timeline.members]]
    return float(gpu.bytes[rows].clip(0).sum()) > OFFLOADED_INPUTS * token_bytes * float(np.prod(shape)) * passes
