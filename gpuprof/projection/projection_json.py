"""A Projection as `gpuprof.projection/1`: the keys of the dataclasses; times are whole nanoseconds."""

from __future__ import annotations

from typing import Any

from gpuprof import documents
from gpuprof.projection.projection import SCHEMA, Projection


def to_json(projection: Projection) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    return documents.document(SCHEMA, projection, whole_ns=True)


def dumps(projection: Projection, indent: int | None = 2) -> str:
    """The JSON text, in ASCII."""
    return documents.dumps(to_json(projection), indent)


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return documents.schema(SCHEMA)
