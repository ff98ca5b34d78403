"""Armed jobs as `gpuprof.jobs/1`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuprof import documents
from gpuprof.attach.jobs import ArmedProcess

SCHEMA = "gpuprof.jobs/1"
_KEYS = (
    "pid", "name", "job", "rank", "world_size", "step", "total", "step_ns", "since_ns", "state", "folder", "stage"
)  # fmt: skip


def dumps(jobs: Sequence[ArmedProcess]) -> str:
    """The document as text."""
    rows = [{key: documents.plain(getattr(one, key)) for key in _KEYS} for one in jobs]
    return documents.dumps({"schema": SCHEMA, "jobs": rows})


def schema() -> dict[str, Any]:
    """The JSON Schema of the document."""
    return documents.schema(SCHEMA)
