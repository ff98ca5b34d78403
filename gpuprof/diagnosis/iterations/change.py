"""Makes a change of an iteration from the time it saves."""

from __future__ import annotations

from gpuprof.diagnosis.result.fix import Fix, as_fix
from gpuprof.diagnosis.result.iteration_model import Change, IterationRange


def change(
    mean_ns: int,
    id_: str,
    title: str,
    fix: Fix | str,
    saved: tuple[float, float, float],
    basis: str,
    changes: str | None,
) -> Change:
    """The change of an iteration of mean_ns. saved: ns that it saves: low, expected, high."""
    written = as_fix(fix)
    high, expected, low = (max(round(mean_ns - min(max(ns, 0.0), mean_ns)), 1) for ns in saved)
    found = IterationRange(low, expected, high)
    speedup = mean_ns / expected
    return Change(id_, title, str(written), found, speedup, basis, changes, written.settings, written.patch)
