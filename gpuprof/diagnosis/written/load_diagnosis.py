"""A Diagnosis from its JSON, equal to the one that was written."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpuprof.diagnosis.mean_step.baseline import RareStep
from gpuprof.diagnosis.result.diagnosis import SCHEMA, Diagnosis
from gpuprof.diagnosis.result.iteration_model import Iteration
from gpuprof.diagnosis.written.typed import NotOfType, typed
from gpuprof.errors import GpuprofError
from gpuprof.memory.advice import Advice
from gpuprof.memory.memory_report import MemoryReport
from gpuprof.ranks.summary import Job, RankSummary
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.runfile import open_regular

_NAMES = {one.__name__: one for one in (Advice, Iteration, Job, MemoryReport, RankSummary, RareStep, Sensitivities)}
"""Types of fields that the defining modules import for type checkers only."""
_HOW = "gpuprof diagnose --json writes a diagnosis"


def load_diagnosis(source: str | os.PathLike[str] | Mapping[str, Any]) -> Diagnosis:
    """The Diagnosis in a file, a JSON text or an object parsed from it, written by this version or an older one.

    Raises GpuprofError, one line, for anything that is not a diagnosis.
    """
    if isinstance(source, Mapping):
        return _diagnosis(dict(source), "the object")
    if isinstance(source, str) and source.lstrip().startswith("{"):
        return _diagnosis(_parsed(source, "the text"), "the text")
    path = Path(source)
    try:
        with open_regular(path) as file:
            text = file.read()
    except (OSError, ValueError) as error:  # ValueError: not a valid path, such as one with a NUL
        why = getattr(error, "strerror", None) or error
        raise GpuprofError(f"{path}: cannot be read ({why})") from None
    return _diagnosis(_parsed(text, str(path)), str(path))


def _parsed(text: str | bytes, name: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise GpuprofError(f"{name} is not JSON: {_HOW}") from None


def _diagnosis(document: Any, name: str) -> Diagnosis:
    schema = document.get("schema") if isinstance(document, dict) else None
    if schema != SCHEMA:
        what = f"is of {str(schema)[:60]!r}" if schema else "has no schema"
        raise GpuprofError(f"{name} {what}, not of {SCHEMA}: {_HOW}")
    try:
        # The window's ends are text in JSON.
        return typed(Diagnosis, _as_now(document), _NAMES, "the diagnosis")
    except NotOfType as error:
        raise GpuprofError(f"{name} is not a whole diagnosis: {error}") from None


def _as_now(document: dict[str, Any]) -> dict[str, Any]:
    """The document in today's form: the verdict as a list of sentences, which older versions wrote as one text, and the
    ends of the window as numbers, which JSON holds as text."""
    verdict = document.get("verdict")
    if isinstance(verdict, dict) and "sentences" not in verdict:
        document = document | {
            "verdict": verdict | {"sentences": [verdict["summary"]] if verdict.get("summary") else []}
        }
    window = document.get("window")
    if not isinstance(window, dict):
        return document
    try:
        return document | {"window": {key: int(value) for key, value in window.items()}}
    except (TypeError, ValueError):
        raise NotOfType("the diagnosis.window is no pair of whole numbers") from None
