"""How the L2 cache changes a kernel's memory traffic, as far as shapes show it.

Two effects are modelled, both for a single kernel with a cold cache:

- Data that is used more than once is read again if it does not stay in the cache (`rereads`, and `gemm`'s waves of
  tiles).
- The last part of what a kernel writes is still in the cache when it ends (`kept_bytes`); it goes to memory later.

A kernel that finds its input in the cache, because the previous kernel has just written it, reads less. But what that
one left in the cache then has to be written to memory while this one runs. The two cancel, so a kernel's time depends
on reads plus writes, kept ones included.
"""

from __future__ import annotations

from gpuprof.calibration import roofs as calibrated


def rereads(bytes_: float, working_set_bytes: float, l2_bytes: float) -> float:
    """Bytes that one more pass over data reads again from memory; `working_set_bytes`: the part used concurrently."""
    if working_set_bytes <= 0:
        return 0.0
    return bytes_ * max(0.0, 1 - calibrated.DIRTY_SHARE.value * l2_bytes / working_set_bytes)


def kept_bytes(read_bytes: float, write_bytes: float, l2_bytes: float) -> float:
    """Bytes written by a streaming kernel that are still only in the cache when it ends."""
    if write_bytes <= 0:
        return 0.0
    share = min(calibrated.DIRTY_SHARE.value, write_bytes / (read_bytes + write_bytes))
    return min(write_bytes, share * l2_bytes)
