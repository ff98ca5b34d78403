"""Checks a user's question: every mistake gives one line that says what is valid."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from gpuprof.costs.hardware import Gpu
from gpuprof.errors import GpuprofError
from gpuprof.projection.changes.other_cpu import FACTOR_LIMITS
from gpuprof.projection.gpu_names import gpu_named
from gpuprof.units import Convention, Ranks

MOST_RANKS: Convention[Ranks] = 1024


@dataclass(frozen=True, slots=True)
class ProjectionQuestion:
    """The GPUs, and the options of a projection by the names that `gpuprof.project` takes; None: as recorded.

    Raises GpuprofError for an invalid number.
    """

    gpus: tuple[Gpu, ...]
    batch: int | None = None
    """Samples of a forward pass."""
    sample_tokens: float | None = None
    """Mean tokens of a sample, padding included."""
    host_factor: float | None = None
    """CPU time there over CPU time here; None: 1."""
    host_measured: bool = False
    """Whether `host_factor` was measured on both machines."""
    layers: int | None = None
    """Layers of the whole model, if fewer were recorded; likewise `experts`."""
    experts: int | None = None
    ranks: tuple[int, ...] = ()
    """Numbers of GPUs to project to in addition, each GPU with its own batch."""
    prices: dict[str, float] = field(default_factory=dict)
    """Dollars per hour by the full name of a GPU; they take precedence over gpuprof's."""
    epoch_samples: int | None = None
    """Samples of an epoch."""
    explain: tuple[Gpu, Gpu] | None = None
    """Two GPUs: explain in words why the first beats the second."""
    whole_batch: bool = False
    """Keep the requested batch even if it does not fit."""

    def __post_init__(self) -> None:
        for name, value in (
            ("batch", self.batch), ("layers", self.layers), ("experts", self.experts),
            ("samples of an epoch", self.epoch_samples), ("tokens of a sample", self.sample_tokens),
        ):  # fmt: skip
            if value is not None and not (math.isfinite(value) and value >= 1):
                raise GpuprofError(f"{name}: {value:g} is less than 1")
        if self.host_factor is not None and not FACTOR_LIMITS[0] <= self.host_factor <= FACTOR_LIMITS[1]:
            raise GpuprofError(
                "a host factor is CPU time there over CPU time here, between "
                f"{FACTOR_LIMITS[0]:g} and {FACTOR_LIMITS[1]:g}; {self.host_factor:g} is not"
            )
        for count in self.ranks:
            if not 1 <= count <= MOST_RANKS:
                raise GpuprofError(f"{count} GPUs is not possible: choose between 1 and {MOST_RANKS}")

    @property
    def host_source(self) -> str:
        """assumed | given | measured."""
        return "assumed" if self.host_factor is None else "measured" if self.host_measured else "given"


OPTIONS = tuple(option.name for option in fields(ProjectionQuestion) if option.name != "gpus")
"""Names of the options."""


def question(to: Sequence[str], **options: Any) -> ProjectionQuestion:
    """The question in the words of `gpuprof.project`: GPUs in `to`, `prices` and `explain` by any unambiguous name.

    An option that is None counts as left out. Raises GpuprofError, and TypeError for an option that does not
    exist.
    """
    for name in options:
        if name not in OPTIONS:
            raise TypeError(f"a projection has no option {name!r}; it has {', '.join(OPTIONS)}")
    given = {name: value for name, value in options.items() if value is not None}
    explain = given.get("explain")
    names = [to] if isinstance(to, str) else list(to)
    gpus: dict[str, Gpu] = {gpu.name: gpu for gpu in map(gpu_named, [*names, *(explain or ())])}
    if not gpus:
        raise GpuprofError("name a GPU to project to; gpuprof gpus lists them")
    resolved = {
        "ranks": tuple(sorted(set(given.get("ranks", ())))),
        "prices": _named(given.get("prices", {})),
        "explain": None if explain is None else (gpu_named(explain[0]), gpu_named(explain[1])),
    }
    return ProjectionQuestion(tuple(gpus.values()), **(given | resolved))


def _named(prices: Mapping[str, float]) -> dict[str, float]:
    """The prices by the full names of the GPUs. Raises GpuprofError."""
    own = {}
    for name, usd in prices.items():
        if not (math.isfinite(usd) and usd >= 0):
            raise GpuprofError(f"{usd:g} $ an hour is not a valid price for {name}")
        own[gpu_named(name).name] = float(usd)
    return own


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
