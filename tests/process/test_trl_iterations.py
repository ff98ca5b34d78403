"""Iterations of TRL's trainers under `gpuprof trace`: their phases, compared with wall clocks put around them by
hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.run_schema import errors_in
from helpers.trainings import trace
from helpers.valid_json import is_valid

import gpuprof
from benchmarks.rl_phases import compared

need("torch", "transformers", "trl", "datasets")

COVERED = 0.98
"""Share of an iteration in phases other than idle and other."""
NEAR, NEAR_MS = 0.03, 0.25
"""A phase matches the clock around it within this share, or within this time if it is short."""
PROGRAM = """
    import json, sys, torch
    from pathlib import Path
    from scenarios.support import rl
    torch.set_num_threads(1)
    here = Path.cwd()
    job = rl.Job(trainer={trainer!r}, steps={steps}, tokens={tokens}, wait_s={wait})
    rl.save_model(here / "model", "tiny")
    clocks = rl.Clocks()
    trainer = rl.build(job, here / "model", here / "out", [clocks.callback()])
    clocks.put_around(trainer)
    try:
        trainer.train()
    finally:
        (here / "clocks.json").write_text(json.dumps({{"steps": clocks.steps, "ns": clocks.step_ns}}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("trainer", ["grpo", "rloo", "online_dpo"])
def test_phases_of_a_trainer(tmp_path: Path, trainer: str):
    program = PROGRAM.format(trainer=trainer, steps=22, tokens=32, wait=0.05)
    run = trace(tmp_path, program, "--no-report")
    assert run.code == 0, run.stderr
    assert not errors_in(run.folder)
    lines = run.steps()
    for line in lines:
        if line["stage"] == "after":  # nothing is marked any longer
            continue
        assert sum(line["phases_ns"].values()) == line["ns"]
    found = compared(lines, json.loads((tmp_path / "clocks.json").read_text()))
    assert found["steps"] > 5
    assert found["covered"] >= COVERED
    for name, phase in found["phases"].items():
        if phase["ms"]:
            off = abs(phase["ratio"] - 1)
            assert off <= NEAR or off * phase["ms"] <= NEAR_MS, (name, phase)
    assert not nested(run.folder, "advantage", "generation")  # TRL moves generate's inputs the way it moves a batch
    diagnosis = gpuprof.diagnose(run.folder)
    assert is_valid(diagnosis)
    assert diagnosis.iteration is not None
    assert diagnosis.iteration.steps == 1
    waits = {one.name: one.waits for one in diagnosis.iteration.rewards}
    assert waits == {"judge_style": True, "judge_facts": True, "length": waits["length"]}
    # Those with gradients are the training's forward pass; the rest is the reference model's.
    passes = diagnosis.iteration.log_probability_passes
    assert passes is not None and passes >= 1
    recorded = {one.phase for one in diagnosis.iteration.recorded}
    assert {"generation", "reward", "log-probabilities", "forward", "backward", "optimizer"} <= recorded


def nested(run: Path, inner: str, outer: str) -> int:
    """How many spans of a phase begin within a span of another phase."""
    lines = [json.loads(line) for path in run.glob("phases.*.jsonl") for line in path.read_text().splitlines()]
    begins = [one["begin_ns"] for one in lines if one.get("phase") == inner]
    around = [(one["begin_ns"], one["begin_ns"] + one["ns"]) for one in lines if one.get("phase") == outer]
    assert around
    return sum(begin <= at < end for at in begins for begin, end in around)


@pytest.mark.slow
def test_a_long_iteration_is_recorded_in_part(tmp_path: Path):
    """The first, middle and last steps of a long decode loop are recorded; the training stalls for less than 3 s."""
    run = trace(tmp_path, PROGRAM.format(trainer="grpo", steps=40, tokens=160, wait=0.4), "--no-report", "--stop")
    assert run.code == 0, run.stderr
    (window,) = run.rank()["windows"]
    assert window["steps"] <= 2
    assert window["stop_ns"] <= 3e9
    left_out = sum(one["forwards"] for one in window["unrecorded"]) / window["steps"]
    assert 100 < left_out < 160
    found = gpuprof.diagnose(run.folder).iteration
    assert found is not None and found.unrecorded is not None and found.generation is not None
    assert found.unrecorded.forwards == left_out
    # What was left out and what was recorded add up to all of generation.
    recorded = next(one for one in found.recorded if one.phase == "generation")
    assert recorded.ns > 0
    assert found.generation.forwards > left_out
    # Two layers, keys and values: four concatenations for each token after the first, recorded or not.
    assert found.cache_copies is not None
    assert found.cache_copies.count == pytest.approx(4 * found.generation.forwards, rel=0.1)
    assert 0 < found.cache_copies.cpu_ns < found.ns_of("generation")
