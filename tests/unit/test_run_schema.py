"""The JSON of a run folder: its schema, compared with the code."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from helpers.run_schema import SCHEMA, errors
from jsonschema import Draft202012Validator

from gpuprof import runfile
from gpuprof.record.options import DEFAULTS
from gpuprof.record.phase_names import TIMED, TRAINING


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
