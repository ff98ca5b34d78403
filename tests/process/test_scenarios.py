"""Scenarios: their metadata, how they are run and timed, and what was measured."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from helpers.finding_pages import PAGES
from helpers.installed import need
from helpers.paths import ROOT
from helpers.quick import OF_EACH_KIND, few
from helpers.run_schema import errors_in
from helpers.started import finished, wait_for
from jsonschema import Draft202012Validator

from benchmarks.accuracy_page import REASONS
from gpuprof.trial.trial_json import schema as trial_schema
from scenarios.catalogue import Scenario, names, scenario, scenarios
from scenarios.support.lengths import DATA, LONGEST, draw
from scenarios.trials import candidates

ALL = list(scenarios())
MEASURED = [entry for entry in ALL if entry.truth is not None]
BOUNDS = {"compute", "memory", "latency", "host", "input", "transfer", "communication", "balanced"}


def python(*words: str, **options) -> subprocess.CompletedProcess[str]:
    return finished([sys.executable, *words], cwd=ROOT, text=True, timeout=250, **options)


@pytest.mark.parametrize("entry", ALL, ids=lambda entry: entry.name)
def test_metadata(entry: Scenario):
    assert set(entry.says) <= BOUNDS and entry.says
    assert entry.title and entry.why.endswith(".")
    assert {fix.finding for fix in entry.fixes} - {None} <= {page.id for page in PAGES}
    assert len(set(entry.variants())) == len(entry.variants())
    if entry.program is not None:
        assert (entry.program.module is None) is not (entry.program.script is None)
        assert (entry.program.version is None) is (entry.program.script is None), "of a script, the commit is given"
        assert all(fix.arguments or fix.environment or fix.patch or fix.edits for fix in entry.fixes)
        assert entry.role == "test" and entry.free, (
            "somebody else's program is never fitted to, and its mean step counts"
        )
        return
    source = (entry.folder / "train.py").read_text(encoding="utf-8")
    assert source.startswith('"""'), "says what is trained, on what"
    assert "def train(run: Run)" in source
    compile(source, entry.name, "exec")


def test_all_are_listed_without_torch():
    code = (
        "import sys; sys.argv[1:] = ['list']; from scenarios.__main__ import main; main();"
        " sys.exit('torch' in sys.modules)"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if line[0] != " "] == names()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        pytest.param(["run", "smal_batch"], "small_batch", marks=pytest.mark.slow),
        (["run", "small_batch", "--fix", "prayer"], "cuda_graphs"),
        pytest.param(["measure", "smal_batch"], "small_batch", marks=pytest.mark.slow),
    ],
)
def test_what_is_missing_is_reported_in_one_line(words: list[str], said: str):
    done = python("-m", "scenarios", *words)
    assert done.returncode == 2 and done.stdout == ""
    assert len(done.stderr.splitlines()) == 1 and said in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["--rounds", "0"],
        *(pytest.param(words, marks=pytest.mark.slow) for words in (["--record"], ["--record", "-1"], ["--as-is"])),
        *(pytest.param(words, marks=pytest.mark.slow) for words in (["--data", "long"], ["--gib", "0"])),
    ],
)
def test_options_that_cannot_be_meant(words: list[str]):
    done = python("-m", "scenarios", "measure", "small_batch", *words)
    assert done.returncode == 2 and words[0] in done.stderr.splitlines()[-1]


@pytest.mark.parametrize("data", DATA)
def test_lengths_have_the_mean_that_is_given(data: str):
    drawn = draw(data, 20_000, seed=3)
    assert statistics.mean(drawn) == pytest.approx(DATA[data].mean, rel=0.02)
    assert max(drawn) <= LONGEST and min(drawn) >= DATA[data].fewest
    assert drawn[:50] == draw(data, 50, seed=3)


PROGRAM = ROOT / "tests" / "helpers" / "stand_in_scenario.py"
STAND_IN = (
    "import sys, scenarios.measure; from scenarios.__main__ import main;"
    f"scenarios.measure.launched = lambda entry: [sys.executable, {str(PROGRAM)!r}];"
    "sys.argv[1:1] = ['measure']; sys.exit(main())"
)
"""`python -m scenarios measure`, with programs that have no model and take steps of a millisecond."""


