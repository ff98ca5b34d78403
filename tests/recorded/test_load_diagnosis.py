"""A diagnosis is plain data: for every recording, what is read back from its JSON equals what was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from helpers.diagnosed import diagnosed
from helpers.make_diagnosis import empty, host_bound, no_steps, timed, two_devices, unusable
from helpers.paths import ROOT
from helpers.quick import OF_EACH_KIND, few
from helpers.valid_json import is_valid

import gpuprof
from benchmarks.same_json import recordings
from gpuprof.diagnosis.written.brief import dumps as brief
from gpuprof.diagnosis.written.diagnosis_json import dumps, to_json
from gpuprof.report.markdown import diagnosis as markdown
from gpuprof.report.terminal.terminal import plain

OWN = dict(recordings(None))
QUICK = (
    *(f"scenarios/{name}/recording" for name in OF_EACH_KIND),
    "tests/tiny_lora_dataloader.json.gz", "tests/nsys/graphs/node.sqlite.gz", "tests/vision/batch_norm.json.gz",
    "tests/hosts/small_batch",
)  # fmt: skip
"""One of each kind of scenario, and one of each other source."""
OLD = ROOT / "tests" / "data" / "diagnoses" / "tiny_lora.0.2.0.json"


@pytest.mark.parametrize("path", few([pytest.param(path, id=name) for name, path in OWN.items()], QUICK))
def test_a_diagnosis_is_given_back(path: Path):
    made = diagnosed(path)
    text = dumps(made)
    back = gpuprof.load_diagnosis(text)
    assert back == made
    assert dumps(back) == text
    assert plain(back, 100) == plain(made, 100)
    assert markdown(back, 5) == markdown(made, 5)
    assert brief(back) == brief(made)


@pytest.mark.parametrize("make", [host_bound, timed, two_devices, no_steps, unusable, empty])
def test_made_ones_are_given_back(make, tmp_path: Path):
    made = make()
    (tmp_path / "diagnosis.json").write_text(dumps(made))
    assert gpuprof.load_diagnosis(tmp_path / "diagnosis.json") == made
    assert gpuprof.load_diagnosis(to_json(made)) == made


def test_one_of_version_0_2_is_read():
    document = json.loads(OLD.read_text())
    found = gpuprof.load_diagnosis(OLD)
    assert (found.verdict.bound, found.verdict.cause) == ("host", "launch")
    assert [one.id for one in found.findings] == [one["id"] for one in document["findings"]]
    assert "HOST-BOUND" in plain(found, 100)
    assert is_valid(found)


def test_what_needs_events_says_that_there_are_none():
    back = gpuprof.load_diagnosis(dumps(diagnosed(ROOT / "tests" / "data" / "runs" / "tiny_lora")))
    assert back.folder is None and back.timed is None
    for needs in (
        lambda: back.tables,
        lambda: gpuprof.project(back, ["B200"]),
        lambda: gpuprof.compare(back, back),
    ):
        with pytest.raises(gpuprof.GpuprofError, match="loaded from JSON, which holds no events"):
            needs()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "not JSON"),
        ("{}", "has no schema"),
        ('{"schema": "gpuprof.comparison/1"}', "is of 'gpuprof.comparison/1', not of gpuprof.diagnosis/1"),
        ('{"schema": "gpuprof.diagnosis/1"}', r"diagnosis\.source is missing"),
        ("missing.json", r"missing\.json: cannot be read"),
        ("a\0b.json", "cannot be read"),
    ],
)
def test_what_is_no_diagnosis_is_one_line(text: str, says: str):
    with pytest.raises(gpuprof.GpuprofError, match=says) as error:
        gpuprof.load_diagnosis(text)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        (("verdict", "sentences"), 3, r"verdict\.sentences is no list"),
        (("steps", "each_ns"), "x", r"steps\.each_ns is no list"),
        (("steps", "each_ns", 0), 1.5, r"steps\.each_ns\[0\] is '1\.5', not of type int"),
        (("steps", "count"), True, r"steps\.count is 'True', not of type int"),
        (("window", "start_ns"), "soon", "window is no pair"),
        (("devices", 0), 1, r"devices\[0\] is no object"),
        (("environment", "versions"), [], r"environment\.versions is no object"),
    ],
)
def test_damage_is_named_with_its_place(path: tuple[Any, ...], value: Any, says: str):
    document = json.loads(dumps(host_bound()))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(gpuprof.GpuprofError, match=says):
        gpuprof.load_diagnosis(document)


def test_keys_of_a_newer_version_are_passed_over():
    document = json.loads(dumps(host_bound()))
    document["more"] = document["verdict"]["more"] = {"a": [1]}
    assert gpuprof.load_diagnosis(document) == host_bound()
