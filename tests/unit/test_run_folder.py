"""`gpuprof diagnose RUN`: the unprofiled step of a run, the facts in its folder, and incomplete folders."""

from __future__ import annotations

import json
import math
import os
import shutil
from pathlib import Path

import pytest
from helpers.make_diagnosis import HOSTILE
from helpers.make_run import BEGUN_NS, MS, WINDOW_NS, RunBuilder, three_steps, usual_run
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT
from helpers.present import present
from helpers.run_facts import facts, issues
from helpers.valid_json import VALIDATOR, is_valid

import gpuprof
from gpuprof.cli import main
from gpuprof.diagnosis import diagnose as diagnosing
from gpuprof.diagnosis.result.diagnosis import Diagnosis
from gpuprof.diagnosis.run.run_facts import run_facts
from gpuprof.diagnosis.run.run_issues import run_issues
from gpuprof.diagnosis.written.diagnosis_json import to_json
from gpuprof.errors import GpuprofError, UnreadableTrace
from gpuprof.report.notebook import diagnosis_html
from gpuprof.report.page import content
from gpuprof.report.terminal.terminal import plain
from gpuprof.report.words import words
from gpuprof.report.words.words import label
from gpuprof.tracefile.recording import resolve
from gpuprof.tracefile.run_folder.run import RunFolder, read_run
from gpuprof.tracefile.run_folder.run_paths import latest_run


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    return three_steps(tmp_path_factory.mktemp("trace") / "steps.json")


@pytest.fixture(scope="module")
def usual(small, tmp_path_factory) -> Path:
    """A whole run around a small recording: 10 ms recorded, 7 ms free-running, 9 ms synchronised like the recorded
    steps."""
    return usual_run(7.0).write(tmp_path_factory.mktemp("run") / "gpuprof-runs" / "2026-11-21_101500_train", small)


def test_what_the_run_says(tmp_path):
    run = facts(usual_run(81.0), tmp_path).run
    assert (run.status, run.steps_seen, run.steps_total, run.remaining_ns) == ("finished", 40, 1000, 0)
    result = run.baseline
    assert (result.free_ns, result.free_steps, result.equal_work, result.fitted) == (81 * MS, 10, True, False)
    assert result.synchronised_ns == 83 * MS and result.synchronised_steps == 10
    assert result.free_low_ns and result.free_high_ns and result.free_low_ns < 81 * MS < result.free_high_ns
    assert run.throughput.tokens_per_s == pytest.approx(128 / 0.081, rel=0.01)
    assert run.throughput.samples_per_s == pytest.approx(1 / 0.081, rel=0.01)
    assert run.memory.peak_bytes == 22 * 2**30
    assert run.telemetry and run.telemetry.samples == 8 and run.telemetry.gpus[0].power_w == 310


def test_an_option_goes_before_the_run(usual):
    steps = gpuprof.diagnose(usual, step_ms=8).steps
    assert steps and steps.unprofiled_ns == 8 * MS


def test_a_loaded_trace_is_taken_with_its_run(usual):
    trace = gpuprof.load(usual)
    steps = gpuprof.diagnose(trace).steps
    assert steps and steps.unprofiled_ns == 9 * MS


@pytest.mark.parametrize("path", ["..", "../latest", "trace.rank0.json", "manifest.json"])
def test_paths_that_mean_a_run(usual, path, tmp_path):
    if not (usual.parent / "latest").exists():
        (usual.parent / "latest").symlink_to(usual.name)
    run = resolve(usual / path).read().run
    assert run and run.own.steps_total == 1000


def test_a_run_without_steps_is_the_latest_only_where_there_is_no_other(usual: Path, tmp_path: Path):
    """A run without steps has a manifest; `latest` does not lead to it, and may be missing."""
    empty = tmp_path / "2026-11-24_120000_b"
    empty.mkdir()
    shutil.copyfile(usual / "manifest.json", empty / "manifest.json")
    assert latest_run(tmp_path) == empty
    shutil.copytree(usual, tmp_path / "2026-11-23_120000_a")
    assert latest_run(tmp_path) == tmp_path / "2026-11-23_120000_a"


