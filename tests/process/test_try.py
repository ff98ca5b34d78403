"""`gpuprof try` as a user sees it: predicted and measured gains, nothing left behind however it ends, errors in one
line."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import in_process
from helpers.installed import need
from helpers.paths import ROOT
from helpers.quick import few
from helpers.started import finished, wait_for
from helpers.trainings import variables
from helpers.trials import make_run, tried, write_training
from helpers.warm_torch import warm_python
from jsonschema import Draft202012Validator

from gpuprof.errors import GpuprofError
from gpuprof.record.launcher.command import Target
from gpuprof.trial import run_trial as trial
from gpuprof.trial.guard import processes_of
from gpuprof.trial.starter import Starter
from gpuprof.trial.trial_json import schema
from gpuprof.trial.written import changes_of

need("torch")

STRETCH_S = 0.1
SHORT = f"""
import sys
from gpuprof.trial import run_trial, trial
run_trial.STRETCH_S = {STRETCH_S}
trial.CPUS_OF_OTHERS = 1e9
from gpuprof.cli import main
sys.exit(main())
"""
"""`gpuprof`, but with the fewest steps in a timed stretch, and without regard to what else runs on the machine."""
Try = Callable[..., subprocess.CompletedProcess[str]]

WRITES = """
import pathlib, shutil
here = pathlib.Path(__file__).parent
(here / "new").mkdir()
(here / "new" / "log.txt").write_text("new")
assert (here / "new" / "log.txt").read_text() == "new"
assert sorted(os.listdir(here / "new")) == ["log.txt"]
(here / "kept.txt").write_text("overwritten")
assert open("kept.txt").read() == "overwritten"
with open("grows.txt", "a") as file:
    file.write(" and more")
assert open("grows.txt").read() == "first and more"
os.remove("gone.txt")
assert not os.path.exists("gone.txt")
shutil.rmtree("old")
assert not os.path.isdir("old")
os.rename("renamed.txt", "other.txt")
assert os.path.exists("other.txt") and not os.path.exists("renamed.txt")
"""
LOADER = "loader = torch.utils.data.DataLoader(Data(wait=0.001), batch_size=8, shuffle=True)\n"
TRAINING = (
    WRITES
    + LOADER
    + """
model, steps = net(), 0
optimizer = torch.optim.AdamW(model.parameters())
for x in loader:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    torch.save(model.state_dict(), "checkpoint.pt")
(here / "final.txt").write_text("the end")
"""
)
WAITS = (
    "import os, subprocess, time\n"
    + WRITES
    + """
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
(here / "pid").write_text(str(child.pid))
time.sleep(100)
"""
)
CONNECTS = (
    """
import socket
try:
    socket.create_connection(("192.0.2.1", 443), timeout=2)
except ConnectionRefusedError as error:
    print(error)
"""
    + LOADER
    + "train(net(), loader)"
)
FAILS = TRAINING.replace("torch.save(model", "steps += 1\n    ENDS\n    torch.save(model")


WORKERS = """
import multiprocessing

def write():
    with open("kept.txt", "w") as file:
        file.write("overwritten by a worker")

if __name__ == "__main__":
    worker = multiprocessing.get_context("METHOD").Process(target=write)
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    train(net(), torch.utils.data.DataLoader(Data(), batch_size=8))
"""


def prepare(folder: Path, code: str = TRAINING) -> None:
    """Writes a training into a folder with the user's files."""
    write_training(folder, code)
    (folder / "kept.txt").write_text("kept")
    (folder / "grows.txt").write_text("first")
    (folder / "gone.txt").write_text("gone")
    (folder / "renamed.txt").write_text("renamed")
    (folder / "old").mkdir()
    (folder / "old" / "model.pt").write_bytes(b"weights")


def tree_hash(folder: Path) -> str:
    """Names, contents, permissions and times of all but the runs of gpuprof."""
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if "gpuprof-runs" in path.parts:
            continue
        status = path.lstat()
        found.update(f"{path.relative_to(folder)} {status.st_mode} {status.st_mtime_ns}".encode())
        found.update(path.read_bytes() if path.is_file() else b"folder")
    return found.hexdigest()


