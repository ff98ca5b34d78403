"""The findings, one file each: a `PAGE` that explains it and `find(case)`, which proposes fixes for a recording."""

from __future__ import annotations

from gpuprof.diagnosis.findings import input_workers
from gpuprof.diagnosis.proposal import Finder, Page

_MODULES = (input_workers,)

FINDINGS: tuple[tuple[Page, Finder], ...] = tuple((module.PAGE, module.find) for module in _MODULES)
"""All of them; the order is that of the documentation."""
