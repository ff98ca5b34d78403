"""Which cells of the waterfall a mechanism acts in, and with what weight against others that act there too."""

from __future__ import annotations

from collections.abc import Callable

from gpuprof.diagnosis.comparison.cells import Cell

Claim = Callable[[Cell], float]
"""Weight with which a candidate claims a cell; 0: not at all."""

PASSES = ("forward", "backward")
MODEL = (*PASSES, "recompute")
HOST_CAUSES = ("launch", "python", "sync", "device", "profiler", "unknown")
"""Idle time that fewer launches shorten: the host's, and the pauses between kernels."""

OWN = 1e6
"""Weight of a claim to cells that nothing else explains: more than any number of launches."""
WEAK, WEAKER = 1e-3, 1e-6
"""Weights of claims that hold only where nothing better is known."""


def is_model_wait(cell: Cell) -> bool:
    """Whether the GPU waits there for the host that launches the model's passes."""
    return cell[0] == "idle" and cell[1] in HOST_CAUSES and cell[2] in MODEL


def is_communication(cell: Cell) -> bool:
    return "communication" in cell[1:]


def is_copying(cell: Cell) -> bool:
    """Copies, and what the GPU waits for them."""
    return cell[:2] in (("idle", "transfer"), ("busy", "memcpy"))


def where(holds: Callable[[Cell], bool], weight: float = 1.0) -> Claim:
    """The same weight wherever something holds."""
    return lambda cell: weight if holds(cell) else 0.0


def busy(weight: float) -> Claim:
    """All work of the GPU."""
    return where(lambda cell: cell[0] == "busy", weight)


def idle(*causes: str, weight: float = 1.0) -> Claim:
    """All waits for some causes."""
    return where(lambda cell: cell[0] == "idle" and cell[1] in causes, weight)


def model(categories: tuple[str, ...], waits: float) -> Claim:
    """Work of some categories in the model's passes, and with the weight `waits` what the GPU waits there."""

    def claim(cell: Cell) -> float:
        if is_model_wait(cell):
            return waits
        return 1.0 if cell[0] == "busy" and cell[2] in MODEL and cell[1] in categories else 0.0

    return claim