def declare_flag(run: Path, name: str) -> None:
    """Makes the recording say that the program declares a flag."""
    rank = json.loads((run / "rank0.json").read_text())
    rank["program"] = {"flags": [{"names": [name], "kind": "value"}]}
    (run / "rank0.json").write_text(json.dumps(rank))


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "gpuprof", "try", *options, warm_python(), "train.py"]


@pytest.fixture
def run_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., subprocess.CompletedProcess[str]]:
    """`gpuprof try` on `train.py`, in this process, with the shortest stretches; the trainings are processes."""
    monkeypatch.setattr(trial, "STRETCH_S", STRETCH_S)

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return in_process(*command(*options)[3:], cwd=tmp_path, OMP_NUM_THREADS="1")

    return run


@pytest.mark.slow
def test_what_is_advised_is_tried_and_measured_next_to_predicted(tmp_path: Path):
    # Waiting takes no CPU, so that the gain does not depend on what else runs on the machine.
    prepare(tmp_path, TRAINING.replace("wait=0.001", "wait=0.002"))
    run = make_run(tmp_path, made_ms=16.0)
    before = tree_hash(tmp_path)
    words = [sys.executable, "-c", SHORT, *command("--json", "--check")[3:]]
    done = finished(words, cwd=tmp_path, env=variables(), text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    Draft202012Validator(schema()).validate(found)
    assert found == json.loads((run / "trial.json").read_text())
    (row,) = found["rows"]
    assert row["fixes"] == [{"name": "input_workers", "value": "2"}], "as many as there are cores"
    assert (row["status"], row["sameness"]["verdict"], row["advised"]) == ("confirmed", "bitwise", "fixes")
    assert row["predicted_step_ns"]["low"] < row["predicted_step_ns"]["high"] < 15_000_000
    assert row["prediction"] in ("right", "gained_more", "gained_less")
    assert row["step_ns"] < 0.8 * found["baseline"]["step_ns"]
    assert [one["name"] for one in found["processes"]] == ["", "input_workers=2"] * row["rounds"] + [""]
    assert found["best"] == row["fixes"] and found["stop"] == {"reason": "decided", "text": "every fix is decided"}
    assert found["next"] == [] and 0 < found["spent_ns"] < found["budget_ns"]
    assert "this will take about" in done.stderr
    assert tree_hash(tmp_path) == before


def test_a_fix_that_fails_and_one_that_does_nothing_are_rows_with_their_reasons(tmp_path: Path, run_try: Try):
    prepare(
        tmp_path, FAILS.replace("ENDS", "if loader.num_workers: raise torch.OutOfMemoryError('CUDA out of memory')")
    )
    make_run(tmp_path)
    before = tree_hash(tmp_path)
    done = run_try("--rounds", "1", "--check", "--fix", "input_workers=2,tf32")
    assert done.returncode == 1, done.stderr
    assert done.stderr.splitlines()[-1] == "gpuprof: check failed: tf32 is not applied"
    said = " ".join(done.stdout.split())
    assert "input_workers=2: failed: out of memory: " in said and "CUDA out of memory" in said
    assert "tf32: not applied: there is no GPU" in said
    assert done.stdout.startswith("NOTHING CONFIRMED   ") and "paste" not in done.stdout
    assert tree_hash(tmp_path) == before


IGNORES = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--workers", type=int, default=0)
parser.add_argument("--num_workers", type=int, default=0)
given = parser.parse_args()
train(net(), torch.utils.data.DataLoader(Data(wait=0.001), batch_size=8, num_workers=given.workers))
"""


@pytest.mark.parametrize(("name", "own"), [("--workers", "--workers 2"), ("--num_workers", None)])
def test_the_programs_own_flag_goes_before_a_patch_if_it_does_something(
    tmp_path: Path, run_try: Try, name: str, own: str | None
):
    prepare(tmp_path, IGNORES)
    declare_flag(make_run(tmp_path), name)
    done = run_try("--rounds", "1", "--json", "--fix", "input_workers=2")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    Draft202012Validator(schema()).validate(found)
    (row,) = found["rows"]
    assert (row["flags"], row["status"]) == (own, "unconfirmed")
    assert row["lines"] == (own or "DataLoader(..., num_workers=2, persistent_workers=True)")
    result = "input_workers=2: --num_workers 2 did not do it (0 workers alive), so it is applied from outside"
    assert (result in found["notes"]) == (own is None)


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ("raise MemoryError('no room')", "out of memory: MemoryError: no room"),
        ("raise torch.OutOfMemoryError('CUDA out of memory')", "out of memory: OutOfMemoryError: CUDA out of memory"),
        ("break", "the training ended after 1 step"),
        ("os.kill(os.getpid(), 9)", "it failed"),
        ("input('lr? ')", "it reads standard input, which is empty in a trial: pass what it asks for as arguments"),
    ],
)
def test_a_command_that_cannot_be_timed_is_one_line(tmp_path: Path, run_try: Try, ends: str, words: str):
    prepare(tmp_path, FAILS.replace("ENDS", ends))
    make_run(tmp_path)
    before = tree_hash(tmp_path)
    done = run_try("--fix", "optimizer")
    assert done.returncode == 2 and done.stdout == ""
    last = done.stderr.splitlines()[-1]
    assert last.startswith("gpuprof: the command as it is could not be timed: ") and words in last
    assert tree_hash(tmp_path) == before


@pytest.mark.parametrize(
    "number", [signal.SIGINT, *(pytest.param(one, marks=pytest.mark.slow) for one in (signal.SIGTERM, signal.SIGKILL))]
)
def test_nothing_is_left_behind_when_it_is_ended(tmp_path: Path, number: int):
    prepare(tmp_path)
    (tmp_path / "train.py").write_text(WAITS)  # in a new Python with the trial in its environment
    run = make_run(tmp_path)
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps(manifest | {"command": [sys.executable, "train.py"]}))
    before = tree_hash(tmp_path)
    scratch = Path(tempfile.mkdtemp(prefix="try-"))  # a short path, or it could not be used
    words = [sys.executable, "-m", "gpuprof", "try", "--fix", "input_workers=2", sys.executable, "train.py"]
    with subprocess.Popen(
        words, cwd=tmp_path, env=variables(TMPDIR=str(scratch)), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
        text=True, start_new_session=True,
    ) as process:  # fmt: skip
        # The training has written something, and has started a process in a session of its own.
        assert wait_for(lambda: bool(list(scratch.glob("*/*/files/files/**/pid"))), 60)
        assert len(processes_of(str(scratch))) >= 2
        os.kill(process.pid, number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == (130 if number != signal.SIGKILL else -signal.SIGKILL), said
    assert "Traceback" not in said
    assert wait_for(lambda: not processes_of(str(scratch)), 20), "a training still runs"
    assert wait_for(lambda: not any(scratch.iterdir()), 20), "the scratch folder is still there"
    scratch.rmdir()
    assert tree_hash(tmp_path) == before


@pytest.mark.slow
def test_connections_beyond_this_machine_are_refused_and_named(tmp_path: Path, run_try: Try):
    prepare(tmp_path, CONNECTS)
    make_run(tmp_path)
    done = run_try("--rounds", "1", "--fix", "optimizer")
    assert done.returncode == 0, done.stderr
    assert "blocked: the program connects to 192.0.2.1:443" in done.stdout


def test_native_writers_are_noticed(tmp_path: Path, run_try: Try):
    prepare(tmp_path, "os.system('echo made > by_another_program.txt')\n" + TRAINING)
    make_run(tmp_path)
    done = run_try("--fix", "optimizer")
    assert done.returncode == 2
    assert "by_another_program.txt, outside the scratch folder" in done.stderr and "--yes" in done.stderr


@pytest.mark.slow
def test_the_recording_that_try_makes_is_compared_too(tmp_path: Path):
    removes = "loss_of=lambda model, x: (os.path.exists('gone.txt') and os.system('rm gone.txt'), model(x).mean())[1]"
    write_training(tmp_path, f"train(net(), torch.utils.data.DataLoader(Data(), batch_size=8), {removes})")
    (tmp_path / "gone.txt").write_text("gone")
    words = [sys.executable, "-m", "gpuprof", "try", "--fix", "optimizer", sys.executable, "train.py"]
    done = finished(words, cwd=tmp_path, env=variables(), text=True, timeout=120)
    assert done.returncode == 2 and done.stdout == "", done.stderr
    assert f"deleted {tmp_path}/gone.txt, outside the scratch folder" in done.stderr.splitlines()[-1]


def test_a_recording_that_never_ends_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "train.py").write_text("import time\ntime.sleep(300)\n")
    monkeypatch.chdir(tmp_path)
    words = (sys.executable, "train.py")
    with Starter(Target(words, "train", sys.executable, True, ()), network=False) as starter:
        with pytest.raises(GpuprofError, match="the recording took longer than 2 s and was given up"):
            starter.record(["--", *words], limit_s=2)
        assert not processes_of(str(starter.scratch))


@pytest.mark.parametrize("method", few(["fork", "forkserver", "spawn"], ["fork"]))
def test_workers_of_every_start_method_write_to_scratch(tmp_path: Path, method: str):
    (tmp_path / "kept.txt").write_text("kept")
    outcome = tried(tmp_path, WORKERS.replace("METHOD", method), fresh=True)
    assert outcome.process.error is None, outcome.process.error
    assert (tmp_path / "kept.txt").read_text() == "kept"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["absent.py"], "absent.py: no such file"),
        (["--fix", "nothing", "train.py"], "--fix nothing: no such fix; there are input_workers, "),
        (["--fix", "input_workers=many", "train.py"], "input_workers takes the number of workers"),
        (["--budget", "soon", "train.py"], "'soon' is not a time, such as 300s, 5m or 1h"),
        ([], "nothing to run: gpuprof try train.py"),
        (["--rounds", "0", "train.py"], "'--rounds': 0 is less than 1"),
        (["python", "-S", "train.py"], "python -S keeps the recorder"),
    ],
)  # fmt: skip
def test_wrong_input_is_one_line(tmp_path: Path, words: list[str], line: str):
    (tmp_path / "train.py").write_text("print()")
    done = in_process("try", *words, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert done.stderr.startswith("gpuprof: ") and done.stderr.count("\n") == 1 and line in done.stderr


def test_what_can_be_applied_is_listed_without_starting_anything(tmp_path: Path):
    done = in_process("try", "--list", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    for word in ("input_workers=4", "tf32", "compile=default", "write   ", "not for "):
        assert word in done.stdout
    listed = in_process("try", "--list", "--json", cwd=tmp_path)
    assert {"name", "does", "line", "cannot", "advised", "flags"} <= set(json.loads(listed.stdout)["fixes"][0])


def test_what_would_be_tried_without_a_gpu_is_listed_as_advised(tmp_path: Path):
    prepare(tmp_path)
    make_run(tmp_path, made_ms=32.0)
    done = in_process(*command("--list", "--json")[3:], cwd=tmp_path)
    advised = [one["advised"] for one in json.loads(done.stdout)["fixes"] if one["advised"]]
    assert advised == ["input_workers=2"], "as many as there are cores"


def test_the_programs_own_flags_are_listed(tmp_path: Path):
    prepare(tmp_path, IGNORES)
    declare_flag(make_run(tmp_path), "--workers")
    done = in_process(*command("--list")[3:], cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "    flag    --workers 2   (the program's own, tried first)\n" in done.stdout
    assert done.stdout.count("    flag ") == 1


def test_a_command_that_is_recorded_first_inherits_none_of_our_packages(tmp_path: Path):
    says = "import os, sys\nprint('PATH=' + os.environ.get('PYTHONPATH', ''), file=sys.stderr)"
    (tmp_path / "train.py").write_text(says)
    clean = {name: value for name, value in variables().items() if name != "PYTHONPATH"}
    done = finished(
        [sys.executable, "-c", f"import sys; sys.path[0] = {str(ROOT)!r}; from gpuprof.cli import main; main()",
         "try", "train.py"],
        cwd=tmp_path, env=clean, text=True, timeout=60,
    )  # fmt: skip
    assert "it is recorded first" in done.stderr
    (found,) = (line.removeprefix("PATH=") for line in done.stderr.splitlines() if line.startswith("PATH="))
    assert {Path(folder) for folder in found.split(os.pathsep)} == {ROOT / "gpuprof" / "record" / "inject"}


@pytest.mark.slow
def test_a_command_without_a_run_is_recorded_first_and_that_writes_nothing_either(tmp_path: Path):
    # --stop ends the training, and what it would save by then must not replace what an earlier training has saved.
    ends = "\nimport atexit\natexit.register((here / 'final.txt').write_text, 'the end')\n"
    prepare(tmp_path, TRAINING.replace(LOADER, ends + LOADER.replace("0.001", "0.002")))
    before = tree_hash(tmp_path)
    done = finished(
        [sys.executable, "-m", "gpuprof", "try", "--json", "--rounds=1", "train.py"], cwd=tmp_path, env=variables(),
        text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "it is recorded first" in done.stderr and "writes to a scratch folder" in done.stderr
    (row,) = json.loads(done.stdout)["rows"]
    assert row["fixes"][0]["name"] == "input_workers" and row["speedup"]["expected"] > 1.2
    assert tree_hash(tmp_path) == before
    (run,) = (one for one in (tmp_path / "gpuprof-runs").iterdir() if not one.is_symlink())
    inside = [Path(path).name for path in changes_of(run).inside]
    assert inside[:3] == ["new", "log.txt", "kept.txt"] and "final.txt" in inside


@pytest.mark.slow
def test_a_command_that_asks_for_input_is_not_recorded_and_says_so(tmp_path: Path):
    prepare(tmp_path, "input('lr? ')\n" + TRAINING)
    words = [sys.executable, "-m", "gpuprof", "try", "train.py"]
    done = finished(words, cwd=tmp_path, env=variables(), text=True, timeout=100)
    assert done.returncode == 2
    assert "could not be recorded (it reads standard input" in done.stderr.splitlines()[-1]


RANKS = """
import torch.distributed as dist
dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(net())
data = Data(wait=0.002)
sampler = torch.utils.data.distributed.DistributedSampler(data)
train(model, torch.utils.data.DataLoader(data, batch_size=8, sampler=sampler))
"""


@pytest.mark.slow
def test_all_ranks_of_a_training_get_the_fix_and_are_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    prepare(tmp_path, RANKS)
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", "train.py"]
    run = make_run(tmp_path)
    for name, more in (("manifest", {"command": words}), ("rank0", {"world_size": 2})):
        path = run / f"{name}.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | more))
    before = tree_hash(tmp_path)
    monkeypatch.setattr(trial, "RANKS_STEPS", 20)
    done = in_process(
        "try", "--json", "--rounds=1", "--fix", "input_workers=2", *words, cwd=tmp_path, OMP_NUM_THREADS="1"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["world_size"] == 2
    assert found["rows"][0]["status"] == "unconfirmed" and found["rows"][0]["sameness"]["verdict"] == "bitwise"
    assert wait_for(lambda: not [place for place in Path("/proc").glob("[0-9]*") if working_in(place, tmp_path)], 10)
    assert tree_hash(tmp_path) == before


def working_in(process: Path, folder: Path) -> bool:
    """Whether a process of /proc has this working directory."""
    try:
        return (process / "cwd").readlink() == folder
    except OSError:
        return False
