"""The JSON of a diagnosis follows its schema, for any content."""

from __future__ import annotations

import copy
import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from helpers.make_diagnosis import ALL, HOSTILE, host_bound, hostile, unusable
from helpers.present import present
from jsonschema import Draft202012Validator

from gpuprof.diagnosis.written.diagnosis_json import dumps, schema, to_json

VALIDATOR = Draft202012Validator(schema())


def errors(document: dict) -> list[str]:
    return [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(document)]


@pytest.mark.parametrize("make", ALL.values(), ids=ALL)
def test_every_diagnosis_is_valid(make):
    text = dumps(make())
    assert errors(json.loads(text)) == []
    assert text.isascii()
    assert orjson.loads(text) == json.loads(text), "a strict parser must agree"


def test_the_schema_is_one():
    Draft202012Validator.check_schema(schema())


def test_keys_stand_in_the_order_of_reading():
    keys = list(to_json(host_bound()))
    assert keys[:4] == ["schema", "source", "quality", "environment"]
    assert keys[-5:] == ["combined", "worth_trying", "considered", "above_reach", "counters"]
    assert set(keys) == set(schema()["properties"])


def test_the_window_is_exact():
    window = to_json(host_bound())["window"]
    assert window["start_ns"] == "4390147319469541"
    assert int(window["end_ns"]) - int(window["start_ns"]) == 672_000_000


def test_what_is_not_known_is_null():
    document = to_json(unusable())
    assert document["verdict"]["bound"] is None
    for key in ("run", "gaps", "kernels", "roofline", "sensitivities", "ranks", "devices_estimated"):
        assert document[key] is None
    assert document["replay"] == {"error": None, "shown": False, "reason": "", "steps": None}
    assert document["findings"] == []


def test_the_tables_are_no_part_of_it():
    assert "_tables" not in to_json(host_bound())


def test_numbers_of_numpy_and_nan():
    steps = present(host_bound().steps)
    device = replace(host_bound().devices[0], compute_ns=np.int64(7), cpu_bound_fraction=math.nan)
    diagnosis = host_bound(devices=(device,), steps=replace(steps, inflation=np.float64(math.inf)))
    document = json.loads(dumps(diagnosis))
    assert document["devices"][0]["compute_ns"] == 7
    assert document["devices"][0]["cpu_bound_fraction"] is None
    assert document["steps"]["inflation"] is None
    assert errors(document) == []


def test_half_a_surrogate_pair_becomes_the_replacement_character():
    document = to_json(hostile())
    assert document["kernels"]["top"][0]["name"] == (HOSTILE * 50).replace("\ud800", "\ufffd")
    assert document["gaps"]["largest"][0]["op"].startswith("evil\x1b[31m"), "everything else stays what it was"
    whole = host_bound(verdict=replace(host_bound().verdict, sentences=("\ud83d\ude00",)))
    assert to_json(whole)["verdict"]["summary"] == "\U0001f600"


@pytest.mark.parametrize("path", ["", "devices.0", "kernels.top.0", "verdict", "steps", "gaps.largest.0"])
def test_the_schema_takes_no_key_more_and_none_less(path):
    document = to_json(host_bound())
    place: Any = document
    for key in path.split(".") if path else ():
        place = place[int(key)] if key.isdigit() else place[key]
    more = copy.deepcopy(document)
    assert not errors(more)
    first = next(iter(place))
    kept = place.pop(first)
    assert errors(document), f"{path}.{first} may be missing"
    place[first] = kept
    place["extra"] = 1
    assert errors(document), f"{path} may hold anything"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("quality", "status"), "fine"),
        (("verdict", "bound"), "cpu"),
        (("steps", "source"), "guess"),
        (("window", "start_ns"), 12),
        (("gaps", "total_ns"), 1.5),
        (("gaps", "total_ns"), -1),
        (("devices", 0, "cpu_bound_fraction"), 87),
    ],
)
def test_the_schema_refuses(path, value):
    document = to_json(host_bound())
    place: Any = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert errors(document)


def test_an_unusable_recording_has_no_verdict():
    document = to_json(unusable())
    document["verdict"]["bound"] = "host"
    assert errors(document)
