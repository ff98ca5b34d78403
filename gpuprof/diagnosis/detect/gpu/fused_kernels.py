"""Replaces sequences of ops, forward and backward, by fused kernels: GPU time from memory traffic, and CPU time."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.calibration import kernels as calibrated
from gpuprof.diagnosis.detect.gpu.fused_sequences import ACTIVATION, LAYER_NORM, Sequences
from gpuprof.diagnosis.detect.gpu.replace_work import replacement_of, with_replacement
from gpuprof.diagnosis.detect.passes import backward_of, host_ns_per_launch, without_recompute
from gpuprof.replay.stretches import nodes_in
from gpuprof.tracefile.trace import F64, I64
from gpuprof.units import Assumed, Launches, Ratio

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis, Change

FORWARD_PASSES: Assumed[tuple[Ratio, ...]] = (2.0, 2.0, 3.0, 4.0, 0.0, 2.0, 0.0, 2.0, 2.0, 2.0)
BACKWARD_PASSES_BUT_NORM: Assumed[tuple[Ratio, ...]] = (2.0, 5.0, 1.0, 0.0, 3.0, 0.0, 3.0, 3.0, 5.0)
BACKWARD_PASSES = tuple((norm, *BACKWARD_PASSES_BUT_NORM) for norm in calibrated.NORM_BACKWARD.rising)
"""How often a fused kernel reads or writes the activation, by kind (backward at best, as expected, at worst): a norm
reads and writes it, and in the backward pass works row by row, which takes as long as several passes; rotary embedding
reads and writes it, twice; a gate reads two and writes one, backward reads three and writes two; a loss reads the
logits twice, writes their gradient in place, and reads it back; a causal convolution reads and writes, and backward
reads two and writes one, and so does that of an elementwise function; that of a layer norm reads its input twice."""
LAUNCHES: Assumed[tuple[tuple[Launches, Launches], ...]] = (
    (1, 2), (1, 1), (1, 1), (3, 1), (0, 0), (1, 1), (0, 0), (1, 1), (1, 1), (1, 2),
)  # fmt: skip
"""Kernels forward and backward."""


class Fused:
    """Sequences of ops, forward and backward, and the fused kernels that would replace them."""

    def __init__(self, case: Analysis, found: Sequences) -> None:
        self._case, self._found = case, found
        graph, self._count = case.graph, len(found.stretches)
        forward = nodes_in(case.graph, found.stretches)
        backward = without_recompute(case, nodes_in(case.graph, backward_of(case, found.stretches)))
        self._group = np.where(forward >= 0, forward, np.where(backward >= 0, backward + self._count, -1))
        inside = self._group >= 0
        self.gpu = inside & graph.on_gpu
        """Kernels that they replace."""
        self._launches = np.array(LAUNCHES)[found.kind].T.reshape(-1)
        self._usual_ns = host_ns_per_launch(case, np.zeros(len(graph), bool), forward >= 0)

    def change(self, level: int) -> Change:
        """The graph with the fused kernels; `level` 0: at best, 1: as expected, 2: at worst."""
        graph, group, gpu, several = self._case.graph, self._group, self.gpu, 2 * self._count
        has = np.bincount(group[gpu], minlength=several) > 0
        gpu_ns = np.where(has, _fused_ns(self._case, self._found, level, self._launches), 0.0)
        now = np.bincount(group[gpu], weights=graph.duration_ns[gpu], minlength=several)
        calls = np.where(self._launches > 0, self._first_launch(level) + self._launches - 1.0, 0.0)
        # At worst a fused kernel is slower than the ops it replaces: short rows, few blocks.
        gpu_ns = gpu_ns if level == 2 else np.minimum(gpu_ns, now)
        replacement = replacement_of(graph, group, calls * self._usual_ns, gpu_ns, self._launches, slower=level > 0)
        return partial(with_replacement, replacement=replacement)

    def _first_launch(self, level: int) -> F64:
        """CPU time of the first launch of each call, in usual ones: more where it is a Python function's, not torch's
        own op's."""
        python = calibrated.FUSED_HOST_LAUNCHES.rising[level]
        return np.tile(np.where(np.isin(self._found.kind, (ACTIVATION, LAYER_NORM)), 1.0, python), 2)


def _fused_ns(case: Analysis, found: Sequences, level: int, launches: I64) -> F64:
    """GPU time of the fused kernels, forward and then backward; ns."""
    assert case.roofline is not None
    ceilings = case.roofline.ceilings
    passes = np.concatenate([np.array(FORWARD_PASSES)[found.kind], np.array(BACKWARD_PASSES[level])[found.kind]])
    moved = passes * np.tile(found.bytes, 2)
    return (
        moved / ceilings.memory_bytes_per_s / calibrated.FUSED_MEMORY.falling[level] * 1e9
        + launches * ceilings.launch_floor_ns
    )
