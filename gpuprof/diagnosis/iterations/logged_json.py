"""LoggedIterations as `gpuprof.iterations/1`: the dataclasses' fields as keys."""

from __future__ import annotations

from typing import Any

from gpuprof import documents
from gpuprof.diagnosis.iterations.logged_model import SCHEMA, LoggedIterations


def to_json(found: LoggedIterations) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    return documents.document(SCHEMA, found)


def dumps(found: LoggedIterations, indent: int | None = 2) -> str:
    """The JSON text, in ASCII."""
    return documents.dumps(to_json(found), indent)


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return documents.schema(SCHEMA)
