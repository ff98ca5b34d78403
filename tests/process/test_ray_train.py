"""`gpuprof trace` around a driver of Ray Train that starts Ray itself: its workers are the ranks of the run."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.started import environment

need("torch")
for package in ("ray", "pyarrow", "tensorboardX"):  # what ray[train] brings
    pytest.importorskip(package, reason="Ray is not installed")
pytestmark = pytest.mark.slow  # Ray starts a dozen processes

DRIVER = """
import ray
import torch
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer, prepare_model


def train():
    torch.set_num_threads(1)
    model = prepare_model(torch.nn.Linear(64, 64))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(60):
        model(torch.randn(16, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


ray.init(num_cpus=2, include_dashboard=False, logging_level="error", object_store_memory=100_000_000)
TorchTrainer(
    train,
    scaling_config=ScalingConfig(num_workers=2, use_gpu=False, resources_per_worker={"CPU": 0.5}),
    run_config=RunConfig(storage_path="PLACE", name="small"),
).fit()
ray.shutdown()
"""


@pytest.mark.timeout(900)
def test_workers_are_the_ranks_of_the_run(tmp_path: Path):
    (tmp_path / "driver.py").write_text(DRIVER.replace("PLACE", str(tmp_path / "results")))
    words = ["--settle=2", "--baseline=3", "--steps=2", "--no-sampling", "--no-report", "--out=run"]
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof", "trace", *words, sys.executable, "driver.py"],
        cwd=tmp_path, env=environment(RAY_USAGE_STATS_ENABLED="0", GPUPROF_TOKEN="0123456789abcdef" * 2),
        capture_output=True, text=True, timeout=900,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    run = tmp_path / "run"
    facts = [json.loads((run / f"rank{rank}.json").read_text(encoding="utf-8")) for rank in (0, 1)]
    assert [(one["rank"], one["world_size"]) for one in facts] == [(0, 2), (1, 2)]
    assert facts[0]["pid"] != facts[1]["pid"]
    assert [[window["steps"] for window in one["windows"]] for one in facts] == [[2], [2]]
    assert all((run / f"trace.rank{rank}.json.gz").is_file() for rank in (0, 1))
    assert "verdict" in (run / "verdict.txt").read_text(encoding="utf-8"), "of a training on CPUs, that it has none"
