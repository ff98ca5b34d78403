"""The few numbers of a comparison that a program or agent needs for decisions: `gpuprof.comparison_brief/1`, 4 kB."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuprof import documents
from gpuprof.units import Characters, Convention, Rows

SCHEMA = "gpuprof.comparison_brief/1"
_SIDE = ("path", "quality", "bound", "cause", "gpu", "steps", "step_ns", "kernels", "launches", "syncs", "peak_bytes")
_WHOLE = ("step", "work", "significance", "summary", "unexplained_ns")
_LISTS = {
    "mechanisms": (
        "mechanism",
        ("id", "title", "text", "difference_ns", "share"),
        "The largest parts of the difference.",
    ),
    "terms": ("term", ("kind", "name", "a_ns", "b_ns", "difference_ns"), "The largest."),
    "kernels": ("kernel_difference", ("name", "op", "change", "difference_ns"), "Whose difference is largest."),
}
"""Key of the brief → (its rows' name in the comparison's schema, their keys, what they are)."""
_WORDS = ("side", "step", "compared_work", "significance")
_MOST_ROWS: Convention[Rows] = 6
_LONGEST_KERNEL_NAME: Convention[Characters] = 80


def brief(document: dict[str, Any]) -> dict[str, Any]:
    """The short form of a comparison's JSON: both steps, what changed and by how much; about 4 kB.

    Only the first and largest terms, kernels and ops are kept, without their phases.
    """
    kernels = document.get("kernels") or {}
    short: dict[str, Any] = {"schema": SCHEMA}
    short |= {key: document[key] for key in _WHOLE}
    short |= {side: {key: document[side][key] for key in _SIDE} for side in ("a", "b")}
    rows = {"mechanisms": document["mechanisms"], "terms": document["terms"], "kernels": kernels.get("rows", [])}
    for name, (_, keys, _) in _LISTS.items():
        short[name] = [{key: one[key] for key in keys} for one in rows[name][:_MOST_ROWS]]
    for one in short["kernels"]:
        one["name"] = one["name"][:_LONGEST_KERNEL_NAME]
    short["notes"] = [one["message"] for one in document["notes"][:_MOST_ROWS]]
    return short


def schema() -> dict[str, Any]:
    """The JSON Schema."""
    return documents.schema(SCHEMA)


def schema_of(comparison: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of the brief, made of parts of the comparison's schema."""
    whole, words = comparison["properties"], comparison["$defs"]
    side = {"$ref": "#/$defs/side"}
    properties = {
        "schema": {"const": SCHEMA},
        **{key: whole[key] for key in _WHOLE},
        "a": side,
        "b": side,
        **{
            key: {"description": text, "type": "array", "maxItems": _MOST_ROWS, "items": _part(words[name], keys)}
            for key, (name, keys, text) in _LISTS.items()
        },
        "notes": {
            "description": "What to know of the comparison.",
            "type": "array",
            "maxItems": _MOST_ROWS,
            "items": {"type": "string"},
        },
    }
    kept = {name: _part(words["side"], _SIDE) if name == "side" else words[name] for name in _WORDS}
    return {
        "$schema": comparison["$schema"],
        "$id": "urn:gpuprof:comparison_brief:1",
        "title": SCHEMA,
        "description": "What `gpuprof mcp` answers of two recordings unless details are asked for: a part of"
        f" gpuprof.comparison/1. {comparison['description']}",
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": {**properties, "next_steps": whole["next_steps"]},
        "$defs": kept,
    }


def _part(whole: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """An object's schema with some of its keys."""
    properties = {key: whole["properties"][key] for key in keys}
    return {"type": "object", "additionalProperties": False, "required": list(keys), "properties": properties}
