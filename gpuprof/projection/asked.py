"""What a user asks, checked: every mistake is one line that says what would be right."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from gpuprof.costs.hardware import Gpu
from gpuprof.errors import GpuprofError
from gpuprof.projection.host import LIMITS
from gpuprof.projection.names import gpu_named
from gpuprof.projection.subject import Question

MOST_RANKS = 1024


def question(
    to: Sequence[str], *, batch: int | None = None, sample_tokens: float | None = None,
    host_factor: float | None = None, host_measured: bool = False, layers: int | None = None,
    experts: int | None = None, ranks: Sequence[int] = (), prices: Mapping[str, float] | None = None,
    epoch_samples: int | None = None, explain: tuple[str, str] | None = None, whole_batch: bool = False,
) -> Question:  # fmt: skip
    """The question in the words of `gpuprof.project`. Raises GpuprofError."""
    names = [to] if isinstance(to, str) else list(to)
    gpus: dict[str, Gpu] = {gpu.name: gpu for gpu in map(gpu_named, [*names, *(explain or ())])}
    if not gpus:
        raise GpuprofError("project to which GPU? gpuprof gpus lists them")
    for name, value in (
        ("batch", batch), ("layers", layers), ("experts", experts), ("samples of an epoch", epoch_samples),
        ("tokens of a sample", sample_tokens),
    ):  # fmt: skip
        if value is not None and not (math.isfinite(value) and value >= 1):
            raise GpuprofError(f"{name}: {value:g} is less than 1")
    if host_factor is not None and not LIMITS[0] <= host_factor <= LIMITS[1]:
        raise GpuprofError(
            f"a host factor is host time there over host time here, between {LIMITS[0]:g} and {LIMITS[1]:g}; "
            f"{host_factor:g} is not"
        )
    for count in ranks:
        if not 1 <= count <= MOST_RANKS:
            raise GpuprofError(f"{count} GPUs are no training: between 1 and {MOST_RANKS}")
    own = {}
    for name, usd in (prices or {}).items():
        if not (math.isfinite(usd) and usd >= 0):
            raise GpuprofError(f"a price of {usd:g} $ an hour for {name} is none")
        own[gpu_named(name).name] = float(usd)
    return Question(
        gpus=tuple(gpus.values()),
        batch=batch,
        sample_tokens=sample_tokens,
        host_factor=host_factor,
        host_source="assumed" if host_factor is None else "measured" if host_measured else "given",
        layers=layers,
        experts=experts,
        ranks=tuple(sorted(set(ranks))),
        prices=own,
        epoch_samples=epoch_samples,
        explain=None if explain is None else (gpu_named(explain[0]), gpu_named(explain[1])),
        whole_batch=whole_batch,
    )


def parse_prices(texts: Sequence[str], gpus: Sequence[str]) -> dict[str, float]:
    """`GPU=USD`, or a bare amount where one GPU is asked for. Raises GpuprofError."""
    prices = {}
    for text in texts:
        name, equals, amount = text.rpartition("=")
        if not equals and len(gpus) == 1:
            name = gpus[0]
        try:
            usd = float(amount)
        except ValueError:
            usd = math.nan
        if not name.strip() or not (math.isfinite(usd) and usd >= 0):
            raise GpuprofError(f"--price {text}: give dollars per hour as GPU=USD, such as 'H100 SXM=2.69'")
        prices[name.strip()] = usd
    return prices
