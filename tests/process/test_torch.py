"""A fresh CPU trace by the installed torch is read completely (2.13 writes one key per line)."""

from __future__ import annotations

import json

import pytest
from helpers.installed import need
from helpers.started import finished
from helpers.warm_torch import warm_python

import gpuprof
from gpuprof.timeline.phases import PHASES
from gpuprof.timeline.timeline import build_timeline

SCRIPT = """
import sys, torch
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader

model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
optimizer = torch.optim.AdamW(model.parameters())
batches = iter(DataLoader(torch.randn(64, 16), batch_size=8))
options = dict(record_shapes=True, with_stack=True, with_modules=True, profile_memory=True)
options |= dict(schedule=schedule(wait=1, warmup=1, active=3, repeat=1))
with profile(activities=[ProfilerActivity.CPU], **options) as p:
    for _ in range(6):
        loss = model(next(batches)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        p.step()
p.export_chrome_trace(sys.argv[1])
"""


@pytest.fixture(scope="module")
def trace_file(tmp_path_factory):
    need("torch")
    path = tmp_path_factory.mktemp("torch") / "cpu.json"
    script = path.with_name("record.py")
    script.write_text(SCRIPT)
    finished([warm_python(), script, path], timeout=240).check_returncode()
    return path


def test_a_fresh_recording_reads_whole(trace_file):
    events = json.loads(trace_file.read_text())["traceEvents"]
    trace = gpuprof.load(trace_file)
    assert trace.reading.events == len(events)
    assert (trace.reading.dropped, trace.reading.repaired, trace.reading.truncated) == (0, 0, None)
    ops = [e for e in events if e.get("cat") == "cpu_op"]
    assert sum(trace.ops.kind == 0) == len(ops)
    assert len(trace.frames) == sum(e.get("cat") == "python_function" for e in events)


def test_steps_and_phases_of_a_cpu_run(trace_file):
    timeline = build_timeline(gpuprof.load(trace_file))
    assert timeline is not None
    assert (timeline.steps.source, len(timeline.steps.start_ns)) == ("profiler_step", 3)
    ops, strings = timeline.trace.ops, timeline.trace.strings
    phase = {strings[n]: PHASES[p] for n, p in zip(ops.name.tolist(), timeline.host.op.tolist(), strict=True)}
    assert phase["aten::addmm"] == "forward"
    assert phase["AddmmBackward0"] == "backward"
    assert phase["Optimizer.step#AdamW.step"] == "optimizer"
    assert next(p for name, p in phase.items() if name.startswith("enumerate(DataLoader)")) == "data"


def test_without_gpu_events_no_verdict_is_given(trace_file):
    diagnosis = gpuprof.diagnose(trace_file)
    assert diagnosis.quality.status == "unusable"
    assert diagnosis.verdict.bound is None
    assert "CPU only" in diagnosis.verdict.summary
