"""Runs that `gpuprof trace` recorded on an H200, compared with the same programs timed without gpuprof."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from helpers import diagnosed as recordings
from helpers.paths import ROOT
from helpers.present import present
from helpers.run_schema import errors_in
from jsonschema import Draft202012Validator

from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.written.diagnosis_json import dumps, schema
from gpuprof.tracefile.run_folder.run import read_run

RUNS = ROOT / "tests" / "data" / "runs"
TRUTH = json.loads((RUNS / "truth.json").read_text())["programs"]
VERDICTS = {
    "tiny_lora": ("host", "launch"),
    "dense8b_lora": ("memory", None),
    "trainer_lora": ("host", "launch"),
    "trl_sft": ("host", "planning"),
    "unsloth_qlora": ("host", "launch"),
}
LAUNCH_BOUND = [name for name, verdict in VERDICTS.items() if verdict == ("host", "launch")]
VARIES = {"unsloth_qlora": ["baseline_varies"]}
"""Its unprofiled steps of equal work took 299 to 421 ms, and the diagnosis says so."""
KINDS = {"free": "free_ns", "sync": "synchronised_ns"}

OUTSIDE = {
    ("trainer_lora", "free"): "190.4 ms, 6 % below the least p10 (201.8 ms); a second recording: 193.2 ms",
    ("unsloth_qlora", "free"): "333.9 ms, 1 % above the p90 of the only process timed in turns (330.6 ms)",
}
"""Baselines outside the spread of the bare processes, listed here instead of allowing a wider spread."""


def diagnosed(name: str) -> Diagnosis:
    return recordings.diagnosed(RUNS / name)


def baseline_ms(name: str, kind: str) -> float:
    run = diagnosed(name).run
    assert run
    ns = getattr(run.baseline, KINDS[kind])
    assert ns
    return ns / 1e6


def bare(name: str, kind: str) -> list[dict[str, Any]]:
    """Summaries of the processes that took turns with the recorded ones."""
    return [process[kind] for process in TRUTH[name]["interleaved"]]


def steps(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (RUNS / name / "steps.jsonl").read_text().splitlines()]


def test_the_folders_are_those_of_the_truth():
    assert {path.name for path in RUNS.iterdir() if path.is_dir()} == set(VERDICTS) == set(TRUTH)


@pytest.mark.parametrize("name", VERDICTS)
def test_the_folder_is_valid(name):
    assert errors_in(RUNS / name) == []
    rank = json.loads((RUNS / name / "rank0.json").read_text())
    lines = (RUNS / name / "telemetry.jsonl").read_text().splitlines()
    seen = {gpu["uuid"] for line in lines for gpu in json.loads(line)["gpus"]}
    assert seen == {rank["gpu"]["uuid"]} and rank["gpu"]["uuid"].startswith("GPU-")
    assert read_run(RUNS / name).damaged == ()


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict(name):
    diagnosis = diagnosed(name)
    wrong = [error.message for error in Draft202012Validator(schema()).iter_errors(json.loads(dumps(diagnosis)))]
    assert not wrong
    assert (diagnosis.verdict.bound, diagnosis.verdict.cause) == VERDICTS[name]
    assert diagnosis.quality.status == ("degraded" if name in VARIES else "ok")
    assert [issue.id for issue in diagnosis.quality.issues if issue.severity != "info"] == VARIES.get(name, [])
    assert diagnosis.steps and diagnosis.steps.source == "profiler_step" and diagnosis.steps.count == 1


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(
            name, kind, marks=[pytest.mark.xfail(reason=OUTSIDE[name, kind])] if (name, kind) in OUTSIDE else []
        )
        for name in VERDICTS
        for kind in KINDS
    ],
)
def test_the_baseline_is_within_the_spread_of_bare_processes(name, kind):
    """The run's own unprofiled step lies between the least p10 and the greatest p90 of the same program timed bare.

    The spread is wide because hosts are noisy: of one fresh process, the p90 of steps bound by the host is 10 to 50 %
    above their p10 (closed by a synchronisation, up to 2.5 times it), and the medians of two processes of trl_sft,
    minutes apart on one host, differ by 73 to 87 %. Only steps bound by the GPU repeat within 3 %. Nor are these
    steps the same: gpuprof times steps 6 to 25, the bare processes theirs from the 16th on.
    """
    reported, truth = baseline_ms(name, kind), bare(name, kind)
    low, high = min(process["p10"] for process in truth), max(process["p90"] for process in truth)
    assert low <= reported <= high


@pytest.mark.parametrize("name", VERDICTS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_baseline_is_near_that_of_some_bare_process(name, kind):
    """As near as the steps of one program on different hosts, whatever the spread; within 1 % where the GPU binds."""
    reported = baseline_ms(name, kind)
    apart = min(abs(reported / process["median"] - 1) for process in bare(name, kind))
    assert apart < (0.01 if name == "dense8b_lora" else noise_calibrated.MACHINE.value)


@pytest.mark.parametrize("name", LAUNCH_BOUND)
def test_recording_makes_launch_bound_steps_longer(name):
    reported = diagnosed(name).steps
    assert reported and reported.unprofiled_ns and reported.inflation
    assert 1.3 < reported.inflation < 2.5
    assert reported.inflation == pytest.approx(reported.recorded_ns / reported.unprofiled_ns, rel=1e-6)
    assert reported.recorded_ns > 1e6 * min(process["p90"] for process in bare(name, "free"))


def test_recording_costs_a_busy_gpu_little():
    reported = diagnosed("dense8b_lora").steps
    assert reported and reported.inflation and 1 < reported.inflation < 1.1


@pytest.mark.parametrize("name", VERDICTS)
def test_waits_are_found_in_modules(name):
    """Found through the ranges around modules, without Python stacks; in the backward pass through the matching forward
    ops."""
    diagnosis = diagnosed(name)
    assert diagnosis.gaps
    layer = "Qwen2DecoderLayer" if name == "trl_sft" else "LlamaDecoderLayer"
    phases = {part.phase: part for part in diagnosis.gaps.by_phase}
    checkpointed = name in ("dense8b_lora", "trl_sft", "unsloth_qlora")
    assert ("recompute" in phases) == checkpointed
    for phase in ("forward", "backward", "recompute")[: 3 if checkpointed else 2]:
        assert phases[phase].module == layer
    gaps = diagnosis.tables.gaps()
    model = gaps[gaps.phase.isin(["forward", "backward", "recompute"])]
    assert model.ns[model.module.notna()].sum() > 0.85 * model.ns.sum()
    found = set(model.module.dropna())
    layers = json.loads((RUNS / name / "rank0.json").read_text())["model"]["layers"]
    assert {f"nn.Module: {layer}_{k}" for k in range(layers)} <= found


@pytest.mark.parametrize("name", VERDICTS)
def test_the_work_of_steps(name):
    known = [step for step in steps(name) if step["real_tokens"] is not None]
    assert all(0 < step["real_tokens"] <= step["tokens"] for step in known)
    run = diagnosed(name).run
    assert run and run.throughput.padded_tokens_per_s
    if name == "trainer_lora":  # known from its loader's masks
        assert {step["stage"] for step in known} >= {"baseline_free", "baseline_sync", "trace"}
        assert run.work.micro_steps == 2 and run.work.samples == 8
        assert run.work.real_tokens and run.work.real_tokens < present(run.work.tokens) == 2048


@pytest.mark.parametrize("name", VERDICTS)
def test_the_truth_is_what_was_timed(name):
    for process in TRUTH[name]["interleaved"] + TRUTH[name]["another_host"]:
        for kind in KINDS:
            ordered = sorted(process[f"{kind}_ms"])
            reported, count = process[kind], len(ordered)
            assert reported["steps"] == count
            middle = (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
            assert reported["median"] == pytest.approx(middle, abs=2e-3)
            assert (reported["p10"], reported["p90"]) == (ordered[count // 10], ordered[count * 9 // 10])


def test_nothing_names_a_machine():
    places = re.compile(r"/(?!home/user)(tmp|root|opt|home|usr|mnt)\b|host_?name", re.IGNORECASE)
    for path in [*RUNS.glob("*/*.json"), *RUNS.glob("*/*.jsonl")]:
        assert not places.search(path.read_text()), path


@pytest.mark.parametrize("name", VERDICTS)
def test_the_replayed_step_is_the_measured_one(name):
    """The profiler's cost is fitted to the run's baseline, and the step's parts sum to it."""
    diagnosis = diagnosed(name)
    steps = present(diagnosis.steps)
    assert steps.estimated_ns == pytest.approx(steps.unprofiled_ns, rel=0.01)
    (device,) = present(diagnosis.devices_estimated)
    parts = (device.compute_ns, device.communication_ns, device.copy_ns, device.idle_ns)
    assert sum(parts) == device.step_ns == steps.unprofiled_ns
    assert sum(cause.ns for cause in device.idle_by_cause) == device.idle_ns
    assert diagnosis.replay.shown and present(diagnosis.replay.error) < 0.01
    assert diagnosis.findings and all(f.fix and f.evidence for f in diagnosis.findings)
