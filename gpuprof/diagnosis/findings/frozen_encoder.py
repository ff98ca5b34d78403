"""Modules that train nothing run in every step on the same samples: encoders, a reference model, a teacher."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import images as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerItem
from gpuprof.diagnosis.detect.declared.proposal import Page, Proposal
from gpuprof.diagnosis.quarantine import ONLINE_TRAINER
from gpuprof.diagnosis.result.fix import Fix, arguments, as_fix, option
from gpuprof.diagnosis.sentences import duration
from gpuprof.replay.graph import Graph
from gpuprof.replay.stretches import nodes_in
from gpuprof.replay.transform import removed, scaled
from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Ratio, Share

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.recorded.frozen_passes import FrozenPasses

LEAST_PASS_SHARE: Assumed[Share] = 0.05
"""Smallest share of the step that the passes take on the GPU or the CPU; less is not worth a cache."""
GENERATING_PASSES: Assumed[Ratio] = 2.0
"""Passes of the trained model without gradients per pass with: if there are more, it generates text."""
FIELD = "precompute_ref_log_probs"
"""Field of the arguments of trl's DPO and KTO trainers."""
LEAST_EPOCHS: Assumed[Ratio] = 1.05
"""Fewest epochs for which a cache is useful."""

IMAGES = re.compile(r"^nn\.Module: \w*(Autoencoder|VAE|UNet|DiT|Transformer2D)")
"""Modules of diffusion models."""

