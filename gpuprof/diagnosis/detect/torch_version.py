"""The torch version of a recording, as far as known: features that it lacks are not advised."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from gpuprof.tracefile.trace import OP

if TYPE_CHECKING:
    from gpuprof.diagnosis.analysis import Analysis

_OWN_RANGES = ("ProfilerStep#", "enumerate(DataLoader)#", "Optimizer.step#")
"""Ranges that torch itself opens: user annotations since 2.0, ops before (pytorch/kineto#709)."""


def torch_version(case: Analysis) -> tuple[int, ...]:
    """Major and minor version of torch; empty where the recording does not say."""
    found = re.match(r"(\d+)\.(\d+)", str(case.versions.get("torch_version", "")))
    return tuple(int(part) for part in found.groups()) if found else ()


def is_before_2(case: Analysis) -> bool:
    """Whether the recording is from a torch before 2.0, the first with torch.compile; False if unknown."""
    known = torch_version(case)
    if known:
        return known < (2, 0)
    own = case.ops_named(lambda text: text.startswith(_OWN_RANGES))
    return bool(own.any() and np.all(case.trace.ops.kind[own] == OP))
