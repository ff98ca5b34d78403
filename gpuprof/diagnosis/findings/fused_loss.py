"""A fused linear cross entropy instead of an output layer and a loss over all logits: less memory, often more time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuprof.calibration import kernels as kernels_calibrated
from gpuprof.diagnosis.detect.cpu.evidence import spans
from gpuprof.diagnosis.detect.declared.declaration import Declaration
from gpuprof.diagnosis.detect.declared.proposal import Absent, Page, Proposal
from gpuprof.diagnosis.detect.losses.loss_head import LossHead, fused_linear, fused_linear_ns, loss_head
from gpuprof.diagnosis.detect.pair.candidates import Candidate
from gpuprof.diagnosis.detect.pair.signs import less_loss
from gpuprof.diagnosis.result.fix import code
from gpuprof.diagnosis.sentences import GIB, duration

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis
    from gpuprof.diagnosis.detect.pair.facts import Facts

LEAST_BYTES = GIB
"""Smallest size of the logits for which another loss is proposed."""

PAGE = Page(
    id="fused_loss",
    applies=("training",),
    title="All logits are in memory at once for the loss",
    means="""
Rows of tokens times a vocabulary of 50,000 to 250,000, once in 16 bits, once in fp32 and once as a gradient, are
often the largest tensors of a step. A fused linear cross entropy (Liger's, or cut-cross-entropy) computes logits,
loss and gradient for a few rows at a time, so that the logits are never all in memory. It is mainly a way to save
memory. It also saves the passes over fp32 logits, but its matmuls are smaller, and each chunk adds to the whole
gradient of the output layer: with a small model and a large vocabulary it takes longer.
""",
    detected="""
A cross entropy over at least 1,000 classes, whose logits, in both formats and with their gradient, take 1 GiB or more,
and the output layer's matmuls, by their shapes.
""",
    gain=f"""
Liger takes vocabulary / hidden size as the number of chunks, with rows in powers of two. Per chunk there are two
matmuls (three where the layer is trained) as fast as recorded ones of their size, three passes over the chunk's logits
at 65 % of the memory ceiling, and {kernels_calibrated.LIGER_GRADIENT_BYTES.value:g} bytes of traffic
({kernels_calibrated.LIGER_GRADIENT_BYTES.low:g} to {kernels_calibrated.LIGER_GRADIENT_BYTES.high:g}) for each trained
weight of the layer. It is advised only where that takes less than the kernels it replaces. With a trained layer of 896
× 151,936 and 4,096 tokens that is 128 chunks of 32 rows: 50 ms on an H200, compared with 12 ms unfused. `gpuprof
memory` says what it saves.
""",
    wrong="""
Other versions of Liger, and other libraries, choose other chunks. `use_liger_kernel=True` brings this loss along with
fused norms; `liger_kernel_config` leaves it out. Code that logs logits, entropy or accuracy needs all logits at once.
""",
)


def find(case: Analysis) -> Iterator[Proposal]:
    """Proposes Liger's fused linear cross entropy."""
    head = large_head(case)
    if head is None or case.roofline is None or not case.trains_on_tokens:
        return
    nodes = (head.matmuls | head.rest) & case.graph.on_gpu
    took = case.per_step(float(case.graph.duration_ns[nodes].sum()))
    then = head.calls * fused_linear_ns(head, case, 1)
    text = (
        f"logits of {head.tokens:,} × {head.vocabulary:,} take {head.logits_bytes / GIB:,.1f} GiB with their copies;"
        f" the output layer and the loss take {duration(took)} of GPU time a step, in {head.chunks:,} chunks"
        f" {duration(then)}"
    )
    yield Proposal(
        title="fused linear cross entropy (Liger)",
        evidence=spans(case, text, nodes),
        fix=code("from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss")
        + "  # pip install liger-kernel\n"
        + code("loss = LigerFusedLinearCrossEntropyLoss()(model.lm_head.weight, hidden, labels)"),
        change=fused_linear(head, case, 1),
        best=fused_linear(head, case, 0),
        worst=fused_linear(head, case, 2),
        claims=("fused_loss_ops", "logits"),
    )


def large_head(case: Analysis) -> LossHead | None:
    """The loss if its logits are large; None if they are not, or if none was recorded."""
    head = loss_head(case)
    return head if head is not None and head.logits_bytes >= LEAST_BYTES else None


def _absent(case: Analysis) -> str | None:
    head = loss_head(case)
    if head is None or not case.trains_on_tokens or large_head(case) is not None:
        return None
    return f"logits take {head.logits_bytes / GIB:.2g} GiB with their copies"


ABSENT = Absent("fused linear cross entropy", _absent)


def change(a: Facts, b: Facts) -> Iterator[Candidate]:
    """Less time in the loss, if only the side with more is advised to fuse it."""
    return less_loss(a, b, PAGE.id, "a fused loss")


FINDING = Declaration(
    page=PAGE,
    find=find,
    absent=ABSENT,
    change=change,
    synonyms=("fused_linear_cross_entropy", "liger_loss", "cut_cross_entropy"),
    titles=("fused_linear_cross_entropy_liger",),
)
