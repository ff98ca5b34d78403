"""The findings, one file each: a `PAGE` that explains it and `find(case)`, which proposes fixes for a recording."""

from __future__ import annotations

from gpuprof.diagnosis.findings import input_workers
from gpuprof.diagnosis.proposal import Finder, Page

_MODULES = (input_workers,)

FINDINGS: tuple[tuple[Page, Finder], ...] = tuple((module.PAGE, module.find) for module in _MODULES)
"""What is looked for in a recording, in the order of the documentation."""

PAGES: tuple[Page, ...] = tuple(page for page, _ in FINDINGS)
"""What `gpuprof explain` and docs/findings say."""
