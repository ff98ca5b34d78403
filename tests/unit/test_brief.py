"""`--json --brief` is valid and below 4 kB, whatever a recording holds."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
from helpers import make_diagnosis as made
from jsonschema import Draft202012Validator

from gpuprof.diagnosis.result.diagnosis import Diagnosis, GpuName, Issue, Quality
from gpuprof.diagnosis.result.finding_model import Finding
from gpuprof.diagnosis.written.brief import LARGEST_BYTES, dumps, schema
from gpuprof.value_range import Range


def read(diagnosis: Diagnosis) -> dict:
    text = dumps(diagnosis)
    assert len(text.encode()) <= LARGEST_BYTES and text.isascii()
    document = json.loads(text, parse_constant=pytest.fail)
    assert not list(Draft202012Validator(schema()).iter_errors(document))
    return document


def finding(number: int, text: str = "use it") -> Finding:
    step, speedup = Range(1e6, 2e6, 3e6), Range(1.1, 1.2, 1.3)
    return Finding(f"finding_{number}", f"Do {text}", "high", (), text, step, speedup)


def test_what_it_says_is_what_the_diagnosis_says():
    diagnosis = made.host_bound()
    document = read(diagnosis)
    assert document["verdict"]["bound"] == diagnosis.verdict.bound
    assert document["step_ns"] == diagnosis.step_ns
    assert [f["id"] for f in document["findings"]] == [f.id for f in diagnosis.findings]
    assert document["findings_left_out"] == 0
    if diagnosis.budget is not None:
        assert document["budget"]["mean_ns"] == diagnosis.budget.mean_ns


@pytest.mark.parametrize(
    "text", ["x" * 5000, "漢" * 5000, "\U0001f600" * 5000, "\x1b[31m" * 2000, '"\\' * 4000, "\ud800"]
)
def test_it_fits_whatever_the_names_are(text: str):
    d = made.host_bound()
    hostile = replace(
        d,
        source=replace(d.source, path=text),
        quality=Quality("degraded", tuple(Issue(f"i{i}", "warning", text or "x") for i in range(50))),
        environment=replace(d.environment, gpus=tuple(GpuName(i, text, None) for i in range(64))),
        verdict=replace(d.verdict, sentences=(text,)),
        findings=tuple(finding(i, text) for i in range(40)),
    )
    document = read(hostile)
    assert document["findings_left_out"] + len(document["findings"]) == 40
    assert document["findings"], "there is room for the first one at least"
    assert document["findings"][0]["id"] == "finding_0"


def test_short_texts_are_not_cut():
    document = read(replace(made.host_bound(), findings=(finding(0, "batch 1 → 8"),)))
    assert document["findings"][0]["fix"] == "batch 1 → 8"


@pytest.mark.parametrize("make", [made.timed, made.two_devices, made.no_steps, made.unusable, made.empty, made.hostile])
def test_every_kind_of_diagnosis_has_a_brief(make: Callable[[], Diagnosis]):
    document = read(make())
    assert document["quality"]["status"] == make().quality.status
