"""The few numbers of a comparison that a program or an agent decides by, as `gpuprof.comparison_brief/1` in 4 kB."""

from __future__ import annotations

from typing import Any

from gpuprof import documents

SCHEMA = "gpuprof.comparison_brief/1"
_SIDE = ("path", "quality", "bound", "cause", "gpu", "steps", "step_ns", "kernels", "launches", "syncs", "peak_bytes")
_ROWS = 6
_KERNEL_NAME = 80


def brief(document: dict[str, Any]) -> dict[str, Any]:
    """What a program decides by of a comparison's JSON: both steps, what changed and by how much; in about 4 kB.

    Terms, kernels and ops are the first few, which are the largest, without their phases.
    """
    kernels = document.get("kernels") or {}
    short: dict[str, Any] = {"schema": SCHEMA}
    short |= {key: document[key] for key in ("step", "work", "significance", "summary", "unexplained_ns")}
    short |= {side: {key: document[side][key] for key in _SIDE} for side in ("a", "b")}
    short["mechanisms"] = [
        {key: one[key] for key in ("id", "title", "text", "difference_ns", "share")}
        for one in document["mechanisms"][:_ROWS]
    ]
    short["terms"] = [
        {key: one[key] for key in ("kind", "name", "a_ns", "b_ns", "difference_ns")}
        for one in document["terms"][:_ROWS]
    ]
    short["kernels"] = [
        {
            "name": one["name"][:_KERNEL_NAME],
            "op": one["op"],
            "change": one["change"],
            "difference_ns": one["difference_ns"],
        }
        for one in kernels.get("rows", [])[:_ROWS]
    ]
    short["notes"] = [one["message"] for one in document["notes"][:_ROWS]]
    return short


def schema() -> dict[str, Any]:
    """The JSON Schema."""
    return documents.schema(SCHEMA)
