"""Parts of the mean step of a training without a GPU, as its run timed it."""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.bounds import Share
from gpuprof.diagnosis.result.run_model import Run


@dataclass(frozen=True, slots=True)
class CpuStep:
    """The three times sum to the mean step of the budget, exactly."""

    input_ns: int
    """The training waits for its next batch, or prepares it itself."""
    own_ns: int
    """Passes and optimizer: ops, and Python between them."""
    other_ns: int
    """Work of some steps only: saving, evaluation, logging, garbage collection and the like."""
    ops_share: Share | None
    """Share of `own_ns` in PyTorch's ops, 0 to 1, from the recorded steps; None if none were recorded."""

    @property
    def mean_ns(self) -> int:
        """The mean step."""
        return self.input_ns + self.own_ns + self.other_ns

    @property
    def ops_ns(self) -> float | None:
        """Time of the mean step in PyTorch's ops."""
        return None if self.ops_share is None else self.own_ns * self.ops_share


def prepares_batches(run: Run | None) -> bool:
    """Whether the training process prepares its batches itself: its loader has no workers."""
    loader = None if run is None else run.loader
    return loader is not None and loader.get("num_workers") == 0
