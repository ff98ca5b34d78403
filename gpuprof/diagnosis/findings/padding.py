"""Batches are padded: part of every step computes tokens that do not count."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import batch as batch_calibrated
from gpuprof.calibration import padding as calibrated
from gpuprof.calibration.quoted import percent
from gpuprof.diagnosis.detect.batches.fewer_tokens import LEAST_PADDING, fewer_tokens
from gpuprof.diagnosis.detect.compiled.compiling import LENGTH_MULTIPLE
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.ledger_item import LedgerParts
from gpuprof.diagnosis.detect.declared.ledger_part import LedgerPart
from gpuprof.diagnosis.detect.declared.memory_remedy import MemoryRemedy
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.quarantine import SAMPLE_BY_SAMPLE, SEPARATES_SAMPLES
from gpuprof.diagnosis.result.fix import Fix, call, described
from gpuprof.diagnosis.result.run_model import StepWork
from gpuprof.diagnosis.sentences import duration
from gpuprof.projection.memory import memory_changes as changes
from gpuprof.projection.memory.memory_fixes import MemoryFix
from gpuprof.replay.graph import Graph
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import BACKWARD, FORWARD, RECOMPUTE
from gpuprof.units import Assumed, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change
    from gpuprof.projection.memory.recorded_memory import RecordedMemory

UNEVEN_PASSES: Assumed[Ratio] = 1.1
"""Smallest ratio of the longest pass to the mean one for which passes of equal length are offered."""
FLASH_TRL = {"model_init_kwargs": {"attn_implementation": "flash_attention_2"}}

PAGE = Page(
    id="padding",
    applies=("training",),
    title="Part of the batch is padding",
    means="""
Samples of different lengths are padded to the same length, and padding goes through every matrix multiplication like
real tokens. Packing puts several samples into one row; padding-free batches drop the padding and keep the samples
separate in attention; grouping samples by length pads less.
""",
    detected="""
Tokens of all steps with and without padding, counted from the attention masks during the run: the few recorded steps
may have batches of other lengths. At least 8 % must be padding. Recordings made without `gpuprof trace` do not
contain this.
""",
    gain=f"""
Packed to the present length, a step takes as long as now and processes 1 / (share of real tokens) times the samples, of
which {percent(calibrated.FILLED.value)} % are assumed to fit ({percent(calibrated.FILLED.low)} to
{percent(calibrated.FILLED.high)} %). Without padding but with the same samples, kernels of forward and backward shrink
with the tokens as they would for a smaller batch: kernels limited by launches or by reading weights do not. Grouped by
length, {percent(calibrated.GROUPED_LEFT.value)} % of the padding is left ({percent(calibrated.GROUPED_LEFT.low)} to
{percent(calibrated.GROUPED_LEFT.high)} %).
""",
    wrong="""
