"""`gpuprof attach` records steps of trainings that run, and leaves them as they were."""

from __future__ import annotations

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from helpers.armed_job import TRAINS, ArmedJob, attach, job, variables
from helpers.installed import need
from helpers.run_schema import errors_in
from jsonschema import Draft202012Validator

from gpuprof.attach.jobs_json import schema

need("torch")


@pytest.fixture(scope="module")
def armed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ArmedJob]:
    with job(tmp_path_factory.mktemp("armed")) as running:
        running.wait_for()
        os.kill(running.pid, signal.SIGUSR1)  # longer steps, so that it trains for as long as these tests take
        yield running


def test_armed_jobs_are_listed_with_rate_and_progress(armed: ArmedJob):
    document = json.loads(armed.attach("--json").stdout)
    Draft202012Validator(schema()).validate(document)
    (one,) = [one for one in document["jobs"] if one["pid"] == armed.pid]
    assert one["step"] > 0 and 1e5 < one["step_ns"] < 1e9 and one["rank"] == 0
    text = armed.attach().stdout
    assert str(armed.pid) in text and "armed_job.py" in text and "steps/s" in text


def test_records_and_leaves(armed: ArmedJob):
    found = armed.attach(armed.pid, "--no-report", "--json")
    diagnosis = json.loads(found.stdout)
    assert diagnosis["schema"] == "gpuprof.diagnosis/1", found.stderr
    assert "recording into" in found.stderr
    run = armed.folder / "gpuprof-runs" / "latest"
    assert not errors_in(run)
    facts = json.loads((run / "rank0.json").read_text())
    assert facts["pid"] == armed.pid and [one["window"] for one in facts["windows"]] == ["trace"]
    stages = [stage["stage"] for stage in facts["stages"]]
    assert stages[:4] == [
        "settle",
        "baseline_free",
        "baseline_sync",
        "warmup",
    ]  # recorded first
    assert "sampling" in stages[4:]
    assert any("recorded on demand" in note for note in facts["notes"])
    assert json.loads((run / "manifest.json").read_text())["status"] == "finished"
    assert list(run.glob("trace.rank0.json.gz"))
    armed.wait_for(state="armed")


def test_two_attachers(armed: ArmedJob):
    first = [sys.executable, "-m", "gpuprof", "attach", str(armed.pid), "--no-report", "--baseline", "100000"]
    with subprocess.Popen(first, cwd=armed.folder, env=variables(), stderr=subprocess.PIPE, text=True) as one:
        armed.wait_for(state="recording")
        second = armed.attach(armed.pid)
        assert (second.returncode, second.stderr.count("\n")) == (2, 1)
        assert f"is being recorded already, by the gpuprof attach of process {one.pid}" in second.stderr
        one.send_signal(signal.SIGINT)
        assert one.wait(30) == 130
        assert one.stderr and "called off" in one.stderr.read()
    armed.wait_for(state="armed")


@pytest.mark.slow
def test_a_run_folder_stands_for_its_process(armed: ArmedJob, tmp_path: Path):
    (tmp_path / "rank0.json").write_text(json.dumps({"pid": armed.pid}))
    found = armed.attach(tmp_path, "--no-report", "--steps", "1", "--baseline", "2")
    assert "recording into" in found.stderr
    armed.wait_for(state="armed")


@pytest.mark.slow
@pytest.mark.parametrize("how", ["code", "joined"])
def test_armed_in_its_code_or_joined(how: str, tmp_path: Path):
    """Its steps afterwards call the same functions and take the CPU as long as before; nothing is left in torch."""
    with job(tmp_path, how) as running:
        running.wait_for()
        time.sleep(1)
        found = running.attach(running.pid, "--no-report", "--baseline", "3")
        assert ": recording into" in found.stderr, found.stderr
        step = json.loads((tmp_path / "gpuprof-runs/latest/rank0.json").read_text())["notes"][0]
        time.sleep(2)
        said = json.loads(running.end())
    begun = int("".join(c for c in step.split("taken ")[1].split(" steps")[0] if c.isdigit()))
    before, after = said["steps_ns"][25:begun], said["steps_ns"][-300:]
    assert len(before) > 50
    # The lower quartile: other processes only make steps longer. benchmarks/armed.py measures it on a quiet machine.
    assert statistics.quantiles(after)[0] < 1.5 * statistics.quantiles(before)[0]
    calls = {int(step): count for step, count in said["calls"].items()}
    earlier = [count for step, count in calls.items() if 50 < step < begun]
    later = [count for step, count in calls.items() if step > len(said["steps_ns"]) - 300]
    assert earlier and later
    if how == "code":
        assert statistics.median(later) == statistics.median(earlier)
    else:  # it was armed for the recording only, so the counting is gone too
        assert statistics.median(later) < statistics.median(earlier)
    stay = ("optimizer", "finders") if how == "code" else ()
    assert said["left"] | {name: said["untouched"][name] for name in stay} == said["untouched"]


