"""What fixes for inference leave of an iteration, and what they cost."""

from __future__ import annotations

from gpuprof.calibration.number import Number

ACCEPTED = Number(
    0.65, 0.45, 0.8, "", "published",
    "Share of drafted tokens that the model accepts: 0.6 to 0.9 for drafts by a smaller model of the family (Leviathan "
    "et al., 2023, table 3), less for n-grams of the prompt.",
)  # fmt: skip
DRAFT_COST = Number(
    0.06, 0.02, 0.15, "", "assumed",
    "Share of an iteration that drafting a token takes, with a model of 1 to 10 % of the size, or an extra head.",
)  # fmt: skip
CACHE_LEFT = Number(
    0.4, 0.2, 0.7, "", "assumed",
    "Share of the CPU and GPU time of a concatenation that is left when the new token is written into its place in a "
    "static cache.",
)  # fmt: skip
CACHED_HOST = Number(
    1.1, 0.9, 1.4, "", "assumed",
    "CPU time of a call on one token that appends keys and values to a cache in each layer, over that of a call on the "
    "whole text.",
)  # fmt: skip
CACHEABLE = Number(
    0.9, 0.6, 0.97, "", "assumed",
    "Probability that a model to which a text is given again with each new token can keep keys and values: that no "
    "token sees later ones.",
)  # fmt: skip
