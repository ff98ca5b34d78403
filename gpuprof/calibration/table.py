"""All calibrated numbers by subject and name."""

from __future__ import annotations

import importlib
import pkgutil

import gpuprof.calibration as room
from gpuprof.calibration.number import Number


def numbers() -> dict[str, Number]:
    """`subject.NAME` → number, in the order of files and lines."""
    found: dict[str, Number] = {}
    for subject in subjects():
        values = vars(importlib.import_module(f"{room.__name__}.{subject}"))
        found |= {f"{subject}.{name}": value for name, value in values.items() if isinstance(value, Number)}
    return found


def subjects() -> list[str]:
    """Names of the files that hold numbers."""
    return sorted(module.name for module in pkgutil.iter_modules(room.__path__) if module.name not in _OTHERS)


_OTHERS = {"number", "quoted", "table"}