@pytest.mark.slow
def test_a_job_can_be_joined_again(tmp_path: Path):
    """A job that was left is recorded a second time: it runs the file that gpuprof attach has it run."""
    with job(tmp_path, "joined") as running:
        for again in (False, True):
            if again:
                os.kill(running.pid, signal.SIGUSR2)
            running.wait_for()
            found = running.attach(running.pid, "--no-report", "--steps", "1", "--baseline", "2")
            assert ": recording into" in found.stderr, found.stderr
            running.wait_for(0)
        said = json.loads(running.end())
    assert said["left"] == said["untouched"]


@pytest.mark.skipif(not hasattr(sys, "remote_exec"), reason="this Python has no sys.remote_exec")
def test_a_training_that_is_not_armed_is_joined(tmp_path: Path):
    with job(tmp_path, "plain") as running:
        while not (tmp_path / TRAINS).exists():
            time.sleep(0.2)
            assert running.process.poll() is None
        assert not running.listed()
        for _ in range(2):
            found = running.attach(running.pid, "--no-report", "--steps", "1", "--baseline", "2")
            assert "is joined" in found.stderr and ": recording into" in found.stderr, found.stderr
            running.wait_for(0)
        said = json.loads(running.end())
    assert said["left"] == said["untouched"]


@pytest.mark.slow
def test_the_job_ends(tmp_path: Path):
    with job(tmp_path) as running:
        running.wait_for()
        words = [sys.executable, "-m", "gpuprof", "attach", str(running.pid), "--baseline", "100000"]
        with subprocess.Popen(words, cwd=tmp_path, env=variables(), stderr=subprocess.PIPE, text=True) as one:
            running.wait_for(state="recording")
            os.kill(running.pid, signal.SIGKILL)
            assert one.wait(30) == 2 and one.stderr
            assert (
                one.stderr.read()
                .splitlines()[-1]
                .endswith(f"process {running.pid} ended before its steps were recorded: nothing is diagnosed")
            )
        again = running.attach(running.pid)
        assert again.returncode == 2 and f"there is no process {running.pid}" in again.stderr
        assert not running.listed()


@pytest.mark.slow
def test_ranks_record_the_same_steps(tmp_path: Path):
    with job(tmp_path, ranks=2) as running:  # by torchrun
        jobs = running.wait_for(2)
        assert {(one["rank"], one["world_size"]) for one in jobs} == {(0, 2), (1, 2)}
        found = running.attach(running.pid, "--no-report", "--baseline", "3")  # the launcher stands for its ranks
        assert "2 of 2 ranks" in found.stderr, found.stderr
        facts = [json.loads((tmp_path / f"gpuprof-runs/latest/rank{rank}.json").read_text()) for rank in (0, 1)]
        assert len({one["notes"][0] for one in facts}) == 1
        assert len({json.dumps([(w["first_step"], w["steps"]) for w in one["windows"]]) for one in facts}) == 1
        running.wait_for(2)


TRAINER = """
import torch
from transformers import Trainer, TrainingArguments

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 8)

    def forward(self, x=None, labels=None):
        return {"loss": (self.layer(x) - labels).square().mean()}

data = [{"x": torch.ones(8), "labels": torch.ones(8)} for _ in range(64)]
arguments = TrainingArguments(
    output_dir="out", max_steps=1_000_000, per_device_train_batch_size=4, report_to=[], disable_tqdm=True,
    save_strategy="no", logging_strategy="no", gradient_accumulation_steps=2, use_cpu=True,
)
Trainer(Model(), arguments, train_dataset=data).train()
"""


@pytest.mark.slow
def test_a_trainer_says_what_a_step_is_and_how_many_there_are(tmp_path: Path):
    need("transformers", "accelerate")
    (tmp_path / "train.py").write_text(TRAINER, encoding="utf-8")
    words = [sys.executable, "-m", "gpuprof", "trace", "--on-demand", "train.py"]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen(words, cwd=tmp_path, env=variables(), **quiet) as process:
        try:
            running = ArmedJob(process, tmp_path)
            (one,) = running.wait_for()
            assert one["total"] == 1_000_000 and 0 < one["step"] < 1_000_000
            found = running.attach(process.pid, "--no-report", "--baseline", "3")
            assert ": recording into" in found.stderr, found.stderr
            facts = json.loads((tmp_path / "gpuprof-runs/latest/rank0.json").read_text(encoding="utf-8"))
            assert facts["step_source"] == "trainer" and 0 < facts["steps_total"] < 1_000_000
            lines = (tmp_path / "gpuprof-runs/latest/steps.jsonl").read_text(encoding="utf-8").splitlines()
            assert {step["micro_steps"] for step in map(json.loads, lines)} == {2}
        finally:
            process.kill()


