"""The pages of all built-in findings, in the documentation's order."""

from __future__ import annotations

from gpuprof.diagnosis.detect.declared.proposal import Page
from gpuprof.diagnosis.findings import BUILT_IN

PAGES: tuple[Page, ...] = tuple(one.page for one in BUILT_IN)
