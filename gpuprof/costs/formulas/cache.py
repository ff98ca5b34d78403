"""How the L2 cache changes a kernel's memory traffic, as far as shapes show it.

Two effects are modelled, both of a kernel by itself that finds the cache cold:

- Data that is used more than once is read again where it does not stay (`rereads`, and `gemm`'s waves of tiles).
- Of what a kernel writes, the last part is still in the cache when it ends (`kept_bytes`); it goes to memory later.

A kernel that finds its input in the cache because the one before it has just written it reads less. But that one's
last part, not yet written to memory, then has to be while this one runs: as much is saved as is owed, so that the time
of a kernel goes by reads plus writes, kept ones included.
"""

from __future__ import annotations

from gpuprof.calibration import roofs as calibrated


def rereads(bytes_: float, working_set_bytes: float, l2_bytes: float) -> float:
    """Bytes read again in one more pass over data whose concurrently used part is `working_set_bytes`."""
    if working_set_bytes <= 0:
        return 0.0
    return bytes_ * max(0.0, 1 - calibrated.DIRTY_SHARE.value * l2_bytes / working_set_bytes)


def kept_bytes(read_bytes: float, write_bytes: float, l2_bytes: float) -> float:
    """Bytes written by a streaming kernel that are still only in the cache when it ends."""
    if write_bytes <= 0:
        return 0.0
    share = min(calibrated.DIRTY_SHARE.value, write_bytes / (read_bytes + write_bytes))
    return min(write_bytes, share * l2_bytes)
