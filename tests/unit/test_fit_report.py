"""The JSON of `gpuprof fit` and its schema."""

from __future__ import annotations

import copy
import json

import pytest
from jsonschema import Draft202012Validator

from gpuprof.trial.fit import DOCUMENT as FIT
from gpuprof.trial.fit import FitOnGpu, FitReport, Point, model_of, table

MIB = 2**20
VALIDATOR = Draft202012Validator(FIT.schema())


def report() -> FitReport:
    points = (Point(4, 128, 100 * MIB, 5_000_000), Point(8, 128, 180 * MIB, None), Point(4, 256, 190 * MIB, None))
    model = model_of(points)
    fits = FitOnGpu("L40S", 40_000 * MIB, tuple((n, *model.largest_batch(40_000 * MIB, n)) for n in (128, 256)))
    return FitReport(
        command=("python", "train.py"), measured=points, of="tensors", changed={"batch": "--batch_size"}, tokens=True,
        cells=table(model, points, (), ()), gpus=(fits,), unknown=("what a GPU adds",), fake=True,
    )  # fmt: skip


def document() -> dict:
    return json.loads(FIT.dumps(report()))


def test_the_schema_is_one_and_takes_what_is_written():
    Draft202012Validator.check_schema(FIT.schema())
    assert not list(VALIDATOR.iter_errors(document()))
    assert list(document()) == list(FIT.schema()["properties"])


@pytest.mark.parametrize("path", [(), ("measured", 0), ("cells", 0), ("gpus", 0)])
def test_the_schema_takes_no_key_more_and_none_less(path: tuple):
    whole = document()
    place = whole
    for key in path:
        place = place[key]
    for name in list(place):
        kept = copy.deepcopy(place[name])
        del place[name]
        assert not VALIDATOR.is_valid(whole), f"{name} may be missing"
        place[name] = kept
    place["extra"] = 1
    assert not VALIDATOR.is_valid(whole)


@pytest.mark.parametrize(
    ("path", "value"),
    [(("of",), "cpu"), (("cells", 0, "peak_bytes"), 1.5), (("gpus", 0, "largest", 0), [128, 1]), (("measured",), [])],
)
def test_the_schema_refuses(path: tuple, value: object):
    whole = document()
    place = whole
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    assert not VALIDATOR.is_valid(whole)
