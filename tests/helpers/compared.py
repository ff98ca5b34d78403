"""Recordings that are compared with each other."""

from __future__ import annotations

import functools

import gpuprof
from gpuprof.diagnosis.comparison.compare import (
    compare,
)
from gpuprof.diagnosis.comparison.model import Comparison
from gpuprof.diagnosis.model import Diagnosis
from helpers.paths import ROOT

MS = 1_000_000


PAIRS = ROOT / "tests" / "data" / "pairs"


RUNS = ROOT / "tests" / "data" / "runs"


@functools.cache
def diagnosed(name: str) -> Diagnosis:
    path = PAIRS / f"{name}.json.gz"
    return gpuprof.diagnose(path if path.exists() else ROOT / name)  # a path from the root, or a whole one


@functools.cache
def compared(a: str, b: str) -> Comparison:
    return compare(diagnosed(a), diagnosed(b))
