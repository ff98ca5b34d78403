"""A Trial as `gpuprof.trial/1`; `schema/trial-1.json` is the published JSON Schema. What cannot be known is null."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

from gpuprof import runfile
from gpuprof.trial.trial import SCHEMA, Trial

SCHEMA_FILE = Path(__file__).with_name("schema") / "trial-1.json"


def dumps(trial: Trial) -> str:
    """The JSON text, in ASCII."""
    return json.dumps(to_json(trial), indent=2, ensure_ascii=True, allow_nan=False)


def to_json(trial: Trial) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    return {"schema": SCHEMA, **_plain(trial)}


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def keep(trial: Trial, folder: Path) -> Path:
    """Writes it into the run's folder, with the fixes that failed there before and were not tried again. Raises
    OSError."""
    path = folder / runfile.TRIAL
    found = to_json(trial)
    names = {fix["name"] for row in found["rows"] for fix in row["fixes"]}
    found["rows"] += [row for row in _failed(path) if row["fixes"][0]["name"] not in names]
    runfile.write_json(path, found)
    return path


def _failed(path: Path) -> list[dict[str, Any]]:
    """Rows of an earlier trial in which a single fix failed; none of a damaged file."""
    rows = (runfile.read_json(path) or {}).get("rows") if path.is_file() else None
    found = []
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("status") != "failed":
            continue
        fixes = row.get("fixes")
        if isinstance(fixes, list) and len(fixes) == 1 and isinstance(fixes[0], dict) and "name" in fixes[0]:
            found.append(row)
    return found


def _plain(value: Any, name: str = "") -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return round(value) if name.endswith("_ns") else value
    if dataclasses.is_dataclass(value):
        # The ends of an interval of nanoseconds are nanoseconds.
        below = name if name.endswith("_ns") else ""
        return {
            field.name: _plain(getattr(value, field.name), below or field.name) for field in dataclasses.fields(value)
        }
    if isinstance(value, (list, tuple)):
        return [_plain(item, name) for item in value]
    raise TypeError(f"a Trial holds no {type(value).__name__}")
