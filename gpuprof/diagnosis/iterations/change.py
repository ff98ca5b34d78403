"""Makes a change of an iteration from the time it saves."""

from __future__ import annotations

from gpuprof.diagnosis.iterations.titles import TITLES
from gpuprof.diagnosis.result.fix import Fix, as_fix
from gpuprof.diagnosis.result.iteration_model import IterationChange
from gpuprof.value_range import Range


def change(
    mean_ns: int,
    named: str | tuple[str, int],
    fix: Fix | str,
    saved: tuple[float, float, float],
    basis: str,
    changes: str | None,
) -> IterationChange:
    """The change of an iteration of mean_ns. named: its id, and which of its titles it has (the first without).
    saved: ns that it saves: low, expected, high."""
    id_, at = (named, 0) if isinstance(named, str) else named
    written = as_fix(fix)
    high, expected, low = (max(round(mean_ns - min(max(ns, 0.0), mean_ns)), 1) for ns in saved)
    found = Range(low, expected, high)
    speedup = mean_ns / expected
    return IterationChange(
        id_, TITLES[id_][at], str(written), found, speedup, basis, changes, written.settings, written.patch
    )
