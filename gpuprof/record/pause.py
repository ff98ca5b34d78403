"""A stretch that a running torch.profiler leaves out."""

from __future__ import annotations

import time
from typing import Any

from .phase_names import UNRECORDED_RANGE
from .ranges import Ranges


class Pause:
    """Begins where it is made; raises what the profiler does if it cannot pause.

    The range around it is in the trace: it begins while ops are recorded, and ends when they are again. profiler: one
    that has `toggle_collection_dynamic` (torch 2.6 and newer).
    """

    def __init__(self, profiler: Any, ranges: Ranges) -> None:
        self._profiler = profiler
        self._close = ranges.open(UNRECORDED_RANGE)
        self._begun_ns = time.perf_counter_ns()
        try:
            self._toggle(False)
        except BaseException:
            if self._close is not None:
                self._close()
            raise

    def end(self) -> int:
        """Records again; returns the ns that were left out."""
        self._toggle(True)
        if self._close is not None:
            self._close()
        return time.perf_counter_ns() - self._begun_ns

    def _toggle(self, on: bool) -> None:
        self._profiler.toggle_collection_dynamic(on, list(self._profiler.activities))
