"""Roles as `gpuprof.roles/1`: the dataclasses' fields as keys."""

from __future__ import annotations

from typing import Any

from gpuprof import documents
from gpuprof.diagnosis.roles.model import SCHEMA, Roles


def to_json(found: Roles) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    return documents.document(SCHEMA, found, start_unix_ns=str(found.start_unix_ns))


def dumps(found: Roles, indent: int | None = 2) -> str:
    """The JSON text, in ASCII."""
    return documents.dumps(to_json(found), indent)


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return documents.schema(SCHEMA)
