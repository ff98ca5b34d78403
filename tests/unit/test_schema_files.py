"""The published schemas match the dataclasses, and refuse what is not a document."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

from helpers.diagnosed import diagnosed
from helpers.paths import ROOT
from helpers.valid_json import document
from jsonschema import Draft202012Validator

from benchmarks.schema_files import texts
from gpuprof import documents

MUTANTS = 25
PARTS = ("source", "quality", "steps", "budget", "devices", "gaps", "verdict", "above_reach", "considered")
"""The parts of the document whose keys are those of dataclasses."""


def test_files_are_as_the_dataclasses_say() -> None:
    for name, text in texts().items():
        Draft202012Validator.check_schema(json.loads(text))
        assert documents.path_of(name).read_text(encoding="utf-8") == text, "python -m benchmarks.schema_files"


def test_a_missing_key_an_extra_one_and_a_wrong_type_are_refused() -> None:
    whole = document(diagnosed(ROOT / "scenarios" / "small_batch" / "recording"))
    validator = Draft202012Validator(documents.schema("gpuprof.diagnosis/1"))
    assert validator.is_valid(whole)
    places = [place for part in PARTS for place in _places(whole[part])]
    for holder, key in random.Random(0).sample(places, MUTANTS):
        kept = dict(holder)
        del holder[key]
        assert not validator.is_valid(whole), f"without {key}"
        holder["no such key"] = 1
        holder[key] = kept[key]
        assert not validator.is_valid(whole), f"with a key too many, next to {key}"
        del holder["no such key"]
        holder[key] = {"of": "no such type"}
        assert not validator.is_valid(whole), f"{key} of another type"
        holder[key] = kept[key]
    assert validator.is_valid(whole)


def _places(value: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Every object inside a document, with each of its keys."""
    for one in value if isinstance(value, list) else [value]:
        if isinstance(one, dict):
            yield from ((one, key) for key in one)
            for inner in one.values():
                yield from _places(inner)
