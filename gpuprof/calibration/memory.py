"""Memory that a training takes."""

from __future__ import annotations

from gpuprof.calibration.number import Number

LOGIT_BYTES = Number(
    12.0, 10.0, 14.0, "bytes", "measured",
    "Of each logit at the peak of a loss: logits in single precision, their logarithms and their gradients. Three "
    "models with checkpointing, whose peak is the loss, held 12.0, 12.1 and 12.2.",
    command="python -m benchmarks.memory",
)  # fmt: skip
LAYER_BYTES = Number(
    50.0, 31.0, 80.0, "bytes", "measured",
    "Kept for the backward pass per token, layer and unit of the hidden size: 34 in theory (Korthikanti et al., 2022, "
    "without attention scores), 31 to 75 in ten fine-tunes of dense models.",
    command="python -m benchmarks.memory",
)  # fmt: skip
ONE_LAYER = Number(
    50.0, 34.0, 80.0, "bytes", "measured",
    "The same for the layer that is being recomputed, with the gradients that pass through it: 37 and 60 in two "
    "fine-tunes.",
    command="python -m benchmarks.memory",
)  # fmt: skip
LINE_MAY = Number(
    1.1, 1.0, 1.15, "", "measured",
    "A slope read off a run's own peaks holds within this many times: predicted peaks of longer passes came within "
    "1.05.",
    command="python -m benchmarks.memory",
)  # fmt: skip
ALL_GROWS_LEAST = Number(
    0.9, 0.6, 1.0, "", "assumed",
    "Of a peak that is assumed to grow as a whole, the share that certainly does: the libraries' workspaces do not.",
)  # fmt: skip
ALL_GROWS_MOST = Number(
    1.03, 1.0, 1.5, "", "assumed",
    "Its growth at most: blocks that are rounded up may grow by more.",
)  # fmt: skip
CONTEXT_BYTES = Number(
    1_500_000_000, 1_000_000_000, 2_000_000_000, "bytes", "measured",
    "Driver, CUDA context and libraries: 1.5 GB in addition to what the allocator held, on H200s with torch 2.11. The "
    "interval is a guess.",
)  # fmt: skip
FRAGMENTS = Number(
    1.04, 1.01, 1.1, "", "measured",
    "Reserved over allocated at the peak: 1.01 and 1.04 in two recordings.",
)  # fmt: skip
UNSEEN_STATIC = Number(
    0.01, 0.005, 0.02, "", "measured",
    "Weights of layers and experts that were not recorded are this much more or less: two layers of 128 experts came "
    "out 0.9 % below what was measured, from a recording of four layers of 32.",
)  # fmt: skip
