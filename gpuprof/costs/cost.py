"""The work of one kernel: the common result of all formulas."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property

from gpuprof.costs.dtypes import UNKNOWN
from gpuprof.units import Bytes, Published

SECTOR_BYTES: Published[Bytes] = 32
"""The smallest unit of memory traffic: an NVIDIA GPU's cache line consists of sectors of 32 bytes."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What formulas need to know about the GPU: the size of its L2 and how many blocks run at the same time."""

    l2_bytes: float
    multiprocessors: int


@dataclass(frozen=True)
class Kernel:
    """A kernel as it was launched."""

    name: str
    grid: tuple[int, int, int]
    threads: int
    """Threads per block."""

    @cached_property
    def blocks(self) -> int:
        return max(self.grid[0], 1) * max(self.grid[1], 1) * max(self.grid[2], 1)

    def named(self, pattern: str) -> bool:
        return re.search(pattern, self.name) is not None


@dataclass(frozen=True, slots=True)
class Cost:
    """Work of a kernel, or of an op whose kernels share it."""

    flops: float = 0.0
    """FLOPs of matmuls and convolutions; other arithmetic is never the limit and counts as 0."""
    read_bytes: float = 0.0
    """Bytes read from memory, including repeated reads that miss the L2."""
    write_bytes: float = 0.0
    dtype: int = UNKNOWN
    """Code of the arithmetic's number format (`dtypes.DTYPES`)."""
    kept_bytes: float | None = None
    """Part of `write_bytes` that may still be in the L2 at the end; None if the kernel's order of work is unknown."""
    repeated_flops: float = 0.0
    """Part of `flops` that is recomputed instead of having been stored."""
    whole: bool = True
    """True: cost of the whole op, shared by all its kernels with this flag. False: of this kernel alone."""
    guessed: bool = False
    """True: computed from tensors that may not be the kernel's."""
