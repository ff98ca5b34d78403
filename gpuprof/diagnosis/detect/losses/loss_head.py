"""The output layer and the loss of a language model: their ops and sizes, and the time of fused ones."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.costs.arguments import parse
from gpuprof.costs.formulas.gemm import is_matmul
from gpuprof.costs.matmul_rates import half_precision_ns
from gpuprof.diagnosis.detect.passes import host_ns_per_launch, shapes_in
from gpuprof.replay.transform import scaled
from gpuprof.timeline.phases import BACKWARD, FORWARD
from gpuprof.tracefile.trace import NO_TEXT, Mask
from gpuprof.units import Assumed, Elements, Launches, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

LEAST_VOCABULARY: Assumed[Elements] = 1_000
"""Smallest vocabulary that is looked for: smaller numbers also occur in unrelated shapes."""
ROWS_OF_LOSS: Assumed[tuple[Ratio, Ratio]] = (0.9, 1.1)
"""Range of rows of logits / rows of the loss: labels are shifted by one in each row."""
BACKWARD_PER_FORWARD: Assumed[Ratio] = 1.5
"""Matmuls of the backward pass per forward one from which on both gradients of the head are computed: 2 are usual, 1
where its weight is frozen."""
CHUNK_LAUNCHES: Assumed[Launches] = 9
"""Launches of Liger's fused linear cross entropy per chunk of rows: three matmuls, the loss, a cast and sums."""


@dataclass(frozen=True, slots=True)
class LossHead:
    """The output layer and the cross entropy of a step."""

    tokens: int
    """Rows of logits in one call of the loss."""
    hidden: int
    vocabulary: int
    element_bytes: int
    """Bytes per element of the output layer's inputs."""
    trained: bool
    """Whether the output layer's weights get a gradient."""
    calls: float
    """Calls of the loss per step."""
    matmuls: Mask
    """CPU and GPU nodes of the output layer's matmuls, forward and backward."""
    rest: Mask
    """The same for all other work on logits: casts, shifts and the loss."""

    @property
    def chunks(self) -> int:
        """Number of chunks of Liger's fused linear cross entropy: a chunk's logits take no more memory than the layer's
        input (liger_kernel/ops/fused_linear_cross_entropy.py)."""
        times = math.ceil(self.vocabulary / self.hidden)
        rows = 1 << max(math.ceil(self.tokens / times) - 1, 0).bit_length()
        return math.ceil(self.tokens / rows)

    @property
    def logits_bytes(self) -> float:
        """Bytes of all logits of one call, including their fp32 copy and their gradient."""
        return float(self.tokens) * self.vocabulary * (2 * self.element_bytes + 4)


def ops_of_logits(case: Analysis, vocabulary: int) -> tuple[Mask, Mask]:
    """(ops that are the head's matmuls, other ops with tensors as wide as the vocabulary)."""
    ops = case.trace.ops
    texts = np.unique(ops.dims[ops.dims != NO_TEXT])
    shapes = {int(text): [one for one in shapes_in(case, int(text)) if one and len(one) > 1] for text in texts}
    any_side = [text for text, found in shapes.items() if any(vocabulary in one for one in found)]
    last_side = [text for text, found in shapes.items() if any(one[-1] == vocabulary for one in found)]
    matmuls = np.isin(ops.dims, any_side) & case.ops_named(is_matmul)
    return matmuls, np.isin(ops.dims, last_side) & ~matmuls


def loss_head(case: Analysis) -> LossHead | None:
    """The largest cross entropy over a vocabulary and the layer before it; None if the recording has none."""
    if "loss_head" not in case.memo:
        case.memo["loss_head"] = _find(case)
    return case.memo["loss_head"]