def line(found: subprocess.CompletedProcess[str]) -> str:
    """The one line that a command prints when it cannot attach."""
    assert found.returncode == 2 and found.stderr.count("\n") == 1 and not found.stdout, found.stderr
    return found.stderr


def test_processes_that_cannot_be_attached_to(tmp_path: Path):
    code = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with (
        subprocess.Popen(code, stdin=subprocess.PIPE, env=variables()) as python,
        subprocess.Popen(["sleep", "60"]) as program,
        subprocess.Popen(code, stdin=subprocess.PIPE, env=variables() | {"GPUPROF_ON_DEMAND": "1"}) as waiting,
    ):
        time.sleep(0.5)
        assert "has not loaded torch" in line(attach(tmp_path, python.pid))
        assert "(sleep) is no Python" in line(attach(tmp_path, program.pid))
        assert "is armed, and has taken no optimizer step yet" in line(attach(tmp_path, waiting.pid))
        for one in (python, program, waiting):
            one.kill()
    assert f"there is no process {program.pid}" in line(attach(tmp_path, program.pid))
    assert "not a run folder that names" in line(attach(tmp_path, tmp_path))
    assert "missing: no such process or folder" in line(attach(tmp_path, tmp_path / "missing"))


def test_another_users_process(tmp_path: Path):
    if os.getuid():
        assert "belongs to user root" in line(attach(tmp_path, 1))
        return
    with subprocess.Popen(["sleep", "60"], user=65534) as other:
        assert "belongs to user" in line(attach(tmp_path, other.pid))
        other.kill()


def test_a_process_in_another_container(tmp_path: Path):
    """The process is in another mount namespace where the system lets us make one."""
    separate = ["unshare", "--mount"] if os.getuid() == 0 else ["unshare", "--user", "--mount"]
    try:
        with subprocess.Popen([*separate, "sleep", "60"], stderr=subprocess.DEVNULL) as other:
            time.sleep(0.5)
            if other.poll() is None:
                assert "runs in another container" in line(attach(tmp_path, other.pid))
                other.kill()
    except FileNotFoundError:
        pass
    from gpuprof.attach.attachable import is_elsewhere

    for place, kind in ((tmp_path / "1" / "ns", 0), (tmp_path / "self" / "ns", 1)):
        place.mkdir(parents=True)
        for name in ("pid", "mnt"):
            (place / name).write_text(str(kind))
    assert is_elsewhere(1, tmp_path) and not is_elsewhere(os.getpid())


def test_nothing_is_recorded_with_options_of_a_recording(tmp_path: Path):
    (tmp_path / "train.py").touch()
    words = [sys.executable, "-m", "gpuprof", "trace", "--on-demand", "--steps", "5", "train.py"]
    found = subprocess.run(words, cwd=tmp_path, env=variables(), capture_output=True, text=True)
    assert "give --steps to gpuprof attach" in line(found)


@pytest.mark.slow
def test_a_watch_records_a_new_level(tmp_path: Path):
    """The usual step is reported first, then its change. A busy machine may cause other changes before that one."""
    with job(tmp_path) as running:
        running.wait_for()
        words = [sys.executable, "-m", "gpuprof", "attach", "--watch", str(running.pid)]
        words += ["--baseline", "2", "--no-report"]
        with subprocess.Popen(words, cwd=tmp_path, env=variables(), stderr=subprocess.PIPE, text=True) as watch:
            try:
                said = said_until(watch, r"the usual step is known; it is recorded")
                said += said_until(watch, r": recording\n")
                running.wait_for(state="armed")
                os.kill(running.pid, signal.SIGUSR1)
                said += said_until(watch, r" ms a step \([3-9]\.\d+×|\(\d\d\.\d+×")
                assert said[-1].endswith("it is recorded\n"), "".join(said)
                said += said_until(watch, r": recording\n")
                running.wait_for(state="armed")
                running.end()
                said += said_until(watch, r"the job has ended after [\d,]+ steps: \d+ changes? of the step time")
                assert watch.wait(30) == 0
            finally:
                watch.kill()
    runs = sorted(path for path in (tmp_path / "gpuprof-runs").iterdir() if not path.is_symlink())
    assert not (runs[0] / "changed.txt").exists()
    assert "ms a step" in (runs[-1] / "changed.txt").read_text(encoding="utf-8")


def said_until(process: subprocess.Popen[str], pattern: str) -> list[str]:
    """The lines on stderr up to the first that matches."""
    said: list[str] = []
    while not said or not re.search(pattern, said[-1]):
        assert process.stderr
        said.append(process.stderr.readline())
        assert said[-1], "".join(said)
    return said
