"""Roles as `gpuprof.roles/1`: the keys of the dataclasses. `schema/roles-1.json` is the schema."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from gpuprof.diagnosis.roles.model import SCHEMA, Roles

SCHEMA_FILE = Path(__file__).parent.parent / "schema" / "roles-1.json"


def dumps(found: Roles, indent: int | None = 2) -> str:
    """The JSON text, in ASCII."""
    return json.dumps(to_json(found), indent=indent, ensure_ascii=True, allow_nan=False)


def to_json(found: Roles) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    return {"schema": SCHEMA, **dataclasses.asdict(found), "start_unix_ns": str(found.start_unix_ns)}


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
