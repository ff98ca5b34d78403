"""A Comparison as `gpuprof.comparison/1`: the dataclasses' fields as keys, in reading order."""

from __future__ import annotations

from typing import Any

from gpuprof import documents
from gpuprof.diagnosis.comparison.comparison import SCHEMA, Comparison


def dumps(comparison: Comparison, indent: int | None = 2) -> str:
    """The JSON text, in ASCII."""
    return documents.dumps(to_json(comparison), indent)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    found = documents.document(SCHEMA, comparison, diagnoses=None)
    return {key: value for key, value in found.items() if key != "diagnoses"}


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return documents.schema(SCHEMA)
