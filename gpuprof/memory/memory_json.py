"""A MemoryReport as `gpuprof.memory/1`: the keys of the dataclasses."""

from __future__ import annotations

from typing import Any

from gpuprof import documents
from gpuprof.memory.memory_report import SCHEMA, MemoryReport


def to_json(report: MemoryReport) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    return documents.document(SCHEMA, report)


def dumps(report: MemoryReport, indent: int | None = 2) -> str:
    """The JSON text, in ASCII."""
    return documents.dumps(to_json(report), indent)


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return documents.schema(SCHEMA)
