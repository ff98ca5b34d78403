"""The JSON of a run folder: what its schema says, held against what is really written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.paths import ROOT
from helpers.run_schema import SCHEMA, errors, errors_in
from jsonschema import Draft202012Validator

from gpuprof import runfile
from gpuprof.record import telemetry
from gpuprof.record.options import DEFAULTS


def objects(schema: Any, path: str = "$") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every part of a schema that describes the keys of an object."""
    if isinstance(schema, dict):
        if "properties" in schema:
            yield path, schema
        for key, value in schema.items():
            yield from objects(value, f"{path}.{key}")
    elif isinstance(schema, list):
        for i, value in enumerate(schema):
            yield from objects(value, f"{path}[{i}]")


# -- the schema by itself


def test_the_schema_is_one():
    Draft202012Validator.check_schema(SCHEMA)


def test_it_is_strict_and_describes_every_key():
    assert len(list(objects(SCHEMA))) > 12
    for path, schema in objects(SCHEMA):
        assert schema["additionalProperties"] is False, path
        assert set(schema["required"]) <= set(schema["properties"]), path
        for key, value in schema["properties"].items():
            described = value if "description" in value else SCHEMA["$defs"][value["$ref"].rpartition("/")[2]]
            assert described.get("description"), f"{path}: {key} is not described"


def test_its_lists_are_those_of_the_code():
    definitions = SCHEMA["$defs"]
    assert tuple(definitions["stage"]["enum"]) == runfile.STAGES
    assert tuple(definitions["window"]["enum"]) == runfile.WINDOWS
    assert set(definitions["options"]["properties"]) == set(DEFAULTS)
    assert definitions["manifest"]["properties"]["schema"]["const"] == runfile.SCHEMA


def test_the_words_about_the_files_name_every_key():
    """`runfile` says the same in fewer words; a key that one of them lacks is a mistake in one of them."""
    words = set(re.findall(r"\w+", runfile.__doc__ or ""))
    for name in ("manifest", "rank", "step", "telemetry"):
        assert set(SCHEMA["$defs"][name]["properties"]) <= words, name


def test_a_sample_of_gpus():
    gpu = {
        "index": 3, "uuid": "GPU-aaaa", "power_w": 310.52, "limit_w": 700.0, "sm_mhz": 1980, "memory_mhz": 3201,
        "temperature_c": 41, "utilization": 0.97, "memory_utilization": 0.4, "used_bytes": 5 << 30,
        "throttle": ["sw_power_cap", "0x800"],
    }  # fmt: skip
    refused = dict.fromkeys(gpu) | {"uuid": "MIG-aaaa"}
    sample = {"unix_ns": time.time_ns(), "load1": 0.5, "cpu": 0.25, "gpus": [gpu, refused, gpu | {"throttle": []}]}
    assert errors("telemetry", sample) == []
    for wrong in ({"utilization": 97}, {"throttle": "none"}, {"uuid": None}, {"fan": 3}):
        assert errors("telemetry", sample | {"gpus": [gpu | wrong]}), wrong


def test_the_sampler(tmp_path: Path):
    process = telemetry.start(tmp_path)
    deadline = time.monotonic() + 30
    while not (tmp_path / runfile.TELEMETRY).exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    telemetry.stop(process)
    lines = list(runfile.read_lines(tmp_path / runfile.TELEMETRY))
    assert lines
    assert [error for line in lines for error in errors("telemetry", line)] == []


# -- runs


def test_a_whole_run(tmp_path: Path):
    run = traced(tmp_path, LOADER, "--stacks", "--memory", "1")
    assert run.code == 0, run.stderr
    assert errors_in(run.folder) == []
    rank = run.rank()
    assert [window["window"] for window in rank["windows"]] == ["trace", "stacks", "memory"]
    assert set(SCHEMA["$defs"]["rank"]["properties"]) == set(rank), "every key was seen"
    assert set(SCHEMA["$defs"]["manifest"]["properties"]) == set(run.manifest)
    assert set(run.stages()) == set(runfile.STAGES) - {runfile.NSYS}, run.log()
    assert (run.folder / runfile.TELEMETRY).exists(), run.log()


def test_a_run_that_is_killed_in_its_baseline(tmp_path: Path):
    run = traced(tmp_path, "train(9); os.kill(os.getpid(), 9)")
    assert run.code == -9
    assert run.manifest["status"] == "killed"
    assert errors_in(run.folder) == []


def test_a_run_that_is_killed_before_its_baseline(tmp_path: Path):
    run = traced(tmp_path, "train(2); os.kill(os.getpid(), 9)")
    assert run.rank()["model"] is None
    assert errors_in(run.folder) == []


def test_a_run_in_which_nothing_is_trained(tmp_path: Path):
    folder = tmp_path / "run"
    code = "import sys; sys.exit(3)"
    done = subprocess.run(
        [sys.executable, "-m", "gpuprof", "trace", "--out", str(folder), sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert errors_in(folder) == []
    assert json.loads((folder / runfile.MANIFEST).read_text())["status"] == "failed"


def test_a_recorders_run(tmp_path: Path):
    from_trace = pytest.importorskip("test_trace_training", reason="torch is not installed")
    code = """
    import gpuprof
    with gpuprof.Recorder("run", settle=2, baseline=2, steps=1):
        train(20)
    """
    script = tmp_path / "own.py"
    script.write_text("".join(map(textwrap.dedent, (from_trace.MODEL, from_trace.LOOP, code))))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / runfile.TELEMETRY).exists()
    assert errors_in(tmp_path / "run") == []


LOADER = """
from torch.utils.data import DataLoader
model = Model()
opt = torch.optim.AdamW(model.parameters(), lr=1e-3)
for batch in DataLoader(list(batches(60)), batch_size=None):
    loss_of(model, batch).backward()
    opt.step()
    opt.zero_grad()
"""


def traced(tmp_path: Path, code: str, *options: str) -> Any:
    """A run made by `gpuprof trace`; skips where there is no torch."""
    return pytest.importorskip("test_trace_training", reason="torch is not installed").trace(tmp_path, code, *options)
