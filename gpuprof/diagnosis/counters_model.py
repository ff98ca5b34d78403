"""Counters of Nsight Compute next to what the roofline says of the same kernels. Plain data."""

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
    """Of a step, as recorded without counters."""
    count: Positive[int]
    """In the recorded steps."""
    claimed: Annotated[str, OneOf(of="gpuprof.replay.bound:PARTS")] | None
    """compute | memory | latency, by the roofline; None where their work is not known."""
    counted: Limiter
    """The busiest of tensor pipes, DRAM and issue slots; latency where that is claimed and none is used much."""
    agrees: bool | None
    """Tensor pipes and issue slots agree with compute."""
    tensor_percent: float | None
    dram_percent: float
    sm_percent: float | None
    """Busiest part of the SMs: high without tensor pipes for fp32, and for many instructions a byte."""
    issue_percent: float | None
    """Cycles in which an SM issues an instruction."""
    counted_ns: int | None
    """What one took under Nsight Compute, on average."""


@dataclass(frozen=True, slots=True)
class Counters:
    """What a table of counters says of the recorded kernels."""

    kernels: int
    """In the table."""
    matched_share: Share
    """Of the recorded kernels' time, that of kernels in the table."""
    agreeing_share: Share | None
    """Of the time of those whose limit is claimed, that where the counters say the same."""
    largest: tuple[CountedKernel, ...]
    """Most time first."""
