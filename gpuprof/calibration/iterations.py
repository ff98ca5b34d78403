"""Iterations of RL post-training: when a series of passes is decoding, and what a change of an iteration is worth."""

from __future__ import annotations

from gpuprof.calibration.number import Number

LEAST_TOKENS = Number(
    8.0, 4.0, 16.0, "passes", "assumed",
    "Passes of one token a sequence, one after another, that are taken to be decoding: a training passes whole "
    "sequences, and a program that measures a single token does not do it this often in a row.",
)  # fmt: skip
LEAST_GAIN = Number(
    0.03, 0.02, 0.05, "", "assumed",
    "Share of the iteration below which a change is not worth a line.",
)  # fmt: skip
WAITS = Number(
    0.3, 0.1, 0.7, "", "assumed",
    "A reward function whose thread uses less CPU time than this share of its wall time waits for something else: "
    "functions that wait use next to nothing, functions that compute nearly all of it.",
)  # fmt: skip
SPREAD = Number(
    0.1, 0.05, 0.3, "", "assumed",
    "Half the interval of an expected iteration, as a share of the time that changes: decode steps and waits of "
    "different iterations differ by about this.",
)  # fmt: skip
