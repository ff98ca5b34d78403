"""Linear layers in FP8: the bytes and launches of the casts and scales of each matrix multiplication.

A linear layer trains with three matrix multiplications: x (M × K) by wᵀ, the gradient of y (M × N) by w, and its
transpose by x. In FP8 each operand is scaled by its largest value, cast, and needed in two layouts. The traffic
follows from which values a kernel must have seen before another one can begin. torchao's float8 and Transformer Engine
differ in that (torchao: README of float8; Transformer Engine: delayed scaling, which takes the largest values of
earlier steps).
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuprof.units import Convention, Elements, Published, Ratio

BF16: Convention[Ratio] = 2.0
FORWARD, GRAD_INPUT, GRAD_WEIGHT = range(3)
DIMENSION_MULTIPLE: Published[Elements] = 16
"""Dimensions must be multiples of this for torch._scaled_mm."""


@dataclass(frozen=True, slots=True)
class Recipe:
    """A way to scale, with the bytes per element that each kernel of a cast reads and writes."""

    name: str
    activation: tuple[float, ...]
    """Casting x in the forward pass, or the gradient of y in the backward pass, in both layouts."""
    weight: tuple[float, ...]
    """Casting the weight in the forward pass."""
    weight_again: tuple[float, ...]
    """Casting it for the backward pass, in the other layout."""


TENSORWISE = Recipe("torchao.float8, scaled by tensor", (BF16, 0.0, BF16 + 2), (BF16, 0.0, BF16 + 1), (BF16 + 1,))
"""Maxima (in two kernels), then a cast that writes both layouts; for the weight one layout in each pass."""
ROWWISE = Recipe(
    "torchao.float8, scaled by row", (BF16 + 1, BF16, 0.0, BF16 + 1), (BF16 + 1,), (BF16, 0.0, BF16 + 1)
)  # fmt: skip
"""Each layout has its own maxima: along rows one kernel finds them and casts; across rows they take two kernels before
the cast."""
DELAYED = Recipe("Transformer Engine, delayed scaling", (BF16 + 2,), (BF16 + 2,), ())
"""Scales are from earlier steps, so one kernel casts, transposes and finds the maximum."""
MXFP8 = Recipe("MXFP8", (BF16 + 1, BF16 + 1), (BF16 + 1,), (BF16 + 1,))
"""One scale per 32 elements, which Blackwell applies in hardware."""


def cast_kernels(recipe: Recipe, role: int, m: float, k: float, n: float, casts_input: bool = True) -> list[float]:
    """Bytes moved by each cast kernel around one matrix multiplication of a linear layer.

    role: which of the three; m, k, n: rows, inner dimension and columns of the forward one. casts_input: whether the
    layer casts x itself; layers that share x cast it once.
    """
    if role == FORWARD:
        own = [m * k * each for each in recipe.activation] if casts_input else []
        return own + [k * n * each for each in recipe.weight]
    if role == GRAD_INPUT:
        return [m * n * each for each in recipe.activation] + [k * n * each for each in recipe.weight_again]
    return []


def cast_ns(kernels: list[float], bytes_per_s: float, shortest_ns: float) -> float:
    """Time of kernels that move these bytes one after the other, each at least `shortest_ns`, ns."""
    return sum(max(each / bytes_per_s * 1e9, shortest_ns) for each in kernels)


def matmul_ns(bf16_ns: float, ratio: float, added_ns: float) -> float:
    """Time in FP8, ns, of a matrix multiplication that takes `bf16_ns` now, `added_ns` of it to fill and empty the
    GPU."""
    return min(bf16_ns, added_ns) + max(bf16_ns - added_ns, 0.0) * ratio


def layer_speedup(
    m: float, k: float, n: float, flops: float, bytes_per_s: float, recipe: Recipe,
    *, ratio: float, cast_share: float, shortest_ns: float, added_ns: float,
) -> float:  # fmt: skip
    """bf16 time over FP8 time of the three matrix multiplications of a linear layer alone, from the rates of a GPU.

    flops: FLOP/s that bf16 matrix multiplications reach; bytes_per_s: of a copy.
    """
    bf16_ns = added_ns + 2 * m * k * n / flops * 1e9
    cast = sum(
        cast_ns(cast_kernels(recipe, role, m, k, n), bytes_per_s * cast_share, shortest_ns)
        for role in (FORWARD, GRAD_INPUT, GRAD_WEIGHT)
    )
    return 3 * bf16_ns / (3 * matmul_ns(bf16_ns, ratio, added_ns) + cast)
