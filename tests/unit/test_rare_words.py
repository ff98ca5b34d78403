"""What only some steps do, next to what lies above the reach of the usual step."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT

from gpuprof.diagnosis.mean_step.budget_model import Excess
from gpuprof.diagnosis.result.above_reach import AboveReach, Item
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.result.host_model import Host, HostFunction
from gpuprof.report.words.above_words import costs, lines
from gpuprof.report.words.rare_words import Rare, rare
from gpuprof.value_range import Range

MS = 1_000_000
RECORDING = ROOT / "scenarios" / "small_batch" / "recording"


def parts() -> tuple[Diagnosis, AboveReach, Item]:
    """A diagnosis with a ledger of one item of 10 ms and a mean step of 100 ms."""
    whole = diagnosed(RECORDING)
    assert whole.above_reach is not None and whole.budget is not None
    item = replace(whole.above_reach.largest[0], ns=10 * MS)
    found = replace(whole.above_reach, usual_ns=40 * MS, items=(item,))
    budget = replace(whole.budget, mean_ns=100 * MS, usual_ns=40 * MS, steps=50, excess=())
    return replace(whole, above_reach=found, budget=budget), found, item


def function(name: str, phase: str | None, ms: int) -> HostFunction:
    ns = Range((ms - 1) * MS, ms * MS, (ms + 1) * MS)
    return HostFunction(name, "a/b.py", 7, "own", None, phase, ns, 0, 90, None, None, None)


def with_excess(diagnosis: Diagnosis, *excess: Excess) -> Diagnosis:
    assert diagnosis.budget is not None
    return replace(diagnosis, budget=replace(diagnosis.budget, excess=excess))


def test_what_some_steps_add_comes_first_where_it_is_more_than_any_item():
    diagnosis, _, item = parts()
    found = with_excess(diagnosis, Excess("evaluation", 50 * MS, 5, every=10))
    first, second = costs(found)
    assert isinstance(first, Rare) and second == item
    assert first.ns == 50 * MS and first.gain is not None and first.gain.expected == pytest.approx(2)
    assert lines(found)[1].startswith("50 ms  ") and "evaluation, every 10 steps" in lines(found)[1]
    assert rare(replace(found, above_reach=None)) == (), "no ledger, no verdict"


def test_what_is_less_than_an_item_or_was_not_measured_is_not_said():
    diagnosis, ledger, item = parts()
    less = with_excess(diagnosis, Excess("save", 9 * MS, 5, every=10), Excess("evaluation", None, 0, every=500))
    assert costs(less) == (item,)
    small = replace(less, above_reach=replace(ledger, items=()))
    assert [one.ns for one in costs(with_excess(small, Excess("save", 1 * MS, 5)))] == []
    assert [one.ns for one in costs(small)] == [9 * MS]


def test_functions_outside_of_what_was_recorded_are_named_if_there_is_one_cause():
    diagnosis, _, _ = parts()
    usual, score, evaluate = function("step", "forward", 30), function("score", None, 4), function("evaluate", None, 40)
    host = Host(samples=200, steps=20, step_ns=100 * MS, unread=0, functions=(), workers=None)
    found = replace(diagnosis, host=replace(host, functions=(usual, score, evaluate)))
    (first,) = rare(with_excess(found, Excess("evaluation", 50 * MS, 5, every=10)))
    assert first.why == "80 % of it is in evaluate (b.py:7)", "score has less than a tenth"
    two = with_excess(found, Excess("evaluation", 50 * MS, 5), Excess("save", 20 * MS, 5))
    assert [one.why for one in rare(two)] == ["", ""], "which of the two calls it is not known"
    unplaced = replace(found, host=replace(host, functions=(evaluate,)))
    (alone,) = rare(with_excess(unplaced, Excess("evaluation", 50 * MS, 5)))
    assert alone.why == "", "samples are not located in the step"