def test_processes_take_turns(tmp_path: Path):
    """Two rounds, each with the program as it is and with every fix."""
    done = python("-c", STAND_IN, "checkpointing", "--rounds", "2", "--out", str(tmp_path))
    assert done.returncode == 0, done.stderr + done.stdout
    truth = measured(tmp_path / "checkpointing.json")
    assert [process["fix"] for process in truth["processes"]] == ["", "off", "", "off"]


def measured(path: Path) -> dict[str, Any]:
    """What was measured on this machine, after its figures have been checked."""
    truth = json.loads(path.read_text())
    assert truth["machine"]["gpus"] == []
    for process in truth["processes"]:
        assert process["free_ms"] == pytest.approx(statistics.mean(process["free_each_ms"]), abs=0.01)
        assert all(ms > 0 for ms in process["synchronised_ms"])
    return truth


@pytest.mark.slow
def test_a_program_is_timed(tmp_path: Path):
    """On this machine, with a tiny model."""
    need("torch", "transformers", "peft")
    words = ("checkpointing", "--rounds", "1", "--as-is", "--out", str(tmp_path))
    done = python("-m", "scenarios", "measure", *words)
    assert done.returncode == 0, done.stderr + done.stdout
    truth = measured(tmp_path / "checkpointing.json")
    assert truth["versions"]["torch"]
    assert [process["fix"] for process in truth["processes"]] == [""]