def test_without_a_path_it_is_the_latest_run(usual, monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(usual.parent.parent)
    assert main(["diagnose"]) == 0
    assert " 67 %   7.0 ms a step\n" in capsys.readouterr().out
    assert Path(gpuprof.diagnose().source.path).samefile(usual)
    monkeypatch.chdir(tmp_path)
    assert main(["diagnose"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "gpuprof trace" in said


def test_other_folders_are_what_they_were(tmp_path):
    (tmp_path / "trace.json").write_text("{}")
    with pytest.raises(UnreadableTrace, match=r"is a folder.*such as trace\.json"):
        gpuprof.diagnose(tmp_path)


def test_the_trace_of_the_lowest_rank(small, tmp_path):
    for rank in (2, 1):
        run = RunBuilder(rank, 4).stage("baseline_free", [9.0] * 5).stage("trace", [10.0] * 3)
        run.write(tmp_path, small)
    recording = resolve(tmp_path).read()
    assert recording.run and recording.run.rank == 1
    assert recording.trace and recording.trace.reading.path.endswith("trace.rank1.json")
    other = resolve(tmp_path / "trace.rank2.json").read()
    assert other.run and other.run.rank == 2


def test_throughput_is_of_all_ranks(tmp_path):
    run = RunBuilder(0, 4).stage("baseline_free", [100.0] * 5).stage("trace", [110.0] * 3)
    throughput = facts(run, tmp_path).run.throughput
    assert throughput.tokens_per_s == pytest.approx(4 * 1280)
    assert throughput.samples_per_s == pytest.approx(40)


def test_the_share_of_padding_is_that_of_all_steps(tmp_path):
    run = RunBuilder().stage("settle", [100.0] * 2, tokens=[100, 300], real_tokens=60)
    run.stage("baseline_free", [100.0] * 3, tokens=200).stage("trace", [110.0], tokens=100, real_tokens=80)
    work = facts(run, tmp_path).run.work
    assert work.real_tokens == 80
    assert work.real_share == pytest.approx((60 + 60 + 80) / (100 + 300 + 100)), "where both are known"
    assert facts(RunBuilder().stage("trace", [110.0]), tmp_path / "none").run.work.real_share is None


def test_padding_is_reported(tmp_path):
    run = RunBuilder().stage("baseline_free", [100.0] * 5, real_tokens=96).stage("trace", [110.0] * 3)
    throughput = facts(run, tmp_path).run.throughput
    assert throughput.tokens_per_s == pytest.approx(960) and throughput.padded_tokens_per_s == pytest.approx(1280)


def test_what_remains(tmp_path):
    run = RunBuilder().stage("baseline_free", [100.0] * 5).stage("trace", [150.0] * 5)
    run.manifest["status"] = "running"
    assert facts(run, tmp_path).run.remaining_ns == 990 * 100 * MS
    assert facts(run.stage("after", [120.0] * 60), tmp_path).run.remaining_ns == 930 * 120 * MS


def test_synchronised_steps_are_compared_with_synchronised_ones(small, tmp_path):
    run = RunBuilder().stage("baseline_free", [8.0] * 5).stage("baseline_sync", [9.0] * 5).stage("trace", [10.0] * 3)
    steps = gpuprof.diagnose(run.write(tmp_path, small)).steps
    assert steps and steps.unprofiled_ns == 9 * MS


def test_an_unlike_baseline_is_reported(small, tmp_path):
    run = RunBuilder().stage("baseline_free", [40.0] * 5).stage("trace", [10.0] * 3)
    diagnosis = is_valid(gpuprof.diagnose(run.write(tmp_path, small)))
    assert issues(diagnosis)["baseline_mismatch"] == "warning"


def test_the_users_own_profiler(tmp_path):
    run = RunBuilder().stage("baseline_free", [200.0] * 4, profiled=True).stage("baseline_free", [100.0] * 3)
    found = facts(run.stage("trace", [220.0] * 3), tmp_path)
    assert found.unprofiled and found.unprofiled.ns == 100 * MS
    assert issues(found)["baseline_profiled"] == "warning"


def test_no_baseline_at_all(small, tmp_path):
    run = RunBuilder().stage("settle", [20.0]).stage("trace", [10.0] * 3)
    diagnosis = is_valid(gpuprof.diagnose(run.write(tmp_path, small)))
    assert diagnosis.steps and diagnosis.steps.unprofiled_ns is None
    assert issues(diagnosis)["no_baseline"] == "info"


@pytest.mark.parametrize(
    ("reason", "expected"),
    [
        ("hw_thermal", {"throttled": "warning"}),
        ("sw_thermal_slowdown", {"throttled": "warning"}),
        ("hw_power_brake", {"throttled": "warning"}),
        ("sw_power_cap", {"throttled": "info"}),
        ("gpu_idle", {}),
    ],
)
def test_a_clock_that_is_held_back(tmp_path, reason, expected):
    run = RunBuilder().stage("settle", [1000.0])
    for k in range(4):  # before the baseline, so ignored
        run.sample(BEGUN_NS + k * 100 * MS, ("hw_thermal",))
    begun = run.now_ns
    run.stage("baseline_free", [100.0] * 10).stage("trace", [160.0] * 3)
    for k in range(1, 5):
        run.sample(begun + k * 200 * MS, (reason,) if k % 2 else (), sm_mhz=1000 + k)
    found = facts(run, tmp_path)
    assert issues(found) == expected
    gpu = found.run.telemetry and found.run.telemetry.gpus[0]
    assert gpu and gpu.throttled == {reason: 0.5}
    assert gpu.sm_mhz == 1002.5 and gpu.sm_mhz_max_seen == 1980


def test_modules_that_lora_has_not_reached(tmp_path):
    run = RunBuilder().stage("baseline_free", [80.0] * 4)
    run.rank["model"] = {"lora": {"r": 8, "requested": ["q_proj", "gate_up_proj"], "adapted": {"q_proj": 24}}}
    found = facts(run, tmp_path)
    assert "gate_up_proj" in next(issue.message for issue in run_issues(found) if issue.id == "lora_not_adapted")


@pytest.mark.parametrize(
    ("status", "exit_", "stages", "says"),
    [
        ("killed", {"code": None, "signal": 9}, ["settle", "baseline_free"], "ended by SIGKILL after step 8"),
        ("failed", {"code": 1, "signal": None}, [], "exit code 1 before a step was seen"),
        ("finished", {"code": 0, "signal": None}, ["settle"], "before the recording began"),
        ("finished", {"code": 0, "signal": None}, ["settle", "trace", "after"], "was not written or is gone"),
        ("finished", {"code": 0, "signal": None}, ["settle", "trace", "sampling"], "was not written or is gone"),
        ("running", None, ["settle", "baseline_free"], "no trace yet"),
    ],
)
def test_a_run_without_a_trace(tmp_path, capsys, status, exit_, stages, says):
    run = RunBuilder()
    for stage in stages:
        run.stage(stage, [80.0] * 4)
    run.manifest |= {"status": status, "exit": exit_}
    run.write(tmp_path, None)
    (tmp_path / "trace.rank0.json.partial").write_text('{"traceEv' if status == "running" else "")
    diagnosis = is_valid(gpuprof.diagnose(tmp_path))
    assert diagnosis.quality.status == "unusable" and diagnosis.verdict.bound is None
    assert diagnosis.run and diagnosis.run.status == status
    assert main(["diagnose", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert err == "" and out.startswith("NO TRACE")
    assert says in " ".join(out.split())


def test_a_leftover_is_read_as_far_as_it_goes(small, tmp_path):
    run = RunBuilder().stage("baseline_free", [9.0] * 5).stage("trace", [10.0] * 3)
    run.manifest["status"] = "killed"
    run.write(tmp_path, None)
    text = small.read_bytes()
    (tmp_path / "trace.rank0.json.partial").write_bytes(text[: len(text) * 9 // 10])
    diagnosis = is_valid(gpuprof.diagnose(tmp_path))
    assert issues(diagnosis)["truncated"] == "warning"
    with pytest.raises(GpuprofError, match="has no trace"):
        (tmp_path / "trace.rank0.json.partial").unlink()
        gpuprof.load(tmp_path)


def test_neither_a_trace_nor_a_run():
    with pytest.raises(GpuprofError):
        diagnosing.diagnose(None)


def test_hostile_names_are_text(small, tmp_path):
    run = RunBuilder().stage("baseline_free", [9.0] * 4).stage("trace", [10.0] * 3)
    run.rank |= {"notes": [HOSTILE], "step_source": HOSTILE, "torch": HOSTILE, "packages": {HOSTILE: HOSTILE}}
    run.rank["model"] = {
        "class": HOSTILE, "type": HOSTILE, "parameters": 1, "attention": HOSTILE, "wrapper": HOSTILE,
        "dtypes": {HOSTILE: 3}, "quantization": {"method": HOSTILE}, "lora": {"adapted": {HOSTILE: 1}},
    }  # fmt: skip
    run.rank["optimizer"] = {"class": HOSTILE}
    run.manifest |= {"status": "failed", "exit": {"code": None, "signal": HOSTILE}}
    run.sample(BEGUN_NS + MS, (HOSTILE,)).sample(BEGUN_NS + 2 * MS, (f"thermal {HOSTILE}",))
    diagnosis = is_valid(gpuprof.diagnose(run.write(tmp_path, small)))
    for width in (40, 80, 132):
        shown = plain(diagnosis, width)
        assert all(char.isprintable() for row in shown.splitlines() for char in row)
    assert "<script>" not in diagnosis_html(diagnosis)


def test_numbers_that_cannot_be(tmp_path):
    run = RunBuilder().stage("baseline_free", [80.0] * 4).stage("trace", [160.0] * 3)
    for step, junk in zip(run.steps, (math.nan, math.inf, 10**400, -5, True, "9", None), strict=True):
        step |= {"ns": junk, "tokens": junk, "peak_bytes": junk}
    text = "\n".join(json.dumps(step) for step in run.steps)
    (run.write(tmp_path, None) / "steps.jsonl").write_text(text)
    folder = read_run(tmp_path)
    assert len(folder.steps) == 0
    assert run_facts(folder).run.baseline.free_ns is None


def test_pipes_and_links_are_not_waited_for(small, tmp_path):
    RunBuilder().stage("baseline_free", [9.0] * 4).write(tmp_path, small)
    for name in ("steps.jsonl", "telemetry.jsonl", "rank0.json"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    (tmp_path / "rank1.json").symlink_to("rank1.json")
    assert gpuprof.diagnose(tmp_path).devices


def test_a_folder_that_was_moved(usual, tmp_path):
    copy = shutil.copytree(usual, tmp_path / "elsewhere")
    folder = read_run(copy)
    assert isinstance(folder, RunFolder) and folder.trace == copy / "trace.rank0.json"
    assert ROOT not in present(folder.trace).parents


def test_a_training_on_the_cpu_gets_no_advice_on_recording_a_gpu(tmp_path):
    builder = TraceBuilder(gpus=0)
    for i in range(3):
        builder.step(i, i * WINDOW_NS, (i + 1) * WINDOW_NS).op("aten::mm", i * WINDOW_NS, i * WINDOW_NS + MS)
    recording = builder.write(tmp_path / "cpu.json")
    run = RunBuilder().stage("baseline_free", [9.0] * 4, device_ns=None).stage("trace", [10.0] * 3)
    run.rank["gpu"] = None
    diagnosis = is_valid(gpuprof.diagnose(run.write(tmp_path / "run", recording)))
    assert diagnosis.steps and diagnosis.steps.unprofiled_ns == 9 * MS
    (said,) = (issue for issue in diagnosis.quality.issues if issue.id == "no_gpu_events")
    assert said.severity == "info" and "ran on the CPU" in said.message
    assert label(diagnosis).startswith("HOST-BOUND")


def test_a_recording_that_ended_within_its_first_step_is_said_to(small, tmp_path):
    run = RunBuilder().stage("baseline_free", [7.0] * 8).stage("trace", [])
    run.manifest |= {"status": "failed", "exit": {"code": 1, "signal": None}}
    assert issues(gpuprof.diagnose(run.write(tmp_path, small)))["no_whole_step"] == "warning"


def every_fifth(cause: str) -> RunBuilder:
    """Steps of 9 ms, where every fifth takes 50 ms more for something that the recorder measures."""
    run = RunBuilder().stage("baseline_free", [9.0, 9.0, 9.0, 9.0, 59.0] * 4, device_ns=None)
    for step in run.steps[4::5]:
        step[f"{cause}_ns"] = 50 * MS
    return run


def on_cpu(folder: Path, run: RunBuilder) -> Diagnosis:
    builder = TraceBuilder(gpus=0)
    for i in range(3):
        builder.step(i, i * WINDOW_NS, (i + 1) * WINDOW_NS).op("aten::mm", i * WINDOW_NS, i * WINDOW_NS + MS)
    run.stage("trace", [10.0] * 3).rank["gpu"] = None
    return is_valid(gpuprof.diagnose(run.write(folder / "run", builder.write(folder / "cpu.json"))))


def test_a_training_on_the_cpu_is_headed_by_its_mean_step(tmp_path):
    """Just like one on a GPU, as evaluations cost time as well."""
    diagnosis = on_cpu(tmp_path, every_fifth("evaluation"))
    assert (words.step_time(diagnosis), words.usual_step(diagnosis)) == ("19 ms a step", "usually 9.0 ms")
    assert "Evaluation adds 10 ms to the mean step (4 of 20 timed steps" in diagnosis.verdict.summary
    assert content.tiles(diagnosis)[0].note == "usually 9.0 ms"


def test_a_training_on_the_cpu_says_what_every_step_waits_for(tmp_path):
    diagnosis = on_cpu(tmp_path, RunBuilder().stage("baseline_free", [9.0] * 8, device_ns=None, data_ns=7 * MS))
    said = "Preparing batches takes 7.0 ms of the mean step,"
    assert diagnosis.verdict.summary.startswith(said) and words.summary(diagnosis).startswith(said)


def test_a_run_without_a_trace_is_headed_by_its_mean_step(tmp_path):
    diagnosis = is_valid(gpuprof.diagnose(every_fifth("save").write(tmp_path, None)))
    assert label(diagnosis) == "NO TRACE"
    assert (words.step_time(diagnosis), words.usual_step(diagnosis)) == ("19 ms a step", "usually 9.0 ms")


def test_steps_beyond_the_last_line_count(tmp_path):
    run = RunBuilder().stage("baseline_free", [80.0] * 4)
    run.rank["steps_seen"] = 700
    assert facts(run, tmp_path).run.steps_seen == 700


def test_the_run_is_in_the_json(usual, capsys):
    assert main(["diagnose", str(usual), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["run"]["model"]["lora"]["r"] == 16
    assert found == to_json(gpuprof.diagnose(usual))
    longer = {**found, "run": {**found["run"], "more": 1}}
    assert list(VALIDATOR.iter_errors(longer))


def test_a_trainers_schedule(tmp_path):
    """Saves that did not occur in the timed steps are unknown, and never 0."""
    run = RunBuilder().stage("baseline_free", [80.0] * 12).stage("trace", [160.0] * 3)
    run.rank["intervals"] = {"save": 500, "logging": 10, "nonsense": 1, "evaluation": -3}
    run.steps[3]["logging_ns"] = 2 * MS
    run.steps[3]["device_ns"] += 2 * MS
    found = facts(run, tmp_path).budget
    assert found is not None
    excess = {one.cause: one for one in found.excess}
    assert set(excess) == {"save", "logging"}
    assert (excess["save"].mean_ns, excess["save"].every) == (None, 500)
    assert excess["logging"].mean_ns == round(2 * MS / 10)
