"""A hand-written loop that marks its phases with `gpuprof.phase`, recorded by `gpuprof trace` and by a Recorder."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.installed import need
from helpers.quick import few
from helpers.run_schema import errors_in
from helpers.trainings import trace
from helpers.valid_json import is_valid

import gpuprof

need("torch")

LOOP = """
    import time
    import gpuprof

    def iterate(iterations, updates, done=lambda: None):
        model = Model()
        opt = torch.optim.SGD(model.parameters(), lr=1e-3)
        for _ in range(iterations):
            with gpuprof.phase("generation"), torch.no_grad():
                tokens = torch.zeros(4, 1, dtype=torch.long)
                for _ in range(20):
                    tokens = model(tokens).argmax(-1)
            with gpuprof.phase("reward"):
                time.sleep(0.02)
            for _ in range(updates):
                with gpuprof.phase("training"):
                    loss_of(model, next(batches(1))).backward()
                    opt.step()
                    opt.zero_grad()
                done()
"""
RECORDED = """
    with gpuprof.Recorder(out="own", settle=2, baseline=4, steps=2, sampling=False) as recorder:
        iterate(24, 1, recorder.step)
"""


@pytest.mark.parametrize("updates", few([1, 3], ["3"]))
def test_iterations_of_a_loop(tmp_path: Path, updates: int):
    run = trace(tmp_path, f"{LOOP}\n    iterate({60 // updates}, {updates})", "--baseline", "6")
    assert run.code == 0, run.stderr
    assert not errors_in(run.folder)
    check(run.folder, updates)
    names = run.ranges()
    assert {"phase: generation", "phase: reward", "phase: training"} <= set(names)


def test_iterations_of_a_recorder(tmp_path: Path):
    from helpers.started import finished
    from helpers.trainings import variables, write_script
    from helpers.warm_torch import warm_python

    script = write_script(tmp_path, LOOP + RECORDED)
    done = finished([warm_python(), str(script)], cwd=tmp_path, env=variables(), text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    check(tmp_path / "own", 1)


def check(folder: Path, updates: int) -> None:
    diagnosis = gpuprof.diagnose(folder)
    assert is_valid(diagnosis)
    found = diagnosis.iteration
    assert found is not None
    assert found.steps == updates
    assert found.ns_of("reward") >= 20e6
    assert found.ns_of("generation") > 0
    assert found.training_ns > 0
    # For the best of the iterations, as a busy machine may interrupt any of them anywhere.
    least = sum(one.low_ns for one in found.phases if one.phase in ("other", "idle"))
    assert least < 0.02 * found.mean_ns
    assert sum(one.ns for one in found.phases) == found.mean_ns
