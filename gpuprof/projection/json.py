"""A Projection as `gpuprof.projection/1`; `schema/projection-1.json` is the published JSON Schema.

What cannot be known is null; NaN and infinity never appear.
"""

from __future__ import annotations

import dataclasses
import json
import math
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from gpuprof.projection.projection import SCHEMA, Projection

SCHEMA_FILE = Path(__file__).with_name("schema") / "projection-1.json"


def dumps(projection: Projection, indent: int | None = 2) -> str:
    """The JSON text, in ASCII."""
    return json.dumps(to_json(projection), indent=indent, ensure_ascii=True, allow_nan=False)


def to_json(projection: Projection) -> dict[str, Any]:
    """Plain dicts, lists, strings and numbers that the schema accepts."""
    return {"schema": SCHEMA, **_plain(projection)}


def schema() -> dict[str, Any]:
    """The JSON Schema that every output validates against."""
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


def _plain(value: Any) -> Any:
    """The value as JSON knows it; times are whole nanoseconds."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    if dataclasses.is_dataclass(value):
        return {field.name: _field(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    raise TypeError(f"a Projection holds no {type(value).__name__}")


def _field(name: str, value: Any) -> Any:
    plain = _plain(value)
    return _whole(plain) if name.endswith("_ns") else plain


def _whole(plain: Any) -> Any:
    if isinstance(plain, dict):
        return {key: _whole(number) for key, number in plain.items()}
    return None if plain is None else round(plain)
