"""Whether the trained model reads tokens of text, or something else (images, latents, sound).

Advice for language models, and sentences that count tokens, are for the former only. Text that a frozen encoder reads,
such as a diffusion model's captions, is not what the model is trained on.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gpuprof.costs.arguments import argument_shapes
from gpuprof.diagnosis.recorded.frozen_passes import find_frozen_passes
from gpuprof.diagnosis.result.run_model import Run
from gpuprof.replay.stretches import place
from gpuprof.timeline.timeline import Timeline
from gpuprof.tracefile.trace import OP, Mask
from gpuprof.units import Assumed, Calls

FEWEST_CONVOLUTIONS: Assumed[Calls] = 8
"""From this number of trained image convolutions per step on, a model is not a language model even if it embeds tokens:
language models that also read images have one, which cuts the image into patches."""
_OF_IMAGES = frozenset({"aten::conv2d", "aten::conv3d", "aten::conv_transpose2d", "aten::conv_transpose3d"})
_OF_ANYTHING = frozenset({"aten::convolution", "aten::cudnn_convolution"})
_BACKWARD = "ConvolutionBackward0"


def trains_on_tokens(timeline: Timeline, run: Run | None) -> bool:
    """Whether the trained model reads tokens of text; True unless the recording shows otherwise.

    A run says so by its model's vocabulary, a recording by what is convolved and what is embedded: an image model
    convolves images, and has no token indices or only those of a module that is not trained.
    """
    if run is not None and (run.model or {}).get("vocabulary"):
        return True
    images = _convolves_images(timeline)
    if not images.any():
        return True
    embeds = _embeds_tokens(timeline)
    return bool(embeds.any()) and not _trains_convolutions(timeline, images)


def without_tokens(run: Run) -> Run:
    """The run without token counts, for a model that is not trained on tokens: tokens in its batches are no measure of
    its work."""
    return replace(
        run,
        work=replace(run.work, tokens=None, real_tokens=None, real_share=None, useful_pairs=None),
        throughput=replace(run.throughput, tokens_per_s=None, padded_tokens_per_s=None),
        energy=None if run.energy is None else replace(run.energy, token_j=None, work_token_j=None),
    )


def _convolves_images(timeline: Timeline) -> Mask:
    """Rows of the window's forward convolutions in two dimensions or more."""
    ops, (low, high) = timeline.trace.ops, timeline.window
    inside = (ops.kind == OP) & (ops.start_ns >= low) & (ops.start_ns < high) & (ops.forward_thread <= 0)
    found = timeline.trace.rows_named(ops.name, lambda text: text in _OF_IMAGES)
    maybe = inside & timeline.trace.rows_named(ops.name, lambda text: text in _OF_ANYTHING)
    for text in np.unique(ops.dims[maybe]).tolist():
        shapes = argument_shapes(timeline.trace.text(text))
        if shapes and shapes[0] is not None and len(shapes[0]) >= 4:
            found |= maybe & (ops.dims == text)
    return found & inside


def _embeds_tokens(timeline: Timeline) -> Mask:
    """Rows of the window's ops that embed sequences of indices, except in passes known to train nothing."""
    ops, (low, high) = timeline.trace.ops, timeline.window
    found = timeline.trace.rows_named(ops.name, lambda text: text == "aten::embedding")
    found &= (ops.start_ns >= low) & (ops.start_ns < high)
    for text in np.unique(ops.dims[found]).tolist():
        shapes = argument_shapes(timeline.trace.text(text))
        if len(shapes) > 1 and shapes[1] is not None and len(shapes[1]) < 2:
            found &= ops.dims != text  # positions, or a class
    frozen = find_frozen_passes(timeline) if found.any() else None
    if frozen is not None and len(frozen):
        rows = np.flatnonzero(found)
        where = place(frozen.calls, ops.thread[rows].astype(np.int64), ops.start_ns[rows])
        found[rows[where >= 0]] = False
    return found


def _trains_convolutions(timeline: Timeline, images: Mask) -> bool:
    """Whether each step computes gradients of many convolutions."""
    ops, (low, high) = timeline.trace.ops, timeline.window
    back = timeline.trace.rows_named(ops.name, lambda text: text == _BACKWARD)
    back &= (ops.start_ns >= low) & (ops.start_ns < high)
    steps = max(len(timeline.steps.start_ns), 1)
    return min(int(back.sum()), int(images.sum())) >= FEWEST_CONVOLUTIONS * steps
