"""Goodput: the wall time of a run is split completely, and each cause gets the time that the test gave it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from helpers.make_run import usual_run
from hypothesis import given
from hypothesis import strategies as st

import gpuprof
from gpuprof.record.launcher.goodput import CAUSES, RecordedGoodput, sentence, split

S, MS = 1_000_000_000, 1_000_000
START = 1_700_000_000 * S


def lines(*stages: tuple[str, int, int, dict[str, int]], begin: int) -> list[dict[str, Any]]:
    """Steps of several stages, each (stage, how many, ns of each, further keys)."""
    found, now = [], begin
    for stage, count, ns, more in stages:
        for _ in range(count):
            now += ns
            line = {"rank": 0, "step": len(found) + 1, "stage": stage, "unix_ns": now, "ns": ns, "data_ns": MS}
            found.append(line | {"profiled": stage == "trace"} | more)
    return found


def run(**manifest: Any) -> RecordedGoodput:
    steps = lines(
        ("settle", 4, 500 * MS, {"compile_ns": 300 * MS}),
        ("baseline_free", 9, 100 * MS, {}),
        ("baseline_free", 1, 600 * MS, {"save_ns": 500 * MS}),
        ("trace", 5, 200 * MS, {}),
        ("after", 80, 100 * MS, {}),
        ("after", 1, 100 * MS + 500 * MS + 2 * S, {}),  # saving again, which is no longer measured; writing the trace
        begin=START + 30 * S,
    )  # fmt: skip
    ended = steps[-1]["unix_ns"] + 7 * S
    facts = {
        "steps_seen": 100, "imported": START + 10 * S, "intervals": {"save": 50}, "windows": [{"stop_ns": 2 * S}],
    }  # fmt: skip
    found = split({"started": START, "ended": ended} | manifest, facts, steps)
    assert found is not None
    return found


def test_every_cause_gets_what_it_took():
    found = run()
    assert set(found.lost_ns) == set(CAUSES)
    assert found.wall_ns == found.productive_ns + sum(found.lost_ns.values())
    assert (found.steps, found.usual_ns, found.productive_ns) == (100, 100 * MS, 10 * S)
    lost = found.lost_ns
    assert (lost["imports"], lost["loading"], lost["finish"]) == (10 * S, 20 * S, 7 * S)
    assert lost["compile"] == 4 * 300 * MS
    assert lost["first_steps"] == 4 * (400 - 300) * MS
    assert lost["save"] == 2 * 500 * MS, "one was measured, and the schedule has two in 100 steps"
    assert lost["recording"] == 5 * 100 * MS + 2 * S
    assert lost["evaluation"] == lost["other"] == 0


def test_what_every_step_does_is_not_lost():
    """A training that generates its samples in every step calls the model outside of training in each of them."""
    generates = {"evaluation_ns": 130 * MS}
    steps = lines(
        ("settle", 4, 220 * MS, generates),
        ("baseline_free", 10, 220 * MS, generates),
        ("after", 46, 220 * MS, generates),
        begin=START + 5 * S,
    )
    found = split({"started": START, "ended": steps[-1]["unix_ns"]}, {"imported": START, "steps_seen": 60}, steps)
    assert found is not None
    assert found.lost_ns["evaluation"] == 0
    assert found.productive_ns == 60 * 220 * MS and found.lost_ns["other"] == 0


def test_steps_take_no_more_than_the_loop_did():
    """Where later steps are shorter than the timed ones, the parts still add up to the run, none below zero."""
    steps = lines(("baseline_free", 10, 300 * MS, {}), ("after", 50, 50 * MS, {}), begin=START + 5 * S)
    ended = steps[-1]["unix_ns"] + S
    found = split({"started": START, "ended": ended}, {"imported": START + S, "steps_seen": 60}, steps)
    assert found is not None
    assert found.productive_ns == 10 * 300 * MS + 50 * 50 * MS
    assert min(found.lost_ns.values()) == 0
    assert sentence(found).startswith("usual steps take 48 %")


def test_a_run_that_goes_on_ends_with_its_last_step():
    assert run(ended=None).lost_ns["finish"] == 0


def test_the_sentence_names_what_is_worth_it():
    text = sentence(run())
    assert text.startswith("usual steps take ") and "loading model and data" in text and "logging" not in text


@pytest.mark.parametrize("manifest", [{}, {"started": None}, {"started": True}, {"started": START + 10**12}])
def test_without_a_start_or_free_steps_there_is_none(manifest: dict[str, Any]):
    steps = lines(("baseline_free", 3, MS, {}), begin=START + S)
    assert split(manifest, {}, steps) is None
    assert split({"started": START}, {}, lines(("settle", 3, MS, {}), begin=START + S)) is None


_VALUES = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=3), st.lists(st.none())
)


@given(
    st.dictionaries(st.sampled_from(["started", "ended"]), _VALUES),
    st.dictionaries(st.sampled_from(["imported", "steps_seen", "intervals", "windows"]), _VALUES),
    st.lists(
        st.dictionaries(st.sampled_from(["step", "ns", "unix_ns", "stage", "data_ns", "save_ns", "profiled"]), _VALUES)
    ),
)
def test_damaged_folders_never_raise_and_always_add_up(manifest: dict, facts: dict, damaged: list[dict]):
    good = lines(("baseline_free", 3, MS, {}), begin=START + S)
    for steps in (damaged, good + damaged):
        found = split({"started": START} | manifest, facts, steps)
        if found is not None:
            assert found.wall_ns == found.productive_ns + sum(found.lost_ns.values())
            assert 0 <= found.share <= 1
            assert sentence(found)


def test_a_diagnosis_of_a_run_has_it(tmp_path: Path):
    builder = usual_run()
    builder.manifest["started"] -= 60 * S
    diagnosis = gpuprof.diagnose(builder.write(tmp_path / "run"))
    assert diagnosis.run is not None and diagnosis.run.goodput is not None
    assert diagnosis.run.goodput.lost_ns["loading"] == pytest.approx(60 * S, rel=0.01)
