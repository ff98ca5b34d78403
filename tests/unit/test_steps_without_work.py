"""Recordings in which most steps launch nothing: there is no usual step, and nothing may be divided by one."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
from helpers.make_trace import TraceBuilder
from jsonschema import Draft202012Validator

import gpuprof
from gpuprof.cli import main
from gpuprof.diagnosis.written.diagnosis_json import dumps, schema

US, MS = 1000, 1_000_000
STEPS = 5


def mostly_idle(working: tuple[int, ...] = (0, 4)) -> TraceBuilder:
    """Steps of 10 ms on the host; some launch a kernel of 8.8 ms."""
    builder = TraceBuilder()
    for i in range(STEPS):
        at = 10 * MS * i
        builder.step(i, at, at + 10 * MS)
        result: dict[str, Any] = {"Sequence number": i, "Fwd thread id": 0}
        builder.op("aten::mm", at + 100 * US, at + 300 * US, **result)
        if i in working:
            builder.launch("gemm", (at + 150 * US, at + 160 * US), (at + 200 * US, at + 9 * MS))
    return builder


def host_ahead(kernel_us: int = 1950) -> TraceBuilder:
    """Steps of 1 ms, most of it the profiler's cost of 490 ops; the first two launch a kernel that lasts longer."""
    builder, free = TraceBuilder(), 0
    for i in range(STEPS):
        at = 1000 * US * i
        builder.step(i, at, at + 1000 * US)
        for k in range(490):
            begin = at + (10 + 2 * k) * US
            builder.op("aten::add", begin, begin + 1800)
        if i < 2:
            begin = max(at + 200 * US, free)
            free = begin + kernel_us * US
            builder.launch("gemm", (at + 150 * US + 100, at + 151 * US), (begin, free))
    return builder


MADE = {"idle": mostly_idle, "one": lambda: mostly_idle((2,)), "ahead": host_ahead}


@pytest.fixture(scope="module", params=list(MADE))
def path(request, tmp_path_factory) -> Path:
    return MADE[request.param]().write(tmp_path_factory.mktemp("idle") / f"{request.param}.json")


def finite(value) -> bool:
    if isinstance(value, dict):
        return all(map(finite, value.values()))
    if isinstance(value, list):
        return all(map(finite, value))
    return not isinstance(value, float) or math.isfinite(value)


def test_every_command_takes_such_a_recording(path: Path, tmp_path: Path, capsys):
    usual = mostly_idle(tuple(range(STEPS))).write(tmp_path / "usual.json")
    for arguments in (
        ["diagnose", path],
        ["diagnose", path, "--json"],
        ["diagnose", path, "--json", "--step-ms", "5"],
        ["report", path, "-o", tmp_path / "report.html"],
        ["project", path, "--to", "B200", "--json"],
        ["compare", path, path, "--json"],
        ["compare", path, usual, "--json"],
        ["compare", usual, path, "--json"],
    ):
        assert main([*map(str, arguments)]) == 0, arguments
        result = capsys.readouterr()
        assert "Traceback" not in result.err
        if "--json" in arguments:
            assert finite(json.loads(result.out)), arguments


def test_the_diagnosis_is_valid_and_no_finding_fails(path: Path):
    found = gpuprof.diagnose(path)
    assert not list(Draft202012Validator(schema()).iter_errors(json.loads(dumps(found))))
    assert "finding_failed" not in {issue.id for issue in found.quality.issues}
    assert found.replay.shown
    assert found.steps and found.steps.inflation is None, "the estimate is a mean, what was recorded a median"
    assert all(finding.step_ns.low > 1000 for finding in found.findings)


def test_a_step_is_the_mean_where_the_host_binds(tmp_path: Path):
    found = gpuprof.diagnose(mostly_idle().write(tmp_path / "trace.json"))
    assert found.steps and found.devices_estimated
    assert found.steps.estimated_ns == pytest.approx(10 * MS, rel=0.01)
    assert found.devices_estimated[0].compute_ns == pytest.approx(2 * 8.8 * MS / STEPS, rel=0.01)
    assert found.verdict.family == "host"


def test_a_step_is_the_mean_where_the_gpu_binds(tmp_path: Path):
    found = gpuprof.diagnose(host_ahead(1950).write(tmp_path / "trace.json"))
    assert found.steps and found.devices_estimated
    assert found.steps.estimated_ns == pytest.approx(2 * 1.95 * MS / STEPS, rel=0.01)
    assert found.devices_estimated[0].compute_ns == pytest.approx(2 * 1.95 * MS / STEPS, rel=0.01)
    assert found.verdict.family != "host"


def test_a_larger_batch_is_estimated_over_all_steps(tmp_path: Path):
    """Without shapes kernels grow with the batch: to eight times 17.6 ms in five steps."""
    found = gpuprof.diagnose(mostly_idle().write(tmp_path / "trace.json"))
    batch = next(finding for finding in found.findings if finding.id == "larger_batch")
    assert batch.step_ns.expected < (8 * 2 * 8.8 * MS + STEPS * 10 * MS) / STEPS
    assert batch.step_ns.expected >= 10 * MS
    assert 1.2 < batch.speedup.expected < 8