Packed rows change the batch: there are more samples per optimizer step, so the learning rate may have to be tuned
again. Attention must keep the samples separate (variable-length FlashAttention; a mask otherwise, which is slower).
If kernels are planned again for each new shape (cuDNN attention, torch.compile), shapes that differ from step to step
cost more than their tokens: round lengths up to a multiple.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes packing, batches without padding, and batches of samples of similar length."""
    work = case.run.work if case.run else None
    real = _real_share(work)
    if not case.trains_on_tokens or work is None or not work.tokens or real is None or real >= 1 - LEAST_PADDING:
        return
    graph = case.graph
    model = graph.on_gpu & np.isin(graph.phase, (FORWARD, BACKWARD, RECOMPUTE))
    gpu_ns = case.per_step(float(graph.duration_ns[model].sum()))
    text = (
        f"{100 * (1 - real):,.0f} % of the tokens are padding, some {(1 - real) * work.tokens:,.0f} of "
        f"{work.tokens:,.0f} a step; the GPU works {duration(gpu_ns)} a step on forward and backward"
    )
    evidence = spans(case, text, model)
    row = round(work.tokens / work.samples) if work.samples else None
    length = {"max_length": row} if row else {}
    filled = f"{work.tokens / (work.micro_steps or 1):,.0f} tokens"
    # Without variable lengths in attention samples of a row mix.
    flash = case.stack.kind in SEPARATES_SAMPLES or case.stack.takes_attention("flash_attention_2")
    if flash and _knows(case, "packing"):
        yield Proposal(
            title="packing",
            evidence=evidence,
            fix=case.stack.fix(
                _flattened() + f"\n# batches of as many samples as fill {filled}",
                trl=case.stack.setting({"packing": True, **length, **FLASH_TRL}),
                unsloth=_needs_flash(case) + case.stack.setting({"packing": True, **length}),
            ),
            change=_attention(case, 1),
            best=_attention(case, 0),
            worst=_attention(case, 2),
            work=calibrated.FILLED.falling[1] / real,
            spread=(calibrated.FILLED.falling[0] / calibrated.FILLED.falling[2]) ** 0.5,
            claims=("padded_rows",),
            changes="more samples in an optimizer step",
            key="packing",
        )
    if flash and _knows(case, "padding_free"):
        yield Proposal(
            title="no padding, the same samples",
            evidence=evidence,
            fix=case.stack.fix(
                _flattened(),
                trl=case.stack.setting({"padding_free": True, **FLASH_TRL}),
                unsloth=_needs_flash(case) + case.stack.setting({"padding_free": True}),
            ),
            change=fewer_tokens(case, real, batch_calibrated.GROWS.rising[1]),
            best=fewer_tokens(case, real, batch_calibrated.GROWS.rising[2]),
            worst=fewer_tokens(case, real, batch_calibrated.GROWS.rising[0]),
            spread=calibrated.HOST_SPREAD.value,
            claims=("padded_rows",),
            key="padding_free",
        )
    left = [real + share * (1 - real) for share in calibrated.GROUPED_LEFT.rising]
    yield Proposal(
        title="batches of samples of similar length",
        evidence=evidence,
        fix=case.stack.fix(
            "a sampler that batches samples of similar length",
            _grouped(case),
        )
        # Lengths that all differ would each be planned again, which cost more than their padding on an H200.
        + described("\nand a collator with ", "collator", padding=True, pad_to_multiple_of=LENGTH_MULTIPLE),
        change=fewer_tokens(case, left[1]),
        best=fewer_tokens(case, left[0]),
        worst=fewer_tokens(case, left[2]),
        spread=calibrated.HOST_SPREAD.value,
        claims=("padded_rows",),
        changes="samples of similar length share a batch",
        key="grouped",
    )


def _knows(case: Analysis, field: str) -> bool:
    """Whether the trainer can do it, or that is not known. A trainer of TRL makes its batches itself: what its
    arguments do not offer cannot be done by a collator from outside. A model with one output per row needs its rows."""
    if case.stack.labels_rows:
        return False
    return not case.stack.builds_on("trl") or case.stack.has(field) is not False


def _flattened() -> Fix:
    """A collator without padding, and the attention that keeps its samples apart."""
    flash = described(" with ", "from_pretrained", attn_implementation="flash_attention_2")
    return call("DataCollatorWithFlattening") + flash


def _grouped(case: Analysis) -> Fix:
    """The trainer's own setting, of which older versions have another."""
    older = case.stack.has("train_sampling_strategy") is False and case.stack.has("group_by_length")
    return case.stack.setting({"group_by_length": True} if older else {"train_sampling_strategy": "group_by_length"})


def _absent(case: Analysis) -> str | None:
    real = _real_share(case.run.work if case.run else None)
    return None if real is None or not case.trains_on_tokens else f"{100 * (1 - real):,.0f} % of the tokens are padding"


ABSENT = Absent("packing", _absent)


def _needs_flash(case: Analysis) -> str:
    """What to install first where torch's own attention would go through the samples of a row one after another."""
    own = case.stack.kind in SAMPLE_BY_SAMPLE and case.ops_named(lambda text: "scaled_dot_product" in text).any()
    return "pip install flash-attn  # else attention runs sample by sample\n" if own else ""


def _real_share(work: StepWork | None) -> float | None:
    """Share of tokens that are not padding, in all steps that were counted, else in the recorded ones."""
    if work is None or work.real_share is not None:
        return work and work.real_share
    return work.real_tokens / work.tokens if work.tokens and work.real_tokens else None


def _attention(case: Analysis, level: int) -> Change:
    """The change to packed rows: only attention differs."""
    nodes = case.nodes_of_gpu(case.category("attention"))

    def change(graph: Graph) -> Graph:
        return scaled(graph, nodes, calibrated.ATTENTION_LONGER.rising[level])

    return change


def less_memory(memory: RecordedMemory, mean_tokens: float | None) -> Iterator[MemoryFix]:
    """Passes of the mean length instead of one long one among short ones."""
    if mean_tokens and memory.recorded.tokens > UNEVEN_PASSES * mean_tokens:
        equal = changes.shorter_passes(mean_tokens / memory.recorded.tokens)
        yield MemoryFix("equal_passes", "packing (equal passes)", equal)


def ledger_parts(case: Analysis) -> Iterator[LedgerPart]:
    """Tokens that are padding."""
    real = _real_share(case.run.work if case.run else None)
    if real is None or not case.trains_on_tokens or real >= 1 - LEAST_PADDING:
        return
    yield LedgerPart(
        kind="gpu",
        what=f"padding, {100 * (1 - real):.0f} % of the tokens",
        nodes=case.graph.on_gpu & np.isin(case.graph.phase, (FORWARD, BACKWARD, RECOMPUTE)),
        change=fewer_tokens(case, real),
        reach=real,
        why="rows of a batch are padded to its longest",
    )


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    ledger=LedgerParts(ledger_parts, stage="discarded"),
    role="padded_tokens",
    memory=MemoryRemedy(("equal_passes",), less_memory),
    synonyms=("packing", "padding_free", "group_by_length", "length_grouping"),
    titles=("no_padding_the_same_samples", "batches_of_samples_of_similar_length"),
)
