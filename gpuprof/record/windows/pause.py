"""Pauses a running torch.profiler."""

from __future__ import annotations

import time
from typing import Any

from ..base.ranges import Ranges
from ..phases.phase_names import UNRECORDED_RANGE


class Pause:
    """Begins when it is created; raises what the profiler raises if it cannot pause.
    The trace has a range around the pause: it begins before recording stops and ends after recording resumes.
    profiler: one that has `toggle_collection_dynamic` (torch 2.6 and newer).
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
        """Resumes recording; returns the length of the pause in ns."""
        self._toggle(True)
        if self._close is not None:
            self._close()
        return time.perf_counter_ns() - self._begun_ns

    def _toggle(self, on: bool) -> None:
        self._profiler.toggle_collection_dynamic(on, list(self._profiler.activities))
