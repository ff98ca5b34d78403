"""A FitReport as `gpuprof.fit/1`: the keys of the dataclasses. `schema/fit-1.json` is the published JSON Schema."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

from gpuprof.trial.fit import SCHEMA, FitReport

SCHEMA_FILE = Path(__file__).with_name("schema") / "fit-1.json"


def dumps(report: FitReport) -> str:
    """The JSON text, in ASCII."""
    return json.dumps(to_json(report), indent=2, ensure_ascii=True, allow_nan=False)


def to_json(report: FitReport) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    return {"schema": SCHEMA, **dataclasses.asdict(report)}


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
