"""Armed jobs as `gpuprof.jobs/1`. `schema/jobs-1.json` is the JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpuprof.attach.jobs import Job

SCHEMA = "gpuprof.jobs/1"
_KEYS = (
    "pid", "name", "job", "rank", "world_size", "step", "total", "step_ns", "since_ns", "state", "folder", "stage"
)  # fmt: skip


def dumps(jobs: Sequence[Job]) -> str:
    """The document as text."""
    found = {"schema": SCHEMA, "jobs": [{key: getattr(one, key) for key in _KEYS} for one in jobs]}
    return json.dumps(found, indent=2, allow_nan=False)


def schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return json.loads(Path(__file__).with_name("schema").joinpath("jobs-1.json").read_text(encoding="utf-8"))
