"""Counters of Nsight Compute next to the roofline's limits for the same kernels. Plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

from gpuprof.bounds import OneOf, Positive, Share

Limiter = Literal["tensor", "memory", "issue", "latency"]


@dataclass(frozen=True, slots=True)
class CountedKernel:
    """Kernels of one name with the same launch."""

    name: str
    ns: int
    """Time per step, as recorded without counters."""
    count: Positive[int]
    """Number in the recorded steps."""
    claimed: Annotated[str, OneOf(of="gpuprof.replay.bound:PARTS")] | None
    """compute | memory | latency, by the roofline; None if their FLOPs and bytes are unknown."""
    counted: Limiter
    """The busiest of tensor pipes, DRAM and issue slots; latency if that is claimed and none is used much."""
    agrees: bool | None
    """Whether claimed and counted limit agree; tensor pipes and issue slots both count as compute."""
    tensor_percent: float | None
    dram_percent: float
    sm_percent: float | None
    """Busiest part of the SMs; high at low tensor pipe use means fp32 arithmetic or many instructions per byte."""
    issue_percent: float | None
    """Percent of cycles in which an SM issues an instruction."""
    counted_ns: int | None
    """Mean time of one kernel under Nsight Compute."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Comparison of a table of counters with the recorded kernels."""

    kernels: int
    """Number of kernels in the table."""
    matched_share: Share
    """Share of the recorded kernels' time in kernels of the table."""
    agreeing_share: Share | None
    """Share of the time with a claimed limit for which the counters agree."""
    largest: tuple[CountedKernel, ...]
    """Most time first."""