@pytest.mark.slow
def test_what_try_can_apply_is_measured_next_to_the_fix_of_the_program(tmp_path: Path):
    need("torch", "transformers", "peft")
    words = ("checkpointing", "--rounds", "1", "--out", str(tmp_path), "--try")
    done = python("-m", "scenarios", "measure", *words, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr + done.stdout
    trial = json.loads((tmp_path / "checkpointing.trial.json").read_text())
    Draft202012Validator(trial_schema()).validate(trial)
    (row,) = trial["rows"]
    assert (row["fixes"][0]["name"], row["status"]) == ("recompute", "unconfirmed")
    assert re.search(r"off +recompute: unconfirmed, [\d.]+×   --fix off: [\d.]+×", done.stdout)


def test_fixes_that_change_a_steps_work_or_are_not_patches_are_not_tried():
    found = {name: str(one.fix) for name, one in candidates(scenario("starved_workers")).items()}
    assert found == {"workers": "input_workers=16", "pinned": "pageable_copies"}
    assert {name: str(one.fix) for name, one in candidates(scenario("recompiles")).items()} == {
        "multiple_of_64": "pad_to_multiple=64"
    }
    assert "batch_8" not in candidates(scenario("small_batch"))
    assert candidates(scenario("ddp_straggler")) == {}


def test_a_process_that_fails_is_reported(tmp_path: Path):
    env = os.environ | {"FAILS": "1"}
    done = python("-c", STAND_IN, "checkpointing", "--rounds", "1", "--out", str(tmp_path), env=env)
    assert done.returncode == 1
    assert "failed: " in done.stdout and "RANK" in done.stdout
    assert json.loads((tmp_path / "checkpointing.json").read_text())["processes"] == []


@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
def test_who_ends_the_measurement_ends_all_that_it_started(tmp_path: Path):
    entry = scenario("small_batch")
    count, program = len(entry.variants()), str(PROGRAM).encode()
    mark = f"MEASURED_INTO={tmp_path}"  # in the environment, which every process passes on to those it starts

    def left() -> list[Path]:
        """The processes in /proc that have the mark."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):  # another user's, or just ended
                if mark.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append(folder)
        return found

    def all_run() -> bool:
        """All processes are there, and those that are timed run their programs."""
        commands = [(each / "cmdline").read_bytes().split(b"\0") for each in left()]
        return len(commands) == 1 + count and sum(command[1:2] == [program] for command in commands) == count

    words = [sys.executable, "-c", STAND_IN, entry.name, "--rounds", "1", "--out", str(tmp_path)]
    measurement = subprocess.Popen(["env", mark, "SLOW=1", *words], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        assert wait_for(all_run, 60)
        measurement.terminate()
        assert measurement.wait(60) == 128 + signal.SIGTERM
        assert wait_for(lambda: not left()), left()  # a killed process takes a moment to disappear
    finally:
        for folder in left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(folder.name), signal.SIGKILL)
        measurement.wait()


@pytest.mark.parametrize("entry", MEASURED, ids=lambda entry: entry.name)
def test_the_truth(entry: Scenario):
    """At least five fresh processes of each variant, or turns of long ones, in rounds, on the GPU that it names."""
    truth = entry.truth
    assert truth and truth["machine"]["gpus"]
    assert all("H200" in gpu or "H100" in gpu for gpu in truth["machine"]["gpus"])
    order, each = [process["fix"] for process in truth["processes"]], len(entry.variants())
    assert len(order) >= (2 if entry.free else 5) * each
    for first in range(0, len(order), each):
        assert sorted(order[first : first + each]) == sorted(entry.variants())
    for fix in entry.fixes:
        before, after = entry.measured_ms(), entry.measured_ms(fix.name)
        assert before and after and before[0] <= before[1] and after[0] <= after[1]
        middle, middle_after = (statistics.median(entry.values_ms(name)) for name in ("", fix.name))
        gains = middle_after / fix.work < before[0]
        if fix.finding is not None:  # what has no prediction need not be as certain
            gains = gains and after[1] / fix.work < middle
        assert gains is fix.gains or entry.steps_differ, "a fix gains more than processes differ"


def test_eight_of_ten_values_are_the_measured_interval():
    entry = scenario("small_batch")
    truth = entry.truth
    assert truth
    compiled = [process for process in truth["processes"] if process["fix"] == "compile"]
    values = [process["free_ms"] for process in compiled]
    values += [statistics.median(process["synchronised_ms"]) for process in compiled]
    low, high = entry.measured_ms("compile") or (0.0, 0.0)
    assert sum(low <= value <= high for value in values) == 8 == len(values) - 2


@pytest.mark.parametrize(
    "entry", few([pytest.param(entry, id=entry.name) for entry in ALL if entry.recording], OF_EACH_KIND)
)
def test_the_recording_is_a_run_of_the_scenario(entry: Scenario):
    assert entry.recording and errors_in(entry.recording) == []
    manifest = json.loads((entry.recording / "manifest.json").read_text())
    command = manifest["command"]
    assert "--fix" not in command
    if entry.program is None:
        assert entry.module in command
    elif entry.program.module is not None:
        assert command[1:] == ["-m", entry.program.module, *entry.program.words()]
    else:
        assert Path(command[1]).name == Path(entry.program.script or "").name
        assert command[2:] == entry.program.words()
    assert manifest["status"] == "finished"
    assert sum(path.stat().st_size for path in entry.recording.iterdir()) < 2_000_000


def test_reasons_are_of_scenarios_and_recordings_that_there_are():
    known = {*names(), *json.loads((ROOT / "tests/data/pairs/truth.json").read_text())["runs"]}
    assert {key.partition(":")[0] for key in json.loads(REASONS.read_text())} <= known | {"tiny_lora_small_batch"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("entry", "fix"),
    [
        pytest.param(entry, fix, id=f"{entry.name}-{fix or 'as it is'}")
        for entry in ALL
        if not {"unsloth", "bitsandbytes", "triton"} & set(entry.needs)  # which need a GPU
        if not (entry.program and entry.program.script)  # which needs a checkout
        for fix in entry.variants()
    ],
)
def test_it_trains_on_a_cpu(entry: Scenario, fix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    need("torch", "transformers", "peft", *entry.needs)
    monkeypatch.setenv("SCENARIO_MATERIAL", str(tmp_path / "material"))
    words = ["--fix", fix] if fix else []
    done = python("-m", "scenarios", "run", entry.name, *words, "--timed")
    if "there is no GPU" in done.stdout:  # a fix for kernels of a GPU: it says so, and nothing is timed
        assert done.returncode == 1 and "was not applied" in done.stderr
        return
    assert done.returncode == 0, done.stderr[-2000:]
    assert '"free_ms"' in done.stdout
