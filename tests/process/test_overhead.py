"""How the overhead of tracing is measured: its statistics, and once in a while the figures themselves."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.paths import ROOT

from benchmarks.asked_trainings import environment
from benchmarks.in_turns import Program, compared, interval
from benchmarks.overhead import (
    DROPPED,
    KINDS,
    baseline,
    extra_share,
    extra_us,
    figure,
    figures,
    measure,
    paired,
    table,
)

GENEROUS = 5
"""How many times its limit a figure may be while other tests run."""


def test_a_figure_is_the_median_whatever_a_few_pairs_say():
    found = figure("start", "ms", [40, 41, 900, 39, 42], limit=60)
    assert (found.median, found.low, found.high, found.pairs) == (41, 40, 42, 5)
    assert not found.missed
    assert figure("start", "ms", [61], limit=60).missed
    assert not figure("start", "ms", [60], limit=60).missed
    assert not figure("reported", "share", [9.0]).missed, "what has no limit cannot miss it"
    with pytest.raises(ValueError, match="start"):
        figure("start", "ms", [])


def test_processes_that_take_turns_are_compared_block_by_block():
    """The machine gets steadily slower and stalls now and then; the difference between the two stays the same."""
    rng = random.Random(1)
    bare, traced = [], []
    for block in range(30):
        pace = 1_000_000 * (1 + block / 10)
        for blocks, factor in ((bare, 1.0), (traced, 1.05)):
            steps = [pace * factor * rng.uniform(0.9, 1.1) * (10 if rng.random() < 0.1 else 1) for _ in range(60)]
            blocks.append([pace * 50] * DROPPED + steps)
    assert paired(bare, traced, extra_share) == pytest.approx(0.05, abs=0.01)


def test_the_first_steps_of_a_block_do_not_count():
    assert paired([[9_000] * DROPPED + [1_000]], [[1] * DROPPED + [3_500]], extra_us) == 2.5


def test_states_of_one_process_are_compared_turn_by_turn():
    """gpuprof's hooks take 20 µs of a step in both processes, one of which is 10 % slower by itself; the machine gets
    steadily slower."""
    rng = random.Random(1)
    programs = []
    for number, pace in enumerate((1_000_000, 1_100_000)):
        program = Program("lora", ("--layers", "3"), number)
        for turn in range(20):
            drift = 1 + turn / 40

            def steps(more_ns: int, own: float = pace * drift) -> list[int]:
                return [round(own * rng.uniform(0.98, 1.02)) + more_ns for _ in range(60)]

            bare = [round(1_000_000 * drift * rng.uniform(0.98, 1.02)) for _ in range(60)]
            program.turns.append({
                ("bare", "off"): bare, ("baseline", "off"): steps(0), ("baseline", "on"): steps(20_000),
            })  # fmt: skip
        programs.append(program)
    rows = {row["what"]: row for row in compared(programs)}
    assert set(rows) == {"baseline", "baseline, fresh processes"}, "the others were not measured"
    within = rows["baseline"]
    assert within["us"][0] == pytest.approx(20, abs=5) and within["us"][1] < 20 < within["us"][2]
    assert within["turns"] == 40 and len(within["us_by_processes"]) == 2
    low, high = rows["baseline, fresh processes"]["us_by_processes"]
    assert high - low > 80, "what processes differ by is shown"
    with pytest.raises(ValueError):
        interval([])


def test_the_baseline_is_read_from_the_run(tmp_path: Path):
    stages = [{"stage": "settle", "first_step": 1, "steps": 2}, {"stage": "baseline_free", "first_step": 3, "steps": 3}]
    (tmp_path / "rank0.json").write_text(json.dumps({"stages": stages}))
    lines = [{"stage": "settle", "ns": 99}, *({"stage": "baseline_free", "ns": ns} for ns in (12, 11, 13))]
    (tmp_path / "steps.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    steps, told_ns = baseline(tmp_path)
    assert ([90, 80, 10, 11, 9, 70][steps], told_ns) == ([10, 11, 9], 12)


def test_the_children_are_as_a_users(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.setenv("GPUPROF_TRACE_STEPS", "7")
    monkeypatch.setenv("HOME", "/home/somebody")
    variables = environment()
    assert not {"PYTHONDONTWRITEBYTECODE", "GPUPROF_TRACE_STEPS"} & set(variables)
    assert variables["HOME"] == "/home/somebody"


def test_the_start_is_measured_without_torch(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.overhead", "--only", "start", "--rounds", "1", "--json", "-"],
        cwd=ROOT, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stderr
    (start,) = json.loads(done.stdout)["figures"]
    assert (start["name"], start["unit"], start["pairs"]) == ("start", "ms", 5)
    assert done.returncode == start["missed"]


@pytest.mark.slow
def test_tracing_costs_little():
    pytest.importorskip("torch", reason="torch is not installed")
    found = figures(measure(KINDS, rounds=3, blocks=20), slack=GENEROUS)
    assert {one.name for one in found} >= {
        "start",
        "step",
        "hooks after",
        "hooks baseline",
        "before, after",
        "reported",
    }
    assert not [one.name for one in found if one.missed], table(found)
