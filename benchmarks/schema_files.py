"""The published JSON Schemas, gpuprof/schema/*.json, written from the dataclasses that are written as JSON.

    python -m benchmarks.schema_files [--check]

Types give types, bounds (gpuprof/bounds.py) give bounds, and the text below a field describes it: None is null there.
Every key is always written, and no others are. Where `to_json` writes something differently from its dataclass,
DOCUMENTS says so. `brief`, `jobs` and `hang` are made of plain dicts, and `run` by the standard library inside the
training: these four are kept by hand. The types that read a run (tracefile/run_folder) are not a source for its schema:
they have fewer than half of its keys, and accept more than is written; tests/unit/test_run_schema.py compares the two.
--check writes nothing and exits with 1 where a file differs.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import importlib
import inspect
import itertools
import json
import re
import sys
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from gpuprof import documents
from gpuprof.bounds import Items, NotEmpty, OneOf, Whole, Within
from gpuprof.diagnosis.comparison import brief
from gpuprof.timeline.unit import ITERATION, REQUEST, STEP, TOKEN, Unit

TEXT = {"type": "string"}
WHOLE = {"type": "string", "pattern": "^-?[0-9]+$"}
"""A whole number as text: more than a JavaScript number holds exactly."""


@dataclass(frozen=True)
class Document:
    """A kind of document: its dataclass as `module:Class`, and what is written in another way."""

    name: str
    root: str
    text: str
    instead: Mapping[str, Any] = field(default_factory=dict)
    """`Class.field` → its schema; None: the field is not written. `Class.+`, `Class.optional`: keys that it lacks."""
    fractions: bool = False
    """Whether nanoseconds may have a fraction, where their type is float."""
    rules: Mapping[str, Any] = field(default_factory=dict)
    """Rules between keys."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    stale = 0
    for name, text in texts().items():
        path = documents.path_of(name)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            stale += 1
            print(f"{path} is not as the dataclasses say" if check else f"wrote {path}")
            if not check:
                path.write_text(text, encoding="utf-8")
    return 1 if check and stale else 0


def texts() -> dict[str, str]:
    """Name of each kind of document → the text of its schema file."""
    made = {kind.name: schema_of(kind) for kind in DOCUMENTS}
    made[brief.SCHEMA] = brief.schema_of(made["gpuprof.comparison/1"])
    return {name: json.dumps(one, indent=1, ensure_ascii=False) + "\n" for name, one in made.items()}