PAGE = Page(
    id="frozen_encoder",
    title="A module that is not trained runs in every step",
    means="""
The VAE and the text encoders of a diffusion model, the reference model of DPO, a teacher: they run forward in each
step, no gradient flows through them, and their weights never change. Their output for a sample is the same in every
epoch. It can be computed once and stored: latents, text embeddings, log-probabilities.
""",
    detected=f"""
Whole modules that run forward but not backward in every recorded step and take at least {percent(LEAST_PASS_SHARE)} %
of the step on the GPU or the CPU. Modules are distinguished by their Python frames, or by the range that `gpuprof
trace` puts around the trained model. Frozen layers of the trained model itself do not count, nor does generating text.
""",
    gain=f"""
The passes are removed from the step. If a run reports its steps and the length of its data, computing the outputs once
is part of the prediction: with 3 epochs, a third of the work stays. At worst half of the passes' CPU time stays, for
reading what was stored. Where the run does not report how often its samples recur, it is likely, not certain, that they
do ({calibrated.SEEN_AGAIN.value:g}, assumed): the fix is listed under *Worth trying*.
""",
    wrong="""
With random augmentation (crops, flips, colours) or dropout in the frozen module, each epoch sees other inputs: store
several versions, augment what was stored, or leave it. For the same reason do not store the outputs of the frozen
layers of a vision model that is fine-tuned on augmented images; batch norms in training mode change even if their
weights are frozen. A single epoch gains nothing: the work only moves to before the training, though its memory is
freed. The cache takes disk: some 30 to 500 kB for the latents of an image, 100 kB to 4 MB for text embeddings (of
fixed length), 16 bytes for the log-probabilities of a pair. Samples that the model generates while it trains (GRPO,
PPO) cannot be precomputed.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes to compute outputs once instead of in each step."""
    passes = case.frozen_passes
    if passes is None:
        return
    own = passes.of_trained
    online = case.trace.rows_named(case.trace.frames.name, ONLINE_TRAINER.search).any()
    # The arguments of trl's trainers that generate their samples do not have the field.
    online |= case.stack.builds_on("trl") and case.stack.has(FIELD) is False
    if not online and 0 < own.sum() <= GENERATING_PASSES * passes.trained:
        yield from _proposal(case, passes, own, reference=True)
    # For trainers with this field, a pass that the recording does not name is the reference.
    yield from _proposal(case, passes, ~own, reference=not online and bool(case.stack.has(FIELD)))


def _proposal(case: Analysis, passes: FrozenPasses, chosen: Mask, *, reference: bool) -> Iterator[Proposal]:
    graph = case.graph
    group = nodes_in(graph, passes.stretches.some(chosen))
    nodes = group >= 0
    gpu = nodes & graph.on_gpu
    gpu_ns = case.per_step(float(graph.duration_ns[gpu].sum()))
    host_ns = case.per_step(float(graph.duration_ns[nodes & ~graph.on_gpu & ~graph.waits].sum()))
    if max(gpu_ns, host_ns) < LEAST_PASS_SHARE * case.step_ns or len(np.unique(graph.step[nodes])) < graph.steps:
        return
    epochs = _epochs(case)
    if epochs is not None and epochs < LEAST_EPOCHS:
        return
    kept = 0.0 if epochs is None else 1.0 / epochs
    count = case.per_step(int(chosen.sum()))
    what = "the model itself, or one like it," if reference else "modules that are not trained"
    text = (
        f"{count:,.0f} forward pass{'es' if round(count) != 1 else ''} of {what} {case.unit.a} without a backward"
        " pass: "
        f"{duration(gpu_ns)} of GPU time, {duration(host_ns)} of CPU time"
    )
    known = epochs is not None
    yield Proposal(
        title="reference log-probabilities computed once" if reference else "outputs of frozen modules computed once",
        evidence=spans(case, text, gpu),
        fix=_fix(case, reference) + _cost(case, max(gpu_ns, host_ns), epochs),
        change=partial(_scaled, nodes=nodes, left=_factors(nodes, gpu, kept, kept)),
        best=partial(removed, nodes=nodes),
        worst=partial(_scaled, nodes=nodes, left=_factors(nodes, gpu, kept, max(kept, calibrated.STORED_HOST.high))),
        key="reference" if reference else "encoder",
        needs=""
        if known
        else "samples come back as they were: more than one epoch, and no random step before the module",
        odds=1.0 if known else calibrated.SEEN_AGAIN.value,
    )


def _factors(nodes: Mask, gpu: Mask, of_gpu: float, of_host: float) -> F64:
    return np.where(gpu, of_gpu, np.where(nodes, of_host, 1.0))


def _scaled(graph: Graph, nodes: Mask, left: F64) -> Graph:
    """The graph with the passes scaled to what remains; if nothing remains, their waits disappear, too."""
    gone = nodes & (left == 0)
    return scaled(removed(graph, gone) if gone.any() else graph, nodes & ~gone, left)


def _epochs(case: Analysis) -> float | None:
    """Number of epochs; None if the run does not say."""
    run = case.run
    length = (run.loader or {}).get("length") if run else None
    if run is None or not run.steps_total or not isinstance(length, int) or length <= 0:
        return None
    return run.steps_total * (run.work.micro_steps or 1) / length


def _fix(case: Analysis, reference: bool) -> Fix:
    if reference:
        return case.stack.fix(
            "compute the reference's log-probabilities of every sample once, before the training, and keep them with "
            "the data",
            trl=case.stack.setting({FIELD: True})
            if case.stack.has(FIELD)
            else arguments("DPOConfig", {FIELD: True}) + "  # KTOConfig has it, too",
        )
    before = "before the training: with torch.no_grad(), the frozen module once for each sample; store its outputs\n"
    if not case.ops_named(IMAGES.search).any():
        return as_fix(before + f"in the {case.unit}: read them with the batch")
    return (
        before + "(latents: the distribution's mean and standard deviation, to sample from; text: the embeddings)\n"
        "in the step: read them with the batch. diffusers scripts that support it: "
        + option("--cache_latents", "--cache_latents").otherwise()
    )


def _cost(case: Analysis, ns: float, epochs: float | None) -> str:
    """The one-off cost, as a comment after the fix."""
    run = case.run
    if epochs is None or run is None or not run.steps_total:
        return "\n# one pass over the data first, and disk for what is stored: gains from the second epoch on"
    seconds = ns * run.steps_total / epochs / 1e9
    return f"\n# about {max(seconds, 1.0):,.0f} s over the data first (counted), and disk for what is stored"


FINDING = Declaration(
    page=PAGE,
    find=find,
    ledger=LedgerItem(
        "a module that is not trained (an encoder, a teacher, a reference model)",
        "its output for a sample never changes, so it can be computed once and stored",
        stage="repeated",
    ),
    synonyms=("reference_model", "precompute", "cache_latents", "vae", "teacher", "frozen"),
    titles=("reference_log_probabilities_computed_once", "outputs_of_frozen_modules_computed_once"),
)
