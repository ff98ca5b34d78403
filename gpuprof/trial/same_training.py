"""Decides whether a training computes the same with a fix, from hashes of batches, losses and gradient norms.
The first steps are compared with those of two processes without the fix, which differ from each other if the GPU adds
in a different order. Equal losses alone do not prove that two trainings are the same: without batches there is no
verdict.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from gpuprof.trial.trial import Sameness
from gpuprof.units import Assumed, Ratio, Share

ROUNDING: Assumed[Share] = 1e-5
"""Relative difference of a loss that always counts as rounding: sums in another order differ by this much in fp32
(2^-24 for each of about 10^4 additions, most of which cancel), so that a fused kernel counts as the same."""
SPREAD_RATIO: Assumed[Ratio] = 3.0
"""A difference may be this many times that of two processes without the fix, which are only one sample of it."""
STANDARD_ERRORS: Assumed[Ratio] = 3.0
"""Mean losses within this many standard errors count as the same distribution."""

Computed = dict[str, Any]
"""`batches`, `losses` and `gradient_norms` of a rank, from a trial's process."""


def compare(fixed: Sequence[Computed], first: Sequence[Computed], second: Sequence[Computed] | None) -> Sameness:
    """What a fix changes about the training. fixed, first, second: all ranks of a process with it, and of two
    without."""
    scatter = _largest([_difference(a, b) for a, b in zip(first, second, strict=False)]) if second else None
    apart = _largest([_difference(a, b) for a, b in zip(fixed, first, strict=False)])
    pairs = list(zip(fixed, first, strict=False))
    if not pairs or any(not a.get("batches") or not b.get("batches") for a, b in pairs):
        return Sameness(None, "not known: no batches of a DataLoader were seen", apart, scatter)
    repeated = any(_repeats(a) and not _repeats(b) for a, b in pairs)
    if repeated:
        text = "samples are repeated: the data set is not split among workers"
        return Sameness("different", text, apart, scatter, repeats=True)
    same_bytes = all(_same_bytes(a, b) for a, b in pairs)
    same_samples = same_bytes or all(_same_samples(a, b) for a, b in pairs)
    if same_bytes and apart == 0:
        return Sameness("bitwise", "the same batches, losses and gradients to the last bit", apart, scatter)
    allowed = max(SPREAD_RATIO * (scatter or 0.0), ROUNDING)
    if same_samples and apart is not None and apart <= allowed:
        of = "of two runs as they are" if (scatter or 0.0) * SPREAD_RATIO >= ROUNDING else "of rounding"
        return Sameness("within_scatter", f"the same samples; losses differ within the scatter {of}", apart, scatter)
    if same_samples:
        changed = "" if apart is None else f"; losses or gradients differ by up to {percent(apart)}"
        first_step = _largest([_difference(a, b, 1) for a, b in pairs])
        if first_step is not None and first_step > allowed and _alike(pairs) and _random(pairs):
            return Sameness("other_random_numbers", f"the same samples, other random numbers{changed}", apart, scatter)
        return Sameness("different", f"the same samples{changed}", apart, scatter)
    if all(_kinds(a) == _kinds(b) for a, b in pairs) and _alike(pairs):
        return Sameness(
            "other_random_numbers", "other samples or another order, of the same distribution", apart, scatter
        )
    return Sameness("different", "the batches have other contents", apart, scatter)


def percent(share: float) -> str:
    """`0.02 %`, `3e-05 %`."""
    return f"{100 * share:.2g} %"


def _same_bytes(a: Computed, b: Computed) -> bool:
    """Whether all batches seen by both are equal."""
    pairs = list(zip(a["batches"], b["batches"], strict=False))
    return all(one["whole"] == other["whole"] for one, other in pairs)


def _same_samples(a: Computed, b: Computed) -> bool:
    """Whether the samples are the same, in the same order, for any batch sizes."""
    rows = [_samples(side) for side in (a, b)]
    count = min(map(len, rows))
    return count > 0 and rows[0][:count] == rows[1][:count]


def _samples(side: Computed) -> list[str]:
    """Hashes of the samples, in order."""
    return [row for batch in side["batches"] for row in batch["rows"]]


def _kinds(side: Computed) -> list[str]:
    return side["batches"][0]["kinds"]


def _repeats(side: Computed) -> bool:
    rows = _samples(side)
    return len(set(rows)) < len(rows)


def _difference(a: Computed, b: Computed, steps: int | None = None) -> float | None:
    """The largest relative difference of a loss or gradient norm."""
    found = []
    for key in ("losses", "gradient_norms"):
        for x, y in zip(a.get(key, [])[:steps], b.get(key, [])[:steps], strict=False):
            if x is None and y is None:
                continue
            if x is None or y is None:
                return math.inf
            found.append(0.0 if x == y else abs(x - y) / max(abs(x), abs(y)))
    return max(found, default=None)


def _largest(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return max(known, default=None)


def _random(pairs: Sequence[tuple[Computed, Computed]]) -> bool:
    """Whether the first losses differ by more than another number format can explain."""
    first = _largest([_difference({"losses": a.get("losses", [])[:1]}, {"losses": b.get("losses", [])[:1]})
                      for a, b in pairs])  # fmt: skip
    return first is not None and first > FORMAT_DIFFERENCE


FORMAT_DIFFERENCE: Assumed[Share] = 0.02
"""Relative difference of the first loss: bf16 arithmetic (8 bits) changes it by less, other dropout masks by
more."""


def _alike(pairs: Sequence[tuple[Computed, Computed]]) -> bool:
    """Whether the losses could be from the same distribution: their means differ by few standard errors."""
    for a, b in pairs:
        x, y = ([v for v in side.get("losses", []) if v is not None] for side in (a, b))
        if len(x) < 2 or len(y) < 2:
            return False
        error = math.sqrt(_variance(x) / len(x) + _variance(y) / len(y))
        if abs(_mean(x) - _mean(y)) > STANDARD_ERRORS * error:
            return False
    return True


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _variance(values: Sequence[float]) -> float:
    mean = _mean(values)
    return math.fsum((v - mean) ** 2 for v in values) / (len(values) - 1)
