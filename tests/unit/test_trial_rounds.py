"""Which processes `gpuprof try` starts and when it stops, simulated on a machine whose steps are known."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import pytest
from helpers.present import present
from jsonschema import Draft202012Validator

from gpuprof.trial.fixes import FixToTry
from gpuprof.trial.run_trial import run_trial
from gpuprof.trial.starter import Outcome
from gpuprof.trial.trial import TimedProcess, Trial, TriedFix
from gpuprof.trial.trial_json import dumps, schema
from gpuprof.value_range import Range

STEP_MS, WALL_S = 100.0, 10.0
TF32, FUSED, WORKERS = TriedFix("tf32"), TriedFix("optimizer", "fused"), TriedFix("input_workers", "2")


class Machine:
    """Stands in for a Starter: each process takes WALL_S, and its step what its fixes leave, with some noise."""

    def __init__(self, gains: dict[TriedFix, float], noise: float = 0.005, **load: float) -> None:
        self.gains, self.noise, self.load, self.now_s = gains, noise, load, 0.0
        self.fails: dict[TriedFix, str] = {}
        self.together = 1.0
        self._draw = random.Random(1)

    def clock(self) -> float:
        return self.now_s

    def run(self, fixes: Sequence[TriedFix], *_: object) -> Outcome:
        self.now_s += WALL_S
        step = STEP_MS * self._draw.lognormvariate(0, self.noise) * (self.together if len(fixes) > 1 else 1)
        for fix in fixes:
            step /= self.gains[fix]
        error = next((self.fails[fix] for fix in fixes if fix in self.fails), None)
        name = " + ".join(map(str, fixes))
        process = TimedProcess(name, round(step * 1e6), 0, 20, None, 1, round(WALL_S * 1e9), None, **self.load)  # type: ignore[arg-type]
        if error:
            process = replace(process, step_ns=None, error=error)
        applied = [{"name": fix.name, "applied": True, "text": f"{fix.name} was made"} for fix in fixes]
        return Outcome(process, ({"settle": 11, "world_size": 1, "patches": applied},), ())


def played(machine: Machine, *candidates: FixToTry, budget_s: float = 300.0, **options: object) -> Trial:
    """The trial, after checking that its JSON is valid."""
    options = {"rounds": None, "until": None} | options
    found = run_trial(
        cast("Any", machine), ("python", "train.py"), candidates, run=None, world_size=1, budget_s=budget_s,
        tell=lambda _: None, clock=machine.clock, **options,  # type: ignore[arg-type]
    )  # fmt: skip
    errors = [error.message for error in Draft202012Validator(schema()).iter_errors(json.loads(dumps(found)))]
    assert not errors
    return found


def candidate(fix: TriedFix, gain: float | None = None, **more: object) -> FixToTry:
    """A fix that is predicted to gain this much, within a tenth."""
    if gain is None:
        return FixToTry(fix)
    expected = Range(gain / 1.1, gain, gain * 1.1)
    return FixToTry(fix, fix.name, None, expected, advised="fixes", probability=0.95, saves=1 - 1 / gain, **more)  # type: ignore[arg-type]


def names(trial: Trial) -> list[str]:
    return [process.name for process in trial.processes]


def test_clear_gains_are_decided_in_two_rounds_and_then_tried_together():
    trial = played(Machine({TF32: 1.5, FUSED: 1.3}), candidate(TF32, 1.5), candidate(FUSED, 1.6))
    assert {row.name: row.status for row in trial.rows} == {
        "tf32": "confirmed", "optimizer=fused": "confirmed", "tf32 + optimizer=fused": "confirmed"
    }, names(trial)  # fmt: skip
    assert names(trial) == ["", "optimizer=fused", "tf32"] * 2 + ["", "tf32 + optimizer=fused", ""] + [
        "tf32 + optimizer=fused", ""
    ]  # fmt: skip
    assert trial.best == (TF32, FUSED) and trial.stop.reason == "decided" and trial.next == ()
    assert {row.name: row.prediction for row in trial.rows[:2]} == {"tf32": "right", "optimizer=fused": "gained_less"}
    assert trial.spent_ns == 12 * WALL_S * 1e9 < present(trial.budget_ns)


def test_fixes_that_do_not_help_each_other_are_not_the_best_together():
    machine = Machine({TF32: 1.5, FUSED: 1.3})
    machine.together = 1.6
    trial = played(machine, candidate(TF32, 1.5), candidate(FUSED, 1.3))
    assert trial.best == (TF32,) and trial.rows[-1].name == "tf32 + optimizer=fused"


def test_a_small_gain_gets_more_rounds_until_it_is_decided():
    trial = played(Machine({TF32: 1.035}), candidate(TF32, 1.035))
    (row,) = trial.rows
    assert row.status == "confirmed" and row.rounds > 2 and trial.stop.reason == "decided"


def test_what_is_not_decided_goes_on_to_the_end_of_the_budget_and_no_further():
    trial = played(Machine({TF32: 1.03}, noise=0.2), candidate(TF32, 1.03), budget_s=300)
    (row,) = trial.rows
    assert row.status == "unconfirmed" and row.rounds > 8 and "between processes" in row.reason
    assert trial.stop.reason == "budget" and trial.stop.text == "the budget of 300 s is used; not decided: tf32"
    assert 280e9 <= trial.spent_ns <= 300e9 and trial.best == ()
    assert [(one.name, one.why) for one in trial.next] == [("tf32", "not decided")]


def test_what_there_is_no_time_for_is_named_as_next_with_what_it_is_expected_to_gain():
    machine = Machine({TF32: 1.5, FUSED: 1.3, WORKERS: 1.1})
    trial = played(
        machine, candidate(WORKERS, 1.1), candidate(FUSED, 1.3), candidate(TF32, 1.5), budget_s=95
    )  # fmt: skip
    assert set(names(trial)) == {"", "tf32"}, "what gains most per minute"
    assert [(row.name, row.status) for row in trial.rows[1:]] == [
        ("optimizer=fused", "not_tried"), ("input_workers=2", "not_tried")
    ]  # fmt: skip
    assert [(one.name, one.why, one.probability) for one in trial.next] == [
        ("optimizer=fused", "not tried", 0.95), ("input_workers=2", "not tried", 0.95)
    ]  # fmt: skip
    assert trial.next[0].speedup == pytest.approx(1.3) and 40 <= trial.next[0].seconds <= 60
    assert trial.spent_ns <= 95e9


def test_a_budget_for_less_than_two_rounds_measures_once_and_confirms_nothing():
    trial = played(Machine({TF32: 3.0}), candidate(TF32, 3.0), budget_s=15)
    assert names(trial) == ["", "tf32", ""]
    assert (trial.rows[0].status, trial.rows[0].prediction, trial.best) == ("unconfirmed", None, ())


def test_it_stops_at_the_first_combination_that_reaches_what_is_asked_for():
    machine = Machine({TF32: 1.5, FUSED: 1.3, WORKERS: 1.2})
    chosen = [candidate(TF32, 1.5), candidate(FUSED, 1.3), candidate(WORKERS, 1.2)]
    single = played(machine, *chosen, until=1.4)
    assert single.stop.reason == "until" and single.best == (TF32,)
    assert single.stop.text.startswith("tf32 gains 1.") and single.stop.text.endswith("1.4× is reached")
    both = played(Machine({TF32: 1.5, FUSED: 1.3, WORKERS: 1.01}), *chosen, until=1.9, budget_s=900)
    assert both.stop.reason == "until" and both.best == (TF32, FUSED)
    never = played(Machine({TF32: 1.5, FUSED: 1.3, WORKERS: 1.2}), *chosen, until=3.0, budget_s=900)
    assert never.stop.reason == "decided" and never.stop.text == "every fix is decided; 3× is not reached"
    assert never.best == (TF32, FUSED, WORKERS)


def test_on_full_cpus_nothing_is_confirmed_and_a_note_says_so():
    trial = played(Machine({TF32: 2.0}, other_cpus=1.5, idle_cpus=0.1), candidate(TF32, 2.0), budget_s=120)
    assert trial.best == () and trial.rows[0].status == "unconfirmed"
    assert "other programs kept the CPUs full in" in trial.rows[0].reason
    assert "what was timed then confirms nothing" in trial.notes[0]


def test_rounds_that_are_asked_for_are_made_whatever_is_known():
    trial = played(Machine({TF32: 2.0, FUSED: 1.0}), candidate(TF32), candidate(FUSED), rounds=3, budget_s=1.0)
    assert names(trial) == ["", "tf32", "optimizer=fused"] * 3 + [""]
    assert (trial.rounds, trial.stop.reason, trial.budget_ns) == (3, "rounds", None)
    assert [row.status for row in trial.rows] == ["confirmed", "no_difference"]


def test_a_fix_that_fails_is_left_out_of_further_rounds():
    machine = Machine({TF32: 2.0, FUSED: 1.2})
    machine.fails[FUSED] = "out of memory: no room"
    trial = played(machine, candidate(TF32, 2.0), candidate(FUSED, 1.2))
    assert names(trial).count("optimizer=fused") == 1
    row = next(row for row in trial.rows if row.name == "optimizer=fused")
    assert (row.status, row.reason, row.prediction) == ("failed", "out of memory: no room", "failed")
    assert trial.best == (TF32,)
