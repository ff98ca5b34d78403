"""Invariants of any diagnosis."""

from __future__ import annotations

from benchmarks.invariants import broken
from gpuprof import Diagnosis
from gpuprof.diagnosis.written.diagnosis_json import to_json


def adds_up(diagnosis: Diagnosis) -> None:
    """The numbers of a diagnosis add up exactly, its intervals are in order, and its texts say what they are."""
    found = broken(diagnosis)
    assert not found, found


def numbers(diagnosis: Diagnosis) -> dict:
    """Everything in the diagnosis except where it was read."""
    found = to_json(diagnosis) | {"source": None}
    memory = found["memory"]
    return found | {"memory": memory and memory | {"source": None}}
