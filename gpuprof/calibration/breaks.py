"""What is left of a graph break's cost once it is removed."""

from __future__ import annotations

from gpuprof.calibration.number import Number

STAYS = Number(
    0.1, 0.0, 0.45, "", "measured",
    "Part of the CPU work around a graph break (guards and set-up of the second graph, forward and backward, and the "
    "Python in between) that the joined graph still does: its guards and inputs are those of both. Models of 8 and 16 "
    "blocks with two kinds of breaks on a CPU (torch 2.13), timed with and without them: -0.3 to 0.35, on a machine "
    "that others used too.",
)  # fmt: skip
FUSED = Number(
    0.5, 0.0, 1.0, "", "assumed",
    "Time of GPU work launched between two graphs once they are joined, relative to before: it disappears with the "
    "check that it was for or is fused into a neighbour, or stays a kernel of its own.",
)  # fmt: skip
CAPTURABLE = Number(
    0.8, 0.5, 0.95, "", "assumed",
    "Probability that CUDA graphs capture a compiled model once nothing breaks its graph.",
)  # fmt: skip
CALL_NS = Number(
    60_000.0, 25_000.0, 200_000.0, "ns", "assumed",
    "CPU time of one more call of a compiled graph in one pass: guards, flattening and autograd around it.",
)  # fmt: skip