def schema_of(kind: Document) -> dict[str, Any]:
    """The JSON Schema of a kind of document."""
    made = _Made(kind)
    module, _, name = kind.root.partition(":")
    root = made.of_class(getattr(importlib.import_module(module), name))
    short, _, version = kind.name.removeprefix("gpuprof.").partition("/")
    properties = {"schema": {"const": kind.name}, **root["properties"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"urn:gpuprof:{short}:{version}",
        "title": kind.name,
        "description": kind.text,
        "type": "object",
        "additionalProperties": False,
        "required": ["schema", *root["required"]],
        "properties": properties,
        **kind.rules,
        "$defs": dict(sorted(made.classes.items())),
    }


class _Made:
    """Schemas of the dataclasses that a document holds."""

    def __init__(self, kind: Document) -> None:
        self.kind = kind
        self.classes: dict[str, Any] = {}
        self._names: dict[tuple[type, str], str] = {}

    def of_class(self, made: type, whole: str = "") -> dict[str, Any]:
        """An object with the keys of the dataclass. whole: of what its numbers are a whole number, as those of an
        interval: `ns`, or `whole` for anything; empty: as their types say."""
        texts, hints = _texts(made), _hints(made)
        properties: dict[str, Any] = {}
        for one in dataclasses.fields(made):
            key = f"{made.__name__}.{one.name}"
            if key in self.kind.instead:
                found = self.kind.instead[key]
                if found is None:
                    continue
            else:
                found = self.of(hints[one.name], whole or ("ns" if _is_ns(one.name) else ""))
            text = texts.get(one.name)
            properties[one.name] = {"description": text, **found} if text else found
        added = f"{made.__name__}.+"
        properties = {**self.kind.instead.get(added, {}), **properties}
        optional = self.kind.instead.get(f"{made.__name__}.optional", {})
        described = {"description": words} if (words := _paragraph(made.__doc__)) else {}
        return {
            **described,
            "type": "object",
            "additionalProperties": False,
            "required": list(properties),
            "properties": {**properties, **optional},
        }

    def of(self, hint: Any, whole: str) -> dict[str, Any]:
        """The schema of a type. Raises TypeError for one that JSON does not hold."""
        origin, inside = typing.get_origin(hint), typing.get_args(hint)
        if hint is Any:
            return {}
        if origin is typing.Annotated:
            return _bounded(self.of(inside[0], "whole" if Whole() in inside[1:] else whole), inside[1:])
        if origin in (typing.Union, types.UnionType):
            return _or_null([self.of(one, whole) for one in inside if one is not type(None)], type(None) in inside)
        if origin is typing.Literal:
            return {"enum": list(inside)}
        if hint is Unit:
            return {"enum": [str(one) for one in (STEP, ITERATION, REQUEST, TOKEN)]}
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            return {"$ref": f"#/$defs/{self._named(hint, whole)}"}
        if origin is tuple and not (len(inside) == 2 and inside[1] is Ellipsis):
            items = [self.of(one, whole) for one in inside]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if origin is not None and issubclass(origin, Mapping):
            return {"type": "object", "additionalProperties": self.of(inside[1], whole)}
        if origin is not None:
            return {"type": "array", "items": self.of(inside[0], whole)}
        if hint in (int, float):
            is_whole = hint is int or whole == "whole" or (whole == "ns" and not self.kind.fractions)
            return {"type": "integer" if is_whole else "number", "minimum": 0}
        return {"type": {str: "string", bool: "boolean"}[hint]}

    def _named(self, made: type, whole: str) -> str:
        """The name under which the class stands among the definitions, where it is put if it is not there."""
        numbers = (int, float, int | None, float | None)
        whole = whole if all(hint in numbers for hint in _hints(made, plain=True).values()) else ""
        if (made, whole) not in self._names:
            name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", made.__name__.lstrip("_")).lower()
            name += f"_{whole}" if whole else ""
            if name in self.classes:
                name = f"{made.__module__.rpartition('.')[2]}_{name}"
            self._names[made, whole] = name
            self.classes[name] = {}
            self.classes[name] = self.of_class(made, whole)
        return self._names[made, whole]


def _is_ns(key: str) -> bool:
    return key == "ns" or key.endswith("_ns")


def _bounded(found: dict[str, Any], bounds: tuple[Any, ...]) -> dict[str, Any]:
    for one in bounds:
        if isinstance(one, Within):
            found = {key: value for key, value in found.items() if key != "minimum"}
            said = {"minimum": one.low, "maximum": one.high, "exclusiveMinimum": one.above}
            found |= {key: value for key, value in said.items() if value is not None}
        elif isinstance(one, Items):
            said = {"minItems": one.low, "maxItems": one.high}
            found = found | {key: value for key, value in said.items() if value is not None}
        elif isinstance(one, NotEmpty):
            found = {**found, "minLength": 1}
        elif isinstance(one, OneOf):
            found = {"enum": [*_constant(one.of), *one.values]}
    return found


def _or_null(alternatives: list[dict[str, Any]], null: bool) -> dict[str, Any]:
    if not null:
        return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}
    if len(alternatives) == 1:
        (only,) = alternatives
        if "enum" in only:
            return {**only, "enum": [*only["enum"], None]}
        if isinstance(only.get("type"), str) and only["type"] not in ("object", "array"):
            return {**only, "type": [only["type"], "null"]}
    return {"anyOf": [{"type": "null"}, *alternatives]}


def _constant(place: str) -> tuple[str, ...]:
    """The texts of `module:NAME`, a tuple, a mapping or a Literal; none of an empty text."""
    if not place:
        return ()
    module, _, name = place.partition(":")
    found = getattr(importlib.import_module(module), name)
    return typing.get_args(found) or tuple(found)


@cache
def _texts(made: type) -> dict[str, str]:
    """Field of a dataclass → the docstring below it, as one line."""
    tree = ast.parse(inspect.getsource(sys.modules[made.__module__]))
    body = next(one.body for one in ast.walk(tree) if isinstance(one, ast.ClassDef) and one.name == made.__name__)
    found = {}
    for one, below in itertools.pairwise(body):
        text = below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else None
        if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name) and isinstance(text, str):
            found[one.target.id] = _paragraph(text)
    return found


def _paragraph(text: str | None) -> str:
    """The first paragraph of a docstring as one line, in the words of JSON."""
    if not text or re.match(r"\w+\(", text):  # what `dataclass` writes where there is none
        return ""
    first = inspect.cleandoc(text).split("\n\n")[0]
    return re.sub(r"\bNone\b", "null", " ".join(first.split()))


