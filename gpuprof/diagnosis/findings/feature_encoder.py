"""Convolutions over raw sound are fine-tuned together with the model that reads their features."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import images as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.detect.loops.layer_ops import MATMULS
from gpuprof.diagnosis.detect.passes import backward_of, shapes_in
from gpuprof.diagnosis.result.fix import call
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.stretches import Stretches, nodes_in
from gpuprof.replay.transform import removed
from gpuprof.timeline.phases import FORWARD
from gpuprof.units import Assumed, Elements, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

LEAST_BACKWARD_SHARE: Assumed[Share] = 0.05
"""Smallest share of the step that the backward pass of these layers takes on the GPU or the CPU."""
FEWEST_SAMPLES: Assumed[Elements] = 4_000
"""Shortest input that is raw sound: a quarter of a second at 16 kHz."""
LIBRARY = "transformers"
"""Its speech models have `freeze_feature_encoder`."""
CONVOLUTIONS = frozenset({"aten::conv1d", "aten::convolution", "aten::cudnn_convolution"})

PAGE = Page(
    id="feature_encoder",
    applies=("training",),
    title="Convolutions over raw sound are trained along",
    means="""
Wav2Vec2, HuBERT, WavLM and their relatives turn raw sound into features with a few convolutions, over the longest
tensors of the model. They were trained on thousands of hours without labels, and whoever fine-tunes such a model
usually freezes them, as its authors did: `model.freeze_feature_encoder()`. Otherwise each step computes their gradients
and keeps all of their activations.
""",
    detected=f"""
In a model of transformers, convolutions from an input with one channel and at least {FEWEST_SAMPLES:,} samples up to
the first matrix multiplication, whose backward pass takes {percent(LEAST_BACKWARD_SHARE)} % of the step or more. Needs
recorded shapes.
""",
    gain=f"""
The backward pass of these convolutions is removed; their forward pass stays. It changes the training, so it is listed
with a probability of {percent(calibrated.FROZEN_FEATURES.value)} % (assumed).
""",
    wrong="""
A model that is trained from scratch, or on sound unlike that of its pretraining (another sampling rate, other sources
than speech), needs these layers to learn.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to freeze the convolutions over raw sound."""
    if ((case.run.model or {}).get("library") if case.run else None) != LIBRARY:
        return
    stretches = _over_sound(case)
    if not len(stretches):
        return
    graph = case.graph
    nodes = nodes_in(graph, backward_of(case, stretches)) >= 0
    on_gpu, on_cpu = (
        case.per_step(float(graph.duration_ns[nodes & side & ~graph.waits].sum()))
        for side in (graph.on_gpu, ~graph.on_gpu)
    )
    if max(on_gpu, on_cpu) < LEAST_BACKWARD_SHARE * case.step_ns:
        return
    yield Proposal(
        title="the feature encoder frozen",
        evidence=spans(
            case,
            f"the backward pass of convolutions over raw sound takes {duration(on_gpu)} of GPU time and"
            f" {duration(on_cpu)} of CPU time {case.unit.a}",
            nodes,
        ),
        fix=call("model.freeze_feature_encoder") + "  # before the optimizer is made",
        change=partial(removed, nodes=nodes),
        changes="the convolutions over raw sound keep the weights of their pretraining",
        odds=calibrated.FROZEN_FEATURES.value,
        needs="the model was pretrained on sound of this kind",
    )


def _over_sound(case: Analysis) -> Stretches:
    """Stretches from each convolution over raw sound to the last one before a matrix multiplication."""
    ops, (low, high) = case.trace.ops, case.timeline.window
    convolutions = case.ops_named(CONVOLUTIONS.__contains__)
    mine = convolutions | case.ops_named(MATMULS.__contains__)
    mine &= (case.timeline.host.op == FORWARD) & (ops.thread == case.timeline.main_thread)
    rows = np.flatnonzero(mine & (ops.start_ns >= low) & (ops.start_ns < high))
    rows = rows[np.argsort(ops.start_ns[rows], kind="stable")]
    starts, ends, last = list[int](), list[int](), -1
    for row in rows.tolist():
        if not convolutions[row]:
            last = -1
        elif last >= 0:
            ends[-1] = max(ends[-1], int(ops.end_ns[row]))
        elif _is_sound(case, row):
            starts.append(int(ops.start_ns[row]))
            ends.append(int(ops.end_ns[row]))
            last = row
    thread = np.full(len(starts), case.timeline.main_thread, np.int64)
    return Stretches(thread, np.array(starts, np.int64), np.array(ends, np.int64))


def _is_sound(case: Analysis, row: int) -> bool:
    """Whether a convolution's input is raw sound: one channel, and many samples."""
    first, *_ = (*shapes_in(case, int(case.trace.ops.dims[row])), None)
    return first is not None and len(first) == 3 and first[1] == 1 and first[2] >= FEWEST_SAMPLES


FINDING = Declaration(
    page=PAGE,
    find=find,
    synonyms=("freeze_feature_encoder", "wav2vec2", "hubert", "feature_extractor"),
    titles=("the_feature_encoder_frozen",),
)
