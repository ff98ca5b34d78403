"""What gpuprof writes as JSON: dataclasses as plain values, their text, and the published schemas in schema/.

A document is a dataclass with its schema's name (`gpuprof.trial/1`) and its fields as keys, in order. Unknown values
are null; NaN and infinity never appear.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("schema")


def schema(name: str) -> dict[str, Any]:
    """The published JSON Schema with a name such as `gpuprof.trial/1`. Raises FileNotFoundError if there is none."""
    return json.loads(path_of(name).read_text(encoding="utf-8"))


def path_of(name: str) -> Path:
    """Path of the schema with this name."""
    kind, _, version = name.removeprefix("gpuprof.").partition("/")
    return FOLDER / f"{kind}-{version}.json"


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of document that is its dataclass, field by field."""

    name: str
    """The schema's name."""
    whole_ns: bool = False
    """Whether numbers under a key that ends with `_ns` are rounded."""
    left_out: tuple[str, ...] = ()
    """Fields that are not written."""
    as_text: tuple[str, ...] = ()
    """Fields of whole numbers too large for a JavaScript number: they are written as text."""

    def to_json(self, value: Any) -> dict[str, Any]:
        """Plain dicts, lists, strings and numbers that the schema accepts."""
        instead = dict.fromkeys(self.left_out) | {name: str(getattr(value, name)) for name in self.as_text}
        found = document(self.name, value, whole_ns=self.whole_ns, **instead)
        return {key: one for key, one in found.items() if key not in self.left_out}

    def dumps(self, value: Any, indent: int | None = 2) -> str:
        """The JSON text, in ASCII."""
        return dumps(self.to_json(value), indent)

    def schema(self) -> dict[str, Any]:
        """The JSON Schema that every output validates against."""
        return schema(self.name)


def document(name: str, value: Any, *, whole_ns: bool = False, **instead: Any) -> dict[str, Any]:
    """The dataclass as a document of this schema; `instead`: plain values that replace fields.

    `whole_ns`: numbers under a key that ends with `_ns` are rounded.
    """
    fields = {
        field.name: instead[field.name]
        if field.name in instead
        else plain(getattr(value, field.name), whole_ns, field.name)
        for field in dataclasses.fields(value)
    }
    return {"schema": name, **fields}


def dumps(found: dict[str, Any], indent: int | None = 2) -> str:
    """The JSON text, in ASCII, so that any pipe and parser accepts it."""
    return json.dumps(found, indent=indent, ensure_ascii=True, allow_nan=False)


def plain(value: Any, whole_ns: bool = False, key: str = "") -> Any:
    """The value as plain JSON types; numbers may be numpy's. `key`: its key, for `whole_ns`, which also applies to
    nested values: the ends of an interval of nanoseconds are nanoseconds."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _encodable(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        if not math.isfinite(value):
            return None
        return round(value) if whole_ns and key.endswith("_ns") else float(value)
    below = key if key.endswith("_ns") else ""
    if dataclasses.is_dataclass(value):
        return {f.name: plain(getattr(value, f.name), whole_ns, below or f.name) for f in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {_encodable(str(name)): plain(item, whole_ns, below or str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, whole_ns, key) for item in value]
    raise TypeError(f"JSON holds no {type(value).__name__}")


def _encodable(text: str) -> str:
    """Text that can be encoded as UTF-8: a lone surrogate becomes U+FFFD, a pair its character."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