def _hints(made: type, plain: bool = False) -> dict[str, Any]:
    """The types of the fields, also of those that the module imports for type checkers only; plain: without bounds."""
    module = sys.modules[made.__module__]
    names = {}
    for one in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(one, ast.If) and getattr(one.test, "id", "") == "TYPE_CHECKING":
            for line in one.body:
                if isinstance(line, ast.ImportFrom) and line.module:
                    for name in line.names:
                        names[name.asname or name.name] = getattr(importlib.import_module(line.module), name.name)
    return typing.get_type_hints(made, localns=names, include_extras=not plain)


DOCUMENTS = (
    Document(
        "gpuprof.diagnosis/1",
        "gpuprof.diagnosis.result.diagnosis:Diagnosis",
        "What gpuprof says about one recording. Times are whole nanoseconds; start_ns counts from window.start_ns, "
        "except in window itself. null: cannot be known from this recording.",
        instead={
            "Diagnosis._analysis": None,
            "Verdict.+": {
                "headline": {"description": "What takes the largest share of the mean step, in words.", **TEXT},
                "summary": {"description": "The sentences, one after the other.", **TEXT},
            },
            "AnalysedWindow.start_ns": WHOLE,
            "AnalysedWindow.end_ns": WHOLE,
            "ReportedDevice.series": None,
        },
        rules={
            "if": {"properties": {"quality": {"properties": {"status": {"const": "unusable"}}}}},
            "then": {"properties": {"verdict": {"properties": {key: {"type": "null"} for key in ("bound", "family")}}}},
        },
    ),
    Document(
        "gpuprof.comparison/1",
        "gpuprof.diagnosis.comparison.comparison:Comparison",
        "What gpuprof says about two recordings, A before and B after. Times are whole nanoseconds per step, counts "
        "are means per step; a difference is B − A. null: cannot be known from these recordings.",
        fractions=True,
        instead={
            "Comparison.diagnoses": None,
            "Comparison.optional": {
                "next_steps": {
                    "description": "Of the answers of `gpuprof mcp` only: what comes next, the usual way on first.",
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["why"],
                        "oneOf": [{"required": ["tool", "arguments"]}, {"required": ["do"]}],
                        "properties": {
                            "tool": {"description": "The tool to call.", **TEXT},
                            "arguments": {"description": "Its arguments.", "type": "object"},
                            "do": {
                                "description": "What no tool does: a change to the program, or a command for a shell.",
                                **TEXT,
                            },
                            "why": TEXT,
                        },
                    },
                },
                "cut": {
                    "description": "Of the answers of `gpuprof mcp` only: lists that lack rows.",
                    "type": "array",
                    "items": TEXT,
                },
            },
        },
    ),
    Document(
        "gpuprof.trial/1",
        "gpuprof.trial.trial:Trial",
        "What `gpuprof try` measured: fixes applied from outside to a user's own command, in fresh processes that "
        "took turns. Times are whole nanoseconds; null: cannot be known.",
    ),
    Document(
        "gpuprof.projection/1",
        "gpuprof.projection.projection:Projection",
        "What the recorded step would be on other GPUs. Times are whole nanoseconds, intervals hold eight of ten. "
        "null: cannot be known from this recording.",
    ),
    Document(
        "gpuprof.memory/1",
        "gpuprof.memory.memory_report:MemoryReport",
        "Who holds a GPU's memory at its peak. Sizes are bytes. At a peak the owners sum to reserved_bytes (to "
        "allocated_bytes where that is null; the owner 'unused' is what is reserved and not allocated), phases and "
        "lines + lines_rest_bytes sum to allocated_bytes. null: not known.",
    ),
    Document(
        "gpuprof.fit/1",
        "gpuprof.trial.fit:FitReport",
        "What `gpuprof fit` measured: peaks of memory of a few steps of a user's own command with different batches "
        "and lengths, and the peaks that other batches and lengths are predicted to have. Sizes are bytes, times "
        "whole nanoseconds; null: not known.",
    ),
    Document(
        "gpuprof.iterations/1",
        "gpuprof.diagnosis.iterations.logged_model:LoggedIterations",
        "The mean iteration of an RL post-training, as the logs of its framework have it. Times are nanoseconds. The "
        "ns of phases sum to mean_ns + overlap_ns exactly. null: not known.",
    ),
    Document(
        "gpuprof.with_arguments/1",
        "gpuprof.diagnosis.iterations.with_arguments:WithArguments",
        "The iteration of an RL post-training if its trainer's arguments had other values. Times are whole "
        "nanoseconds, intervals hold eight of ten.",
    ),
    Document(
        "gpuprof.roles/1",
        "gpuprof.diagnosis.roles.model:Roles",
        "Processes of an RL post-training on one timeline. Times are whole nanoseconds.",
        instead={"Roles.start_unix_ns": WHOLE},
    ),
)

if __name__ == "__main__":
    sys.exit(main())
