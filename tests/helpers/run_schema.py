"""Validation of run folders against the published JSON Schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from gpuprof import runfile
from gpuprof.record.files.written import FILE as WRITTEN
from helpers.paths import ROOT

SCHEMA = json.loads((ROOT / "gpuprof" / "record" / "schema" / "run-1.json").read_text(encoding="utf-8"))


def validator(name: str) -> Draft202012Validator:
    """The validator for one kind of document."""
    return Draft202012Validator({"$defs": SCHEMA["$defs"], "$ref": f"#/$defs/{name}"})


def errors(name: str, document: Any) -> list[str]:
    return [f"{name} {error.json_path}: {error.message}" for error in validator(name).iter_errors(document)]


def errors_in(folder: Path) -> list[str]:
    """Errors in all documents of a run folder."""
    found = errors("manifest", json.loads((folder / runfile.MANIFEST).read_text()))
    for path in folder.glob("rank*.json"):
        document = json.loads(path.read_text())
        found += errors("rank", document)
        found += [] if Draft202012Validator(SCHEMA).is_valid(document) else [f"{path.name} is not one of the documents"]
    for path in folder.glob("samples.rank*.json"):
        found += errors("samples", json.loads(path.read_text()))
    for path in (folder / runfile.NODES).glob("no_digest.rank*.json"):
        found += errors("no_digest", json.loads(path.read_text()))
    for path in (folder / runfile.NODES).glob(runfile.EXCHANGE):
        found += errors("exchange", json.loads(path.read_text()))
    for path in runfile.phase_files_in(folder):
        lines = path.read_text().splitlines()
        found += errors("phases_head", json.loads(lines[0]))
        for line in lines[1:]:
            found += errors("phases_span" if "phase" in json.loads(line) else "phases_head", json.loads(line))
    for file, name in ((runfile.STEPS, "step"), (runfile.TELEMETRY, "telemetry"), (WRITTEN, "written")):
        if (folder / file).exists():
            for line in (folder / file).read_text().splitlines():
                found += errors(name, json.loads(line))
    return found
