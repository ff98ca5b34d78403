"""A Comparison as `gpuprof.comparison/1`: the keys of the dataclasses, in the order in which a person reads.

`schema/comparison-1.json`, next to the diagnosis's, is the published JSON Schema.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from gpuprof.diagnosis.comparison.comparison import SCHEMA, Comparison
from gpuprof.diagnosis.json import SCHEMA_FILE as DIAGNOSIS_SCHEMA
from gpuprof.diagnosis.json import plain

SCHEMA_FILE = DIAGNOSIS_SCHEMA.with_name("comparison-1.json")


def dumps(comparison: Comparison, indent: int | None = 2) -> str:
    """The JSON text, in ASCII."""
    return json.dumps(to_json(comparison), indent=indent, ensure_ascii=True, allow_nan=False)


def to_json(comparison: Comparison) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    names = [field.name for field in dataclasses.fields(comparison) if field.name != "diagnoses"]
    return {"schema": SCHEMA} | {name: plain(getattr(comparison, name)) for name in names}


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
