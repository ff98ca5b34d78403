"""Frozen weights in fp32 are cast to 16 bits at each use, under autocast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.gpu.frozen_casts import find_frozen_casts
from gpuprof.diagnosis.result.fix import Code, call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.transform import Removing
from gpuprof.units import Assumed, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_CASTS_SHARE: Assumed[Share] = 0.02
"""Smallest share of the step, on the CPU or on the GPU, that such casts take for a proposal."""

PAGE = Page(
    id="frozen_casts",
    applies=("training",),
    title="Frozen weights are cast at each use",
    means="""
Under autocast a linear layer whose weight is in fp32 casts it to bf16 first. Autocast keeps the copy of a weight that
is trained until the forward pass is over; a frozen weight is cast again at each use, and again where checkpointing
repeats the pass. The base model of adapters, or a frozen encoder, can be loaded in 16 bits: half the memory, no casts
of weights, and inputs that are in 16 bits already.
""",
    detected=f"""
In `aten::linear`, `aten::matmul` and convolutions, copies from fp32 to a 16-bit format with the shape of the weight,
which autograd does not record, if they take {percent(LEAST_CASTS_SHARE)} % of the step on the CPU or on the GPU.
Needs recorded shapes and the ranges of autograd's engine.
""",
    gain="""
The casts of frozen weights, and of the inputs of their layers with the casts of their gradients, are removed. At worst
only those of weights are: inputs that come from layers in fp32 are still cast. That other kernels between the layers
move half the bytes is not counted.
""",
    wrong="""
Norms and rotary embeddings of a model in 16 bits compute in 16 bits where the program does not ask for more. Weights
that are trained lose small updates in 16 bits: they stay in fp32.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to load frozen weights in 16 bits."""
    found = find_frozen_casts(case)
    if found is None:
        return
    graph, both = case.graph, found.weights | found.inputs
    took = [
        case.per_step(float(graph.duration_ns[found.weights & side].sum())) for side in (graph.on_gpu, ~graph.on_gpu)
    ]
    if max(took) < LEAST_CASTS_SHARE * case.step_ns:
        return
    shape = " × ".join(f"{side:,}" for side in found.largest)
    text = (
        f"{found.count / case.steps:,.0f} frozen weights up to {shape} are cast from fp32 {case.unit.a}:"
        f" {duration(took[0])} of GPU time and {duration(took[1])} of CPU time; the casts of their inputs take"
        f" {duration(case.per_step(float(np.where(found.inputs & graph.on_gpu, graph.duration_ns, 0.0).sum())))} more"
        " of the GPU's"
    )
    yield Proposal(
        title="frozen weights in bf16",
        evidence=spans(case, text, both),
        fix=call("AutoModel.from_pretrained", ..., dtype=Code("torch.bfloat16")) + "  # trained weights stay in fp32",
        change=Removing(both),
        worst=Removing(found.weights),
        changes="frozen weights are rounded to bf16 once, where they were rounded at each use",
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "frozen weights cast at each use", "their copies in 16 bits are the same each time", changes_digits=True
    ),
    lowers=("slow_copies",),
    synonyms=("base_model_dtype", "weight_casts", "torch_dtype"),
    titles=("frozen_weights_in_bf16",),
)
