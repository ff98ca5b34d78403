"""The JSON of a run folder: its schema, compared with the code."""

from __future__ import annotations

import dataclasses
import re
import time
import types
import typing
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from helpers.run_schema import SCHEMA, errors
from jsonschema import Draft202012Validator

from gpuprof import runfile
from gpuprof.record.base.options import DEFAULTS
from gpuprof.record.phases.phase_names import TIMED, TRAINING
from gpuprof.tracefile.run_folder import phase_logs, run
from gpuprof.tracefile.run_folder.phased_steps import PhasedStep
from gpuprof.tracefile.run_folder.telemetry import Sample
from gpuprof.tracefile.run_folder.untrusted import Key


def objects(schema: Any, path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of a schema that describes the keys of an object."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield path, schema
        for key, value in schema.items():
            yield from objects(value, f"{path}.{key}")
    elif isinstance(schema, list):
        for i, value in enumerate(schema):
            yield from objects(value, f"{path}[{i}]")


# -- the schema by itself


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


def test_it_is_strict_and_describes_every_key():
    assert len(list(objects(SCHEMA))) > 12
    for path, schema in objects(SCHEMA):
        assert schema["additionalProperties"] is False, path
        assert set(schema["required"]) <= set(schema["properties"]), path
        for key, value in schema["properties"].items():
            described = value if "description" in value else SCHEMA["$defs"][value["$ref"].rpartition("/")[2]]
            assert described.get("description"), f"{path}: {key} is not described"


def test_its_lists_are_those_of_the_code():
    definitions = SCHEMA["$defs"]
    assert tuple(definitions["stage"]["enum"]) == runfile.STAGES
    assert tuple(definitions["window"]["enum"]) == runfile.WINDOWS
    assert set(definitions["options"]["properties"]) == set(DEFAULTS)
    assert definitions["manifest"]["properties"]["schema"]["const"] == runfile.SCHEMA


def test_a_phase_that_is_timed_can_be_kept():
    phases = SCHEMA["$defs"]["phases_span"]["properties"]["phase"]["enum"]
    assert set(phases) == {*TIMED, TRAINING}


def test_the_words_about_the_files_name_every_key():
    """`runfile` says the same in fewer words; a key that only one of them has is a mistake."""
    words = set(re.findall(r"\w+", runfile.__doc__ or ""))
    for name in ("manifest", "rank", "step", "samples", "telemetry", "written", "phases_head", "phases_span"):
        assert set(SCHEMA["$defs"][name]["properties"]) <= words, name


READ = {
    "manifest": run._Manifest, "rank": run.Rank, "step": run._Line, "telemetry": Sample,
    "phases_head": phase_logs._Head, "phases_span": phase_logs._Span,
}  # fmt: skip
"""What is read of a document → its type."""
JSON_TYPES = {
    int: "integer",
    float: "number",
    str: "string",
    bool: "boolean",
    tuple: "array",
    list: "array",
    dict: "object",
}


@pytest.mark.parametrize(("name", "kind"), [*READ.items(), ("step", PhasedStep)])
def test_what_is_read_is_written_so(name: str, kind: Any):
    """Every key that a reader looks for is one of the schema, and may have the type that the reader takes."""
    # The same type has a function elsewhere.
    assert set(unlike(kind, SCHEMA["$defs"][name])) <= {"compiler.functions[].failed_at.function"}


def test_a_reader_of_other_keys_or_types_is_noticed():
    renamed = msgspec.defstruct(
        "Renamed", [("unix", int), ("ns", list[int]), ("stage", int), ("phases_ns", dict[str, str])]
    )
    assert list(unlike(renamed, SCHEMA["$defs"]["step"])) == ["unix", "ns", "stage", "phases_ns.*"]


def unlike(kind: Any, *schemas: Any, at: str = "") -> Iterator[str]:
    """Fields of a type whose keys the schemas of an object lack, or that are of other types there."""
    for name, hint in typing.get_type_hints(kind, include_extras=True).items():
        notes = getattr(hint, "__metadata__", ())
        found = list(schemas)
        for key in next((note.names for note in notes if isinstance(note, Key)), (name,)):
            found = [one.get("properties", {}).get(key, one.get("additionalProperties")) for one in within(found)]
            found = [one for one in found if one]
        if not found:
            yield f"{at}{name}"
        elif not any(isinstance(note, types.FunctionType) for note in notes):  # which is given whatever is there
            yield from unlike_value(hint, found, f"{at}{name}")


def unlike_value(hint: Any, schemas: list[Any], at: str) -> Iterator[str]:
    schemas = list(within(schemas))
    base = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    origin, inside = typing.get_origin(base), typing.get_args(base)
    if origin in (typing.Union, types.UnionType):
        for one in inside:
            if one is not type(None):
                yield from unlike_value(one, schemas, at)
    elif dataclasses.is_dataclass(base) or (isinstance(base, type) and issubclass(base, msgspec.Struct)):
        yield from unlike(base, *schemas, at=f"{at}.")
    elif base is not Any:
        wanted = JSON_TYPES[type(inside[0]) if origin is typing.Literal else origin or base]
        known = [one for one in schemas if wanted in kinds_of(one)]
        if not known:
            yield at
        elif origin in (tuple, list):
            yield from unlike_value(inside[0], [one["items"] for one in known], f"{at}[]")
        elif origin is dict and inside[1] is not Any:
            values = [
                each for one in known for each in (*one.get("properties", {}).values(), one["additionalProperties"])
            ]
            yield from unlike_value(inside[1], [one for one in values if isinstance(one, dict)], f"{at}.*")


def within(schemas: list[Any]) -> Iterator[dict[str, Any]]:
    """Schemas and their alternatives, without references."""
    for one in schemas:
        alternatives = [each for key in ("oneOf", "anyOf") for each in one.get(key, ())]
        if "$ref" in one:
            alternatives.append(SCHEMA["$defs"][one["$ref"].rpartition("/")[2]])
        yield from within(alternatives) if alternatives else [one]


def kinds_of(schema: dict[str, Any]) -> set[str]:
    """Types of JSON that a schema allows; a number may be whole, and whole numbers are numbers."""
    given = schema.get("type", [])
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    found = {given} if isinstance(given, str) else {*given}
    found |= {"string" if isinstance(value, str) else "boolean" if isinstance(value, bool) else "" for value in values}
    return found | ({"number", "integer"} if found & {"number", "integer"} else set())


def test_a_sample_of_gpus():
    gpu = {
        "index": 3, "uuid": "GPU-aaaa", "power_w": 310.52, "limit_w": 700.0, "sm_mhz": 1980, "memory_mhz": 3201,
        "temperature_c": 41, "utilization": 0.97, "memory_utilization": 0.4, "used_bytes": 5 << 30,
        "throttle": ["sw_power_cap", "0x800"], "energy_j": 98765.43,
    }  # fmt: skip
    refused = dict.fromkeys(gpu) | {"uuid": "MIG-aaaa"}
    sample = {"unix_ns": time.time_ns(), "load1": 0.5, "cpu": 0.25, "gpus": [gpu, refused, gpu | {"throttle": []}]}
    assert errors("telemetry", sample) == []
    for wrong in ({"utilization": 97}, {"throttle": "none"}, {"uuid": None}, {"fan": 3}):
        assert errors("telemetry", sample | {"gpus": [gpu | wrong]}), wrong
