"""The verdict: examples of its one rule, and of turning shares of a step into gains."""

from __future__ import annotations

import ast
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from helpers.case import case_of
from helpers.paths import ROOT
from helpers.program import PLAIN, US, Program

from benchmarks.accuracy import Case
from benchmarks.verdicts import Change, changes
from gpuprof.diagnosis.idle.gaps import find_gaps
from gpuprof.diagnosis.idle.hidden_work import hidden_ns
from gpuprof.diagnosis.recorded.shares import Shares, average_step, devices, profiler_cost
from gpuprof.diagnosis.result.diagnosis import Profiler
from gpuprof.diagnosis.verdict.share_verdict import PAUSE_NS, bound_of_shares, judge_shares
from gpuprof.replay.bound import EQUAL_SENSITIVITY, LEAST_SENSITIVITY, bound_of
from gpuprof.replay.build.build import build
from gpuprof.replay.sensitivity import Sensitivities
from gpuprof.replay.unprofiled.host_pace import pace_and_spread
from gpuprof.replay.unprofiled.profiler_cost import recorded_events, recorded_in_window, with_left_out
from gpuprof.timeline.timeline import build_timeline
from gpuprof.tracefile.recording import resolve

MEMORY = {"memory": 1.0}
THRESHOLDS = {
    "LEAST_SENSITIVITY",
    "EQUAL_SENSITIVITY",
    "BALANCED",
    "WAITING_SHARE",
    "EVENT_COST_NS",
}


def found(host=0.0, input=0.0, transfer=0.0, communication=0.0, device=0.0, **parts) -> Sensitivities:
    return Sensitivities(host, input, transfer, communication, device, **parts)


def step(compute=0.0, communication=0.0, copy=0.0, hidden=0.0, pause_ns=0.0, **idle: float) -> Shares:
    """A step of 100 ms; arguments are shares of it."""
    ms = {cause: 1e8 * share for cause, share in idle.items()}
    return Shares(0, 1e8, 1e8 * compute, 1e8 * communication, 1e8 * copy, ms, pause_ns, 1e8 * hidden)


def decides(**absent: float):
    return lambda name: absent[name]


@pytest.mark.parametrize(
    ("gains", "absent", "bound"),
    [
        (found(host=0.9, device=0.1), None, "host"),
        (found(host=LEAST_SENSITIVITY - 0.01, device=LEAST_SENSITIVITY - 0.02), None, "balanced"),
        (found(host=0.5, input=0.5 - EQUAL_SENSITIVITY / 2), None, "balanced"),
        (found(host=0.5, input=0.5 - EQUAL_SENSITIVITY / 2), decides(host=0.3, input=0.6), "input"),
        (found(host=0.5, input=0.5 - EQUAL_SENSITIVITY / 2), decides(host=0.6, input=0.6), "balanced"),
        (found(host=0.5, input=0.48, transfer=0.46), decides(host=0.3, input=0.4, transfer=0.6), "transfer"),
        # Half the GPU's time gains as much as none of it: then the CPU binds, and no more is to be had.
        (found(input=0.41, device=0.52), decides(input=0.41, device=0.26), "input"),
        (found(input=0.41, device=0.52), decides(input=0.41, device=0.52), "memory"),
        (found(host=0.53, input=0.41), decides(host=0.42, input=0.41), "host"),
        (found(host=0.15), decides(host=0.08), "host"),
        (found(device=0.9), None, "memory"),
        (found(device=0.9, compute=0.1, memory=0.2, latency=0.0), None, None),
        (found(device=0.9, compute=0.4, memory=0.42, latency=0.0), None, "balanced"),
        (found(device=0.9, compute=0.1, memory=0.2, latency=0.5), None, "latency"),
    ],
)
def test_what_binds(gains, absent, bound):
    assert bound_of(gains, absent) == bound


@pytest.mark.parametrize(
    ("shares", "bound"),
    [
        (step(compute=0.75, launch=0.25), "memory"),
        (step(compute=0.4, launch=0.3, python=0.3), "host"),
        (step(compute=0.3, input=0.5, launch=0.2), "input"),
        (step(compute=0.3, copy=0.3, transfer=0.3, launch=0.1), "transfer"),
        (step(compute=0.3, communication=0.6, launch=0.1), "communication"),
        (step(compute=0.49, launch=0.51), "balanced"),
        (step(compute=0.4, device=0.6, pause_ns=PAUSE_NS / 10), "latency"),
        (step(compute=0.4, device=0.6, pause_ns=PAUSE_NS * 10), None),
        (step(compute=0.7, unknown=0.3), "memory"),
        (step(compute=0.5, launch=0.3, unknown=0.2), None),
        (step(compute=0.1, launch=0.6, unknown=0.3), "host"),
        (step(compute=0.2, communication=0.25, unknown=0.55), None),
        # The critical path is the host's throughout.
        (step(compute=0.75, launch=0.25, hidden=0.75), "host"),
        (step(compute=0.97, launch=0.03, hidden=0.97), "memory"),
    ],
)
def test_shares_of_a_step(shares, bound):
    assert bound_of_shares(shares, MEMORY) == bound


