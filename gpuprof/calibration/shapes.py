"""New shapes: what planning and compiling for them costs, and what is left once lengths are padded."""

from __future__ import annotations

from gpuprof.calibration.number import Number

STAYS = Number(
    0.5, 0.0, 0.7, "", "assumed",
    "Share of the cost of a first call with a shape that every call has, at worst.",
)  # fmt: skip
OTHER_KERNEL = Number(
    1.3, 1.0, 1.6, "", "assumed",
    "Time of the attention kernel that is used instead, relative to cuDNN's, at worst.",
)  # fmt: skip
USUAL_NS = Number(
    80_000.0, 70_000.0, 90_000.0, "ns", "measured",
    "An attention op that plans nothing: cuDNN's takes 70 to 90 µs on an H200's host.",
    ("scenarios/recompiles/recording",),
)  # fmt: skip
NEW_SHAPES_LEFT = Number(
    0.05, 0.01, 0.15, "", "assumed",
    "New shapes that are left when lengths are padded to a multiple: each of the few lengths is new once.",
)  # fmt: skip
PADDED = Number(
    1.08, 1.0, 1.5, "", "assumed",
    "Tokens after padding to a multiple of 64, relative to before: on average 32 more per sample.",
)  # fmt: skip
FEW_KNOWN = Number(
    1.25, 1.0, 1.5, "", "assumed",
    "Uncertainty of the step without new shapes if nearly every timed step has new ones: it then follows from a few "
    "steps that each ended in a synchronisation.",
)  # fmt: skip
