"""Networks of images: what another memory layout, or outputs that are stored, leave of a step."""

from __future__ import annotations

from gpuprof.calibration.number import Number

_RECORDED = ("tests/data/vision",)

GROUP_NORM_COPIES = Number(
    15.0, 8.0, 25.0, "", "measured",
    "What a group norm's copies take in channels_last, in units of the mean conversion: 15 in training and 25 in "
    "a frozen encoder, on an H200 with torch 2.11 under autocast, 64 and 128 channels. With one between any two "
    "convolutions the step went from 16.2 to 23.0 ms. The low end is a guess.",
    _RECORDED,
)  # fmt: skip
BATCH_NORM = Number(
    0.67, 0.6, 1.0, "", "measured",
    "What is left of the time of batch norms in training mode, forward, in channels_last: a network of 16 on an H200, "
    "whose step went from 15.2 to 10.4 ms. The interval is a guess.",
    _RECORDED,
)  # fmt: skip
BATCH_NORM_BACKWARD = Number(
    0.29, 0.25, 1.0, "", "measured", "The same backward. The interval is a guess.", _RECORDED,
)  # fmt: skip
BIAS = Number(
    2.8, 1.5, 3.4, "", "measured",
    "How many times as long summing the gradient of a convolution's bias takes in channels_last: 2.2 and 3.4 in two "
    "networks on an H200. The low end is a guess.",
    _RECORDED,
)  # fmt: skip
OTHER_COPIES = Number(
    0.0, 0.0, 0.3, "", "assumed",
    "Share of the conversions' time that returns as copies around other ops without a kernel for channels_last "
    "(reshapes, attention over pixels, pooling of some sizes).",
)  # fmt: skip
STORED_HOST = Number(
    0.0, 0.0, 0.5, "", "assumed",
    "Share of a frozen module's CPU time that reading and copying its stored outputs takes.",
)  # fmt: skip
SEEN_AGAIN = Number(
    0.6, 0.4, 0.8, "", "assumed",
    "Probability that a training goes through its samples more than once and sees them as they were, where the run "
    "does not say how often they come back.",
)  # fmt: skip
FROZEN_FEATURES = Number(
    0.75, 0.5, 0.9, "", "assumed",
    "Probability that a pretrained speech model is fine-tuned as well with its convolutions over raw sound frozen, as "
    "the authors of wav2vec 2.0 do.",
)  # fmt: skip
