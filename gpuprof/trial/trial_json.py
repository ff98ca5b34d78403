"""A Trial as `gpuprof.trial/1`: the keys of the dataclasses; times are whole nanoseconds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpuprof import documents, runfile
from gpuprof.trial.trial import SCHEMA, Trial


def dumps(trial: Trial) -> str:
    """The JSON text, in ASCII."""
    return documents.dumps(to_json(trial))


def to_json(trial: Trial) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    return documents.document(SCHEMA, trial, whole_ns=True)


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return documents.schema(SCHEMA)


def keep(trial: Trial, folder: Path) -> Path:
    """Writes it into the run's folder, together with fixes that failed in earlier trials and were not tried again.
    Raises OSError."""
    path = folder / runfile.TRIAL
    found = to_json(trial)
    names = {fix["name"] for row in found["rows"] for fix in row["fixes"]}
    found["rows"] += [row for row in _failed(path) if row["fixes"][0]["name"] not in names]
    runfile.write_json(path, found)
    return path


def _failed(path: Path) -> list[dict[str, Any]]:
    """Rows of single fixes that failed in an earlier trial; empty if the file is damaged."""
    rows = (runfile.read_json(path) or {}).get("rows") if path.is_file() else None
    found = []
    for row in rows if isinstance(rows, list) else ():
        if not isinstance(row, dict) or row.get("status") != "failed":
            continue
        fixes = row.get("fixes")
        if isinstance(fixes, list) and len(fixes) == 1 and isinstance(fixes[0], dict) and "name" in fixes[0]:
            found.append(row)
    return found
