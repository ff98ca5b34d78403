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
    "Of an iteration what drafting a token takes: a model of a hundredth to a tenth of the size, or a head on top.",
)  # fmt: skip
CACHE_LEFT = Number(
    0.4, 0.2, 0.7, "", "assumed",
    "Of the host time and GPU time of a concatenation what writing the new token into its place in a static cache "
    "takes.",
)  # fmt: skip
