"""Usual delays before GPU work starts on this machine, estimated from the recording.

GPU work starts when three things allow it: its launch (plus a latency), the work before it on its stream (plus a gap),
and events that it waits for. Only the last of them shows its lag. For the others the usual lag is used, estimated from
starts that can have had only one reason.
"""

from __future__ import annotations

import numpy as np

from gpuprof.tracefile.trace import F64, Mask
from gpuprof.units import Assumed, Launches, WholeNs

LATER_REASON_NS: Assumed[WholeNs] = 20_000
"""A start has one clear reason if that came later than the other by this, ns: far more than a launch latency or gap,
which take a few µs."""
FEWEST_STARTS: Assumed[Launches] = 4
"""Fewest starts from which a usual lag is estimated."""


def usual(lag_ns: F64, clear: Mask, fallback_ns: float) -> float:
    """The median of the lags that are `clear`, with at least FEWEST_STARTS of them."""
    return float(np.median(lag_ns[clear])) if np.count_nonzero(clear) >= FEWEST_STARTS else fallback_ns


def prompt(latency_ns: F64, clear: Mask) -> Mask:
    """The `clear` starts that came soon after their launch: later ones waited for something unknown. "Soon" is
    estimated from the recording's own smallest latencies, because the clocks of CPU and device may differ; if those
    disagree, no start counts as soon."""
    alone = clear & ~np.isnan(latency_ns)
    if np.count_nonzero(alone) < FEWEST_STARTS:
        return alone
    smallest = np.partition(latency_ns[alone], FEWEST_STARTS - 1)[:FEWEST_STARTS]
    if np.ptp(smallest) > LATER_REASON_NS:
        return np.zeros_like(alone)
    floor = max(float(smallest[-1]), 0.0)
    return alone & (latency_ns < floor + LATER_REASON_NS)


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