@pytest.mark.parametrize("synchronized", [False, True])
def test_a_quarter_of_the_step_waits_for_the_host(synchronized: bool, tmp_path: Path):
    """A host that launches without waiting delays the device throughout; one that waits for each kernel only in
    between. Both steps have the same shares, but different things would shorten them."""
    program = Program()

    def body() -> None:
        for _ in range(100):
            if synchronized:
                program.op("aten::mul", PLAIN, 480 * US, host=140 * US)
                program.synchronize()
            else:
                program.op("aten::mul", PLAIN, 480 * US, host=640 * US)

    for _ in range(4):
        program.step(body)
    case = case_of(program.trace.write(tmp_path / "trace.json"), as_recorded=True)
    timeline = case.timeline
    gaps = find_gaps(timeline)
    (device,) = devices(timeline, gaps)
    shares = average_step(device, 4)
    assert shares.busy_ns / shares.step_ns == pytest.approx(0.75, abs=0.03)
    shares = replace(shares, hidden_ns=hidden_ns(timeline, gaps, 0) / 4)
    expected = "memory" if synchronized else "host"
    assert bound_of(case.sensitivities) == expected
    assert bound_of_shares(shares, MEMORY) == expected


def test_missing_events_leave_a_verdict_only_to_a_busy_device():
    for shares, bound in ((step(compute=0.3, launch=0.7), None), (step(compute=0.8, launch=0.2), "memory")):
        verdict = judge_shares(shares, MEMORY, None, whole=False, said=("It works.",))
        assert verdict.bound == bound
        assert ("missing" in verdict.summary) == (bound is None)


@pytest.mark.parametrize(
    ("shares", "bound", "said"),
    [
        (step(compute=0.4, launch=0.6), "memory", "without it the step is memory-bound"),
        (step(compute=0.4, launch=0.45, unknown=0.15), "memory", None),
        (step(compute=0.36, launch=0.54, unknown=0.1), None, "without it what limits the step is unclear"),
        (step(compute=0.2, launch=0.8), "host", None),
    ],
)
def test_what_only_the_profiler_explains_is_said(shares, bound, said):
    verdict = judge_shares(shares, MEMORY, Profiler(12_345, 0, 30_000_000, 50_000_000), whole=True, said=())
    assert verdict.bound == bound
    assert (said or "") in verdict.summary
    assert ("12,345" in verdict.summary) == (said is not None)


def test_the_cost_of_the_profiler_is_that_of_the_replay():
    """Counted in the window or around the nodes of the graph, the events, the cost and the interval are the same."""
    trace = resolve(str(ROOT / "tests" / "data" / "unsloth_llama1b.json.gz")).read().trace
    assert trace is not None
    timeline = build_timeline(trace)
    assert timeline is not None
    in_graph, in_window = recorded_events(build(timeline)), with_left_out(recorded_in_window(timeline), timeline)
    for kind in ("ops", "calls", "frames", "kernel_ranges", "graph_nodes"):
        counts = [float(np.sum(getattr(recorded, kind))) for recorded in (in_graph, in_window)]
        assert counts[0] == pytest.approx(counts[1], rel=0.01), kind
    pace, spread = pace_and_spread(timeline)
    steps = len(timeline.steps.start_ns)
    found = devices(timeline, find_gaps(timeline))
    cost = profiler_cost(timeline, found)
    assert cost is not None
    usual = in_graph.cost_ns(pace).sum() / steps
    most = average_step(found[0], steps).host_ns
    for ns, expected in ((cost.low_ns, usual / spread), (cost.typical_ns, usual), (cost.high_ns, usual * spread)):
        assert ns == pytest.approx(min(expected, most), rel=0.01)


def test_no_second_copy_of_the_thresholds():
    """One file defines what is close, small or known well enough."""
    homes: dict[str, list[str]] = {}
    for path in sorted((ROOT / "gpuprof").rglob("*.py")):
        room = path.parent.name
        if room not in ("replay", "projection", "diagnosis", "report"):
            continue
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            targets = node.targets if isinstance(node, ast.Assign) else getattr(node, "target", None)
            for target in targets if isinstance(targets, list) else [targets]:
                for name in ast.walk(target) if target else ():
                    if isinstance(name, ast.Name) and name.id in THRESHOLDS:
                        homes.setdefault(name.id, []).append(f"{room}/{path.name}")
    rule = ["replay/bound.py"]
    assert homes == {"LEAST_SENSITIVITY": rule, "EQUAL_SENSITIVITY": rule}


def test_the_table_of_changes_holds_what_changed_and_nothing_else(tmp_path: Path):
    def write(version: str, bound: str, step_ns: int, there: str) -> None:
        folder = tmp_path / version / "tests~one"
        folder.mkdir(parents=True)
        diagnosis = {
            "verdict": {"bound": bound, "cause": "launch" if bound == "host" else None},
            "steps": {"estimated_ns": step_ns}, "budget": None, "profiler": None,
            "ranks": [{"rank": 0, "bound": "memory", "cause": None, "pace_ns": 5_000_000}],
        }  # fmt: skip
        gpu = {"gpu": "B200", "bound": there, "step_ns": {"expected": 4_000_000}}
        (folder / "diagnosis.json").write_text(json.dumps(diagnosis))
        (folder / "projection.json").write_text(json.dumps({"gpus": [gpu]}))

    write("before", "host", 80_000_000, "host")
    write("after", "memory", 80_000_001, "balanced")
    known = {"tests~one": Case("one", tmp_path, (70.0, 90.0), ("host",), "launch")}
    assert list(changes(tmp_path / "before", tmp_path / "after", known)) == [
        Change("tests/one", "verdict", "host (launch)", "memory", "host (launch)"),
        Change("tests/one", "B200: verdict", "host", "balanced", "–"),
    ]
    assert not list(changes(tmp_path / "before", tmp_path / "before", known))
