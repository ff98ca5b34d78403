"""One program recorded without and with a change: the difference is the one that was measured, and the fix is named."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median

import pytest
from helpers.compared import PAIRS, check_sums, compared
from helpers.paths import ROOT
from jsonschema import Draft202012Validator

from benchmarks import fixed_pairs
from gpuprof.diagnosis.comparison.comparison import DOCUMENT as COMPARISON
from scenarios.catalogue import scenarios

TWINS = [(str(one.before), str(one.after), one.finding) for one in fixed_pairs.recorded()]
"""Before, after, and the finding that advises the change."""
NAMES = [one.name for one in fixed_pairs.recorded()]
VALIDATOR = Draft202012Validator(COMPARISON.schema())

OUTSIDE = {ROOT / "scenarios" / name / "recording" for name in ("padding",)}
"""The step of padding's packing is predicted 7 % too long from the trace alone."""


@pytest.mark.parametrize(("a", "b", "mechanism"), TWINS, ids=NAMES)
def test_the_fix_of_a_twin_comes_first(a, b, mechanism):
    c = compared(a, b)
    check_sums(c)
    assert c.step.outcome == "faster"
    assert c.mechanisms[0].id == mechanism
    assert c.mechanisms[0].found == "a"
    result = c.mechanisms[0].predictions
    assert [p.by for p in result] == ["a"] and result[0].inside == (Path(a) not in OUTSIDE)
    assert result[0].measured_ns == c.step.b_ns
    assert [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(json.loads(COMPARISON.dumps(c)))] == []


def test_every_scenario_with_a_recorded_fix_is_a_twin():
    fixed = {one.name for one in scenarios() if one.fixed and one.fixes[0].gains}
    assert len(fixed) >= 5
    assert {one.scenario.name for one in fixed_pairs.recorded() if one.scenario} == fixed


def test_what_measured_as_no_fix_is_no_difference():
    """FSDP by layers: less of the communication is exposed, and all that comes back as longer kernels."""
    folder = ROOT / "scenarios" / "fsdp_exposed"
    c = compared(str(folder / "recording"), str(folder / "fixed"))
    check_sums(c)
    assert c.step.outcome == "same"
    ns = {one.id: one.difference_ns for one in c.mechanisms}
    hidden = ns.pop("exposed_communication")
    assert hidden < -3e6
    assert sum(ns.values()) > -0.7 * hidden


@pytest.mark.parametrize("one", [one for one in fixed_pairs.recorded() if one.scenario], ids=lambda one: one.name)
def test_the_difference_of_a_twin_is_the_one_that_was_measured(one):
    """In processes of their own, without a profiler; where the work differs, by the time that each token takes."""
    assert one.scenario is not None
    c = compared(str(one.before), str(one.after))
    fix = one.scenario.fixes[0]
    before, after = (median(one.scenario.values_ms(name)) for name in ("", fix.name))
    assert c.step.speedup == pytest.approx(before / after * fix.work, rel=0.12)


@pytest.mark.parametrize(("a", "b", "mechanism"), TWINS, ids=NAMES)
def test_a_fix_taken_back_is_named_too(a, b, mechanism):
    forth, back = compared(a, b), compared(b, a)
    check_sums(back)
    assert back.step.outcome == "slower" and back.step.difference_ns == -forth.step.difference_ns
    assert back.mechanisms[0].id == mechanism and back.mechanisms[0].found == "b"
    assert [p.by for p in back.mechanisms[0].predictions] == ["b"]


@pytest.mark.parametrize(
    ("name", "findings"),
    [
        ("four_bit", {"dequantize", "adapter_casts"}),
        ("input_tokenize", {"input_workers"}),
        ("combined", {"recompute", "optimizer"}),
        ("moe_big", {"expert_loop"}),
    ],
)
def test_the_fix_of_a_twin_that_was_replayed_comes_first(name, findings):
    found = list(fixed_pairs.twins(PAIRS / f"{name}.json.gz"))
    assert {twin.finding for twin in found} == findings
    for twin in found:
        check_sums(twin.comparison)
        # Two steps that differ by less than noise have no outcome to explain.
        assert twin.right or twin.comparison.summary.startswith("No difference beyond"), (
            f"{twin.finding}: {twin.comparison.summary}"
        )
