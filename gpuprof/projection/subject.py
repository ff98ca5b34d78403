"""The recording that a projection starts from."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuprof.costs.hardware import Gpu
from gpuprof.costs.roofline import Roofline
from gpuprof.projection.changes.depth import Layers
from gpuprof.projection.memory.memory_fixes import MemoryFix
from gpuprof.projection.memory.recorded_memory import RecordedMemory
from gpuprof.replay.graph import Graph
from gpuprof.replay.mean_step import MeanStep
from gpuprof.timeline.phases import BACKWARD, RECOMPUTE
from gpuprof.timeline.unit import STEP, Unit
from gpuprof.tracefile.trace import U8, Mask
from gpuprof.value_range import Range


@dataclass(frozen=True)
class Subject:
    """One recording, without the profiler's cost."""

    path: str
    gpu: Gpu
    device_name: str | None
    memory_bytes: int | None
    """Memory of the recorded GPU, as its driver reports it."""
    graph: Graph
    quicker: Graph
    slower: Graph
    """The graphs at the ends of the CPU time's interval."""
    step_ns: Range
    """The mean step, as in the diagnosis."""
    mean: MeanStep
    """How the mean step follows from a graph."""
    bound: U8
    """For each GPU event, what limits it on the recorded GPU, as in the diagnosis."""
    roofline: Roofline
    samples: float | None
    """Samples of a step."""
    tokens: float | None
    """Tokens of a step, padding included."""
    micro_steps: float = 1.0
    layers: Layers | None = None
    expert_nodes: Mask | None = None
    """Mask of the nodes in loops over experts."""
    experts: int | None = None
    experts_active: int | None = None
    expert_adapters: float = 0.0
    """Share of the trained parameters that belong to experts."""
    memory: RecordedMemory | None = None
    memory_fixes: tuple[MemoryFix, ...] = ()
    """Changes from its findings that save memory."""
    world_size: int = 1
    """Number of GPUs of the recorded training."""
    trained_bytes: float | None = None
    """Bytes of the gradients that ranks exchange."""
    power_ratio: float = 1.0
    """Measured power of the recorded GPU over its modelled power; 1 if it was not measured."""
    unit: Unit = STEP
    """What a step is called."""
    notes: tuple[str, ...] = ()
    """What makes projections from this recording less certain."""

    @property
    def pass_tokens(self) -> float | None:
        """Tokens of one forward pass."""
        return None if self.tokens is None else self.tokens / self.micro_steps

    @property
    def pass_samples(self) -> float | None:
        return None if self.samples is None else self.samples / self.micro_steps

    @property
    def backward_ns(self) -> float:
        """Time of one step's backward passes and recomputation, from the first to the last of their GPU work."""
        graph = self.graph
        chosen = graph.on_gpu & np.isin(graph.phase, (BACKWARD, RECOMPUTE))
        total = 0.0
        for step in range(graph.steps):
            mine = chosen & (graph.step == step)
            if mine.any():
                total += float(graph.recorded_end_ns[mine].max() - graph.recorded_start_ns[mine].min())
        recorded = float(graph.recorded_end_ns.max() - graph.recorded_start_ns.min()) / graph.steps
        return total / graph.steps / recorded * self.mean.consumer_ns() if recorded > 0 else 0.0
