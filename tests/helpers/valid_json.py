"""The JSON of a diagnosis, compared with its schema."""

from __future__ import annotations

import json

import pytest
from jsonschema import Draft202012Validator

from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.written.diagnosis_json import dumps, schema

VALIDATOR = Draft202012Validator(schema())


def document(diagnosis: Diagnosis) -> dict:
    """The JSON of a diagnosis, which must be valid."""
    found = json.loads(dumps(diagnosis), parse_constant=pytest.fail)
    wrong = [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(found)]
    assert not wrong
    return found


def is_valid(diagnosis: Diagnosis) -> Diagnosis:
    """The diagnosis itself, once its JSON was found to be valid."""
    document(diagnosis)
    return diagnosis
