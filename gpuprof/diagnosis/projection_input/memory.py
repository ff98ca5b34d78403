"""The memory that a projection starts from: the recorded peak, and the part that scales with the tokens of a pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.batch_scaling import indices
from gpuprof.diagnosis.detect.kept_ops import kept_of, mean_tokens, training_of
from gpuprof.diagnosis.detect.recomputed_passes import recomputed
from gpuprof.diagnosis.diagnosis import Diagnosis
from gpuprof.diagnosis.projection_input.logits import loss_of
from gpuprof.diagnosis.projection_input.pass_peaks import PassPeaks, pass_peaks
from gpuprof.projection.activations import SCORE_BYTES, Recorded
from gpuprof.projection.attention_scores import score_elements
from gpuprof.projection.memory import RecordedMemory, Trained
from gpuprof.timeline.phases import FORWARD

HALF_BYTES = 2
"""Of an element of embeddings and hidden states in half precision."""
BYTES = {"float64": 8.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "nf4": 0.52, "fp4": 0.52}
"""Of a weight by how it is stored; of those in four bits with their blocks' scales."""
ADAMS = ("Adam", "AdamW")
"""Optimizers of torch.optim with two moments for each parameter."""
HELD = 0.8
"""Of the gradients' bytes: with less room next to weights and state they are not among what is allocated."""
OFFLOADED = 0.5
"""Of the layers' inputs: a stack that copies more to the host in the forward pass keeps them there. Two stacks copied
all but the last layer's."""


def recorded_memory(diagnosis: Diagnosis, case: Analysis, micro: float, expert_share: float) -> RecordedMemory | None:
    """The memory of a run; None where the run did not record it, or not what it went through.

    micro: forward passes of a step. expert_share: of the layers' weights those of experts.
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
    # Steps that end as the optimizer's does still hold their gradients then; a Trainer has dropped them.
    own = run.step_source == "optimizer" and micro == 1
    held = own and _other_bytes(run.memory.allocated_bytes, model, optimizer) >= HELD * gradients
    again = bool(model.get("checkpointing")) or bool(recomputed(case).any())
    scores = score_elements(case.timeline) / passes
    at_once = scores.max(initial=0.0) * passes if again else scores.sum()
    counted, mean = kept_of(case, model, passes), mean_tokens(case, passes)
    recorded = Recorded(
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
    """Those that the optimizer was given; fewer where some of them are frozen."""
    known = [float(count) for count in (optimizer.get("parameters"), model.get("trainable")) if count]
    return min(known, default=0.0)


def gradient_size(model: dict) -> int:
    """Bytes of one trained parameter's: adapters are fp32 where the model says that it has fp32 parameters for them."""
    trainable, fp32 = model.get("trainable") or 0, (model.get("dtypes") or {}).get("float32", 0)
    return 4 if fp32 >= trainable > 0 else HALF_BYTES


def weight_bytes(model: Mapping[str, Any]) -> float:
    """Of all weights, adapters included."""
    return sum(count * BYTES.get(name, 4.0) for name, count in (model.get("dtypes") or {}).items())


def _other_bytes(allocated: int, model: dict, optimizer: dict) -> float:
    """What is allocated between steps in addition to weights and the optimizer's state; below 0 where those are in
    shards."""
    return allocated - weight_bytes(model) - (optimizer.get("state_bytes") or 0)


def _embedding_bytes(model: dict) -> float:
    """Of embeddings and head. Where the head is the embedding's own matrix there is one, else there are two."""
    matrix = (model.get("hidden_size") or 0) * (model.get("vocabulary") or 0)
    whole = (model.get("dtypes") or {}).get("bfloat16", 0)
    return float(min(int(np.round(whole / matrix)), 2) * matrix * HALF_BYTES) if matrix else 0.0


def _offloads(case: Analysis, token_bytes: float, passes: float) -> bool:
    """Whether the forward pass copies the inputs of layers to the host; `token_bytes`: of a token's in all layers."""
    timeline, gpu, shape = case.timeline, case.trace.gpu, indices(case)
    if not shape or not token_bytes:
        return False
    to_host = case.trace.rows_named(gpu.name, lambda text: "DtoH" in text) & (timeline.phase == FORWARD)
    rows = timeline.members[to_host[timeline.members]]
    return float(gpu.bytes[rows].clip(0).sum()) > OFFLOADED * token_bytes * float(np.prod(shape)) * passes
