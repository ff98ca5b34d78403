"""Energy of an unprofiled step: by the counter, by samples, and without the board's idle power."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.make_run import MS, RunBuilder

from gpuprof.diagnosis.comparison.notes import energy_notes
from gpuprof.diagnosis.result.run_model import Energy
from gpuprof.diagnosis.run.energy import measured_energy
from gpuprof.diagnosis.run.run_facts import run_facts
from gpuprof.report.history import HistoryEntry, head, rows
from gpuprof.report.numbers import joules
from gpuprof.report.words.run_words import energy as in_words
from gpuprof.timeline.unit import STEP
from gpuprof.tracefile.run_folder.run import RunFolder, read_run

S = 1000 * MS
IDLE, BUSY = 120.0, 520.0
STEP_MS = 50.0


Sample = tuple[float, float, "float | None", "float | None"]


def run_with(samples: Sequence[Sample], steps: int = 200) -> RunBuilder:
    """10 s of unprofiled steps; samples: (seconds from the first step's begin, utilization, watts, joules)."""
    run = RunBuilder()
    begun = run.now_ns
    run.stage("baseline_free", [STEP_MS] * steps)
    for at, used, watts, counter in samples:
        run.sample(begun + round(at * S), utilization=used, power_w=watts, energy_j=counter)
    return run


def of(run: RunBuilder, folder: Path, tokens: float | None = 1000.0) -> Energy | None:
    return measured_energy(read_run(run.write(folder, None)), tokens)


def ramp(at: float) -> float:
    """The counter: idle before the first step, then busy."""
    return 5000.0 + (IDLE if at < 0 else BUSY) * at


STEADY = [(at / 4, 0.0 if at < 0 else 0.97, IDLE if at < 0 else BUSY, ramp(at / 4)) for at in range(-8, 44)]


def test_the_counter_is_read_over_the_stretch(tmp_path: Path):
    found = of(run_with(STEADY), tmp_path)
    assert found is not None and found.source == "counter" and found.steps == 200
    assert found.power_w == pytest.approx(BUSY, rel=1e-3)
    assert found.step_j == pytest.approx(BUSY * STEP_MS / 1e3, rel=1e-3)
    assert found.idle_w == pytest.approx(IDLE)
    assert found.work_j == pytest.approx((BUSY - IDLE) * STEP_MS / 1e3, rel=1e-3)
    assert found.token_j == pytest.approx(BUSY * STEP_MS / 1e6, rel=1e-3)
    assert found.step_low_j < found.step_j < found.step_high_j


def test_without_a_counter_the_samples_are_averaged_and_less_sure(tmp_path: Path):
    counted = of(run_with(STEADY), tmp_path / "a")
    found = of(run_with([(at, used, watts, None) for at, used, watts, _ in STEADY]), tmp_path / "b")
    assert found is not None and counted is not None and found.source == "samples"
    assert found.step_j == pytest.approx(counted.step_j, rel=1e-3)
    assert found.step_high_j - found.step_low_j > counted.step_high_j - counted.step_low_j


def test_the_counter_sees_what_samples_miss(tmp_path: Path):
    """Every sample falls into a pause of a bursty load, so that samples give half of the energy used."""
    bursts = [(at, used, 260.0 if at >= 0 else watts, counter) for at, used, watts, counter in STEADY]
    found = of(run_with(bursts), tmp_path)
    assert found is not None and found.power_w == pytest.approx(BUSY, rel=1e-3)


def test_a_counter_that_begins_again_is_not_used(tmp_path: Path):
    again = [(at, used, watts, (counter or 0) % 4000) for at, used, watts, counter in STEADY]
    low = [(at, used, watts, 5000.0 - at) for at, used, watts, _ in STEADY]
    assert of(run_with(again), tmp_path / "a") is not None
    found = of(run_with(low), tmp_path / "b")
    assert found is not None and found.source == "samples"


@pytest.mark.parametrize(
    "run", [run_with([]), run_with(STEADY[:9]), run_with(STEADY, steps=3)], ids=["none", "before it", "too short"]
)
def test_where_it_was_not_sampled_nothing_is_said(tmp_path: Path, run: RunBuilder):
    assert of(run, tmp_path) is None


def test_profiled_steps_are_not_measured(tmp_path: Path):
    run = RunBuilder()
    begun = run.now_ns
    run.stage("trace", [STEP_MS] * 200)
    for at in range(40):
        run.sample(begun + at * S // 4, energy_j=ramp(at / 4))
    assert of(run, tmp_path) is None


def test_idle_power_is_unknown_where_the_gpu_was_busy_before(tmp_path: Path):
    found = of(run_with([(at, 0.9, watts, counter) for at, _, watts, counter in STEADY]), tmp_path)
    assert found is not None and found.idle_w is None and found.work_j is None


def test_words(tmp_path: Path):
    found = of(run_with(STEADY), tmp_path)
    assert found is not None
    run = read_run(run_with(STEADY).write(tmp_path / "again", None))

    text = in_words(replace(run_facts(run).run, energy=replace(found, estimated_w=560.0)))
    assert text == (
        "26 J a step, 26 mJ a token: 520 W by the energy counter over 200 steps, 120 W of it when idle; "
        "560 W by the model"
    )
    assert [joules(value) for value in (0.0123, 2.345, 47.6, 1234)] == ["12 mJ", "2.3 J", "48 J", "1.2 kJ"]


def test_a_history_has_the_column_where_a_run_measured_it():
    plain, measured = (
        HistoryEntry("a", None, "ok", "", {}),
        HistoryEntry("b", None, "ok", "", {"token_j": 0.026, "step_j": 26.0}),
    )
    assert head([plain])[-1] == "tokens/s" and head([plain, measured])[-1] == "J/token"
    assert [row[-1] for row in rows([plain, measured])] == ["–", "26 mJ"]


def test_a_step_takes_the_mean_power_for_as_long_as_the_shown_step(tmp_path: Path):
    """The stretch includes work that is done once: 26 J per step, 20.8 J for a step of 40 ms."""
    folder = read_run(run_with(STEADY).write(tmp_path, None))
    found = measured_energy(folder, 500.0, 40.0 * MS)
    assert found is not None and found.step_j == pytest.approx(BUSY * 0.04, rel=1e-3)
    assert found.work_j == pytest.approx((BUSY - IDLE) * 0.04, rel=1e-3)
    assert found.token_j == pytest.approx(BUSY * 0.04 / 500, rel=1e-3)


def test_the_report_multiplies_power_by_its_own_step_and_leaves_padding_out(tmp_path: Path):

    run = RunBuilder()
    begun = run.now_ns
    run.stage("baseline_free", [STEP_MS] * 199 + [2000.0], tokens=1000, real_tokens=600)
    for at, used, watts, counter in STEADY:
        run.sample(begun + round(at * S), utilization=used, power_w=watts, energy_j=counter)
    facts = run_facts(read_run(run.write(tmp_path, None)))
    assert facts.budget is not None and facts.run.energy is not None
    shown_s = facts.budget.mean_ns / 1e9
    assert facts.run.energy.step_j == pytest.approx(facts.run.energy.power_w * shown_s)
    assert facts.run.energy.token_j == pytest.approx(facts.run.energy.step_j / 600)


def two_gpus(folder: Path) -> RunFolder:
    """The process names one of two GPUs; the other takes 100 W less."""
    path = run_with(STEADY).write(folder, None)
    telemetry = path / "telemetry.jsonl"
    found = []
    for line in map(json.loads, telemetry.read_text().splitlines()):
        (gpu,) = line["gpus"]
        other = {**gpu, "index": 1, "uuid": "GPU-other", "power_w": gpu["power_w"] - 100, "energy_j": None}
        found.append(json.dumps({**line, "gpus": [{**gpu, "energy_j": None}, other]}))
    telemetry.write_text("\n".join(found) + "\n")
    return read_run(path)


def test_a_process_with_several_gpus_takes_their_sum(tmp_path: Path):
    folder = two_gpus(tmp_path)
    one, both = measured_energy(folder, 1000.0), measured_energy(folder, 1000.0, devices=2)
    assert one is not None and one.power_w == pytest.approx(BUSY) and one.boards == 1
    assert both is not None and both.power_w == pytest.approx(2 * BUSY - 100) and both.boards == 2
    assert both.step_j == pytest.approx((2 * BUSY - 100) * STEP_MS / 1e3, rel=1e-3)
    assert both.idle_w == pytest.approx(2 * IDLE - 100)
    assert measured_energy(folder, 1000.0, devices=3) is None, "which of the sampled ones are its own is not known"


def test_an_unsure_energy_is_said_with_its_interval(tmp_path: Path):
    folder = two_gpus(tmp_path)

    run = run_facts(folder, devices=2).run
    assert run.energy is not None
    wide = replace(run.energy, step_j=50.0, step_low_j=40.0, step_high_j=60.0)
    assert in_words(replace(run, energy=wide)).startswith("50 J a step (40 J to 60 J), ")
    assert ", of 2 GPUs together: 940 W by samples" in in_words(run)


def test_two_energies_whose_intervals_overlap_do_not_differ_clearly(tmp_path: Path):
    a = of(run_with(STEADY), tmp_path)
    assert a is not None

    def said(factor: float) -> str:
        assert a is not None
        part = {name: factor * getattr(a, name) for name in ("step_j", "step_low_j", "step_high_j", "token_j")}
        (note,) = energy_notes(a, replace(a, **part), STEP)
        return note.message

    assert "26 J in A and 27.3 J in B (no clear difference: ±6 % and ±6 %)" in said(1.05)
    assert "26 J in A and 52 J in B (+100%), a token 26 and 52 mJ (+100%)." in said(2.0)