def _find(case: Analysis) -> LossHead | None:
    rows = np.flatnonzero(case.ops_named(lambda text: text == "aten::cross_entropy_loss"))
    low, high = case.timeline.window
    begun = case.trace.ops.start_ns[rows]
    rows = rows[(begun >= low) & (begun < high)]
    sizes = [(row, shapes[0]) for row in rows.tolist() if (shapes := shapes_in(case, int(case.trace.ops.dims[row])))]
    large = [shape for _, shape in sizes if shape and len(shape) == 2 and shape[1] >= LEAST_VOCABULARY]
    if not large:
        return None
    tokens, vocabulary = max(large, key=math.prod)
    found, rest = ops_of_logits(case, vocabulary)
    heads = [one for row in np.flatnonzero(found).tolist() if (one := _matmul(case, row, tokens, vocabulary))]
    if not heads:
        return None
    mine = np.zeros(len(found), bool)
    mine[[row for row, _, _ in heads]] = True
    passes = np.isin(case.graph.phase, (FORWARD, BACKWARD))
    matmuls = case.nodes_within(mine) & passes
    others = case.nodes_within(rest) & passes & ~matmuls
    if not others.any():
        return None
    launched = matmuls & case.nodes_of_gpu(case.category("gemm"))
    forward, backward = (int((launched & (case.graph.phase == phase)).sum()) for phase in (FORWARD, BACKWARD))
    if not forward:
        return None
    _, hidden, size = heads[0]
    calls = sum(vocabulary == shape[1] for shape in large) / case.steps
    return LossHead(
        tokens, hidden, vocabulary, size, backward >= BACKWARD_PER_FORWARD * forward, calls, matmuls, others
    )


def _matmul(case: Analysis, row: int, tokens: int, vocabulary: int) -> tuple[int, int, int] | None:
    """(row, hidden size, bytes of an element) of a matmul between rows of logits' size and the vocabulary."""
    ops, trace = case.trace.ops, case.trace
    tensors = parse("", trace.text(int(ops.dims[row])), trace.text(int(ops.types[row])), None, None).tensors
    two = [one for one in tensors if len(one.shape) >= 2][:2]
    if len(two) != 2:
        return None
    sides = sorted({side for one in two for side in (math.prod(one.shape[:-1]), one.shape[-1])} - {vocabulary})
    near = [side for side in sides if ROWS_OF_LOSS[0] * tokens <= side <= ROWS_OF_LOSS[1] * tokens]
    other = [side for side in sides if side not in near] or near  # the number of rows equals the layer's width
    if not near or len(other) != 1:
        return None
    return row, other[0], two[0].element_bytes


def fused_linear_ns(head: LossHead, case: Analysis, level: int) -> float:
    """GPU time of Liger's fused linear cross entropy, forward and backward, for one call, ns. level: 0 at best."""
    assert case.roofline is not None
    limits, size = case.roofline.ceilings, head.element_bytes
    rows = math.ceil(head.tokens / head.chunks)
    weight, logits, inputs = (
        float(count) for count in (head.vocabulary * head.hidden, rows * head.vocabulary, rows * head.hidden)
    )
    rate = limits.flops.get("bf16" if size == 2 else "fp32") or max(limits.flops.values())
    matmul = half_precision_ns(
        np.array([2.0 * rows * weight]), np.array([size * (weight + logits + inputs)]), rate,
        limits.memory_bytes_per_s, level,
    )[0]  # fmt: skip
    shared = limits.memory_bytes_per_s * calibrated.FUSED_MEMORY.falling[level] / 1e9
    each = 2 * matmul + 3 * logits * size / shared
    if head.trained:
        each += matmul + weight * calibrated.LIGER_GRADIENT_BYTES.rising[level] / limits.memory_bytes_per_s * 1e9
    return float(head.chunks * (each + CHUNK_LAUNCHES * limits.launch_floor_ns))


def fused_linear(head: LossHead, case: Analysis, level: int) -> Change:
    """The graph with Liger's fused linear cross entropy, which computes the gradients in the forward pass, chunk by
    chunk; the backward pass only scales them. level: 0 at best, 1 as expected, 2 at worst."""
    graph = case.graph
    mine = head.matmuls | head.rest
    forward = mine & (graph.phase == FORWARD)
    gpu_ns = head.calls * graph.steps * fused_linear_ns(head, case, level)
    launches = head.calls * graph.steps * head.chunks * CHUNK_LAUNCHES
    host_ns = launches * host_ns_per_launch(case, mine, forward)
    work = forward & ~graph.on_gpu & ~graph.waits
    factor = np.where(mine, 0.0, 1.0)
    for nodes, wanted in ((forward & graph.on_gpu, gpu_ns), (work, host_ns)):
        now = float(graph.duration_ns[nodes].sum())
        factor[nodes] = wanted / now if now > 0 else 1.0
    return partial(scaled, nodes=mine & ~graph.waits, factor=factor)
