"""The smallest times between one thing and the next on this machine, estimated from what was recorded.

GPU work starts when three things allow it: its launch (plus a latency), the work before it on its stream (plus a gap),
and events that it waits for. Only the last of them to come shows its lag. For the others the usual lag is taken,
which is estimated from starts that can have had only one reason.
"""

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Launches, WholeNs

CLEAR_NS: Assumed[WholeNs] = 20_000
"""One of two reasons came this much later than the other: far above any launch latency or gap, which take some µs."""
FEWEST_STARTS: Assumed[Launches] = 4
"""Fewest starts from which a usual lag is estimated."""


def usual(lag_ns: F64, clear: Mask, fallback_ns: float) -> float:
    """The median of the lags that are `clear`, with at least FEWEST_STARTS of them."""
    return float(np.median(lag_ns[clear])) if np.count_nonzero(clear) >= FEWEST_STARTS else fallback_ns


def prompt(latency_ns: F64, clear: Mask) -> Mask:
    """Of the `clear` starts those soon after their launch: what started much later waited for something that is not
    known. Soon is estimated from the recording's own smallest latencies, for the clocks of host and device may
    differ; where these do not agree with each other, nothing says which start was soon."""
    alone = clear & ~np.isnan(latency_ns)
    if np.count_nonzero(alone) < FEWEST_STARTS:
        return alone
    smallest = np.partition(latency_ns[alone], FEWEST_STARTS - 1)[:FEWEST_STARTS]
    if np.ptp(smallest) > CLEAR_NS:
        return np.zeros_like(alone)
    floor = max(float(smallest[-1]), 0.0)
    return alone & (latency_ns < floor + CLEAR_NS)


def bind(observed: F64, usual_ns: F64) -> F64:
    """Lags of the reasons of each start: [starts, reasons] observed lags (NaN: no such reason) and usual ones.

    The reason whose lag is nearest to the usual one (by excess) bound the start and keeps what was observed; the
    others get the usual lag, or less where less was observed.
    """
    excess = np.where(np.isnan(observed), np.inf, observed - usual_ns)
    lags = np.fmin(observed, usual_ns)
    rows = np.flatnonzero(np.isfinite(excess).any(axis=1))
    bound = excess[rows].argmin(axis=1)
    lags[rows, bound] = observed[rows, bound]
    return lags
