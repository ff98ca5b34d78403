"""What `gpuprof trace` leaves in a run folder, and the verdict at the end."""

from __future__ import annotations

import json
import os
import signal
import stat
from pathlib import Path

import pytest
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT
from helpers.started import (
    PYTHON,
    Started,
    environment,
    manifest_of,
    only_run,
    run,
    traced,
    wait_for,
)

from gpuprof import runfile


def test_the_manifest(tmp_path: Path):
    words = (PYTHON, "-c", "import sys; sys.exit(3)", "--hub_token", "hf_abcdefghijklmnop", "--max_tokens", "512")
    done = run(
        traced("--settle", 0, "--stacks", "--ranks", "1,0", "--no-shapes", *words), tmp_path,
        env=environment(OMP_NUM_THREADS="1", WANDB_API_KEY="f" * 40),
    )  # fmt: skip
    assert done.returncode == 3
    folder = only_run(tmp_path)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, folder.parent)} == {0o700}
    manifest = manifest_of(folder)
    assert manifest["schema"] == runfile.SCHEMA
    assert (manifest["status"], manifest["exit"]) == ("failed", {"code": 3, "signal": None})
    assert manifest["command"] == [*words[:4], "<redacted>", "--max_tokens", "512"]
    assert manifest["cwd"] == str(tmp_path)
    assert manifest["started"] < manifest["ended"]
    assert manifest["options"] == {
        "settle": 0, "baseline": None, "steps": None, "stacks": 2, "memory": 0, "shapes": False, "ranks": [0, 1],
        "sampling": True, "sample_workers": False, "nvtx": False, "modules": 1, "stop": False, "report": True,
        "nsys": False, "gpu_metrics": False,
    }  # fmt: skip
    assert manifest["variables"]["OMP_NUM_THREADS"] == "1"
    assert manifest["host"]["cpus"] >= 1
    written = b"".join(path.read_bytes() for path in folder.iterdir())
    assert b"hf_abc" not in written and b"f" * 40 not in written


def test_what_the_target_finds_in_its_environment(tmp_path: Path):
    code = "import json, os, sys; print(json.dumps([dict(os.environ), sys.path]))"
    for path in ("", str(ROOT), f"{ROOT}:/somewhere"):
        env = environment(PYTHONPATH=path)
        launcher = [
            PYTHON,
            "-c",
            f"import sys; sys.path.insert(0, {str(ROOT)!r}); from gpuprof.cli import main; main()",
        ]
        done = run([*launcher, "trace", PYTHON, "-c", code], tmp_path, env=env)
        variables, search = json.loads(done.stdout)
        first, *rest = variables["PYTHONPATH"].split(os.pathsep)
        assert first.endswith("gpuprof/record/inject")
        assert os.pathsep.join(rest) == path
        assert all(variables["PYTHONPATH"].split(os.pathsep))
        assert search.count("") == 1 and Path(variables["GPUPROF_RUN"]).is_absolute()


def test_runs_of_one_second_do_not_meet(tmp_path: Path):
    started = [Started(traced(PYTHON, "-c", "pass"), tmp_path) for _ in range(3)]
    assert [process.end()[0] for process in started] == [0, 0, 0]
    assert len(list((tmp_path / runfile.RUNS).iterdir())) == 3


RECORDS = """
import json, os, pathlib, shutil, sys, time
run = pathlib.Path(os.environ["GPUPROF_RUN"])
def tell(*windows):
    rank = {"schema": "gpuprof.run/1", "rank": 0, "stages": [], "windows": windows, "notes": []}
    (run / "rank.partial").write_text(json.dumps(rank))
    (run / "rank.partial").rename(run / "rank0.json")
tell()
if sys.argv[1] != "-":
    shutil.copy(sys.argv[1], run / "trace.rank0.json.partial")
    (run / "trace.rank0.json.partial").rename(run / "trace.rank0.json")
    tell({"window": "trace", "file": "trace.rank0.json", "first_step": 3, "steps": 4})
exec(sys.argv[2])
"""
"""A target that leaves what a recorded training leaves."""


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    builder = TraceBuilder()
    ms = 1_000_000
    for i in range(4):
        at = i * 10 * ms
        builder.step(i, at, at + 10 * ms)
        builder.op("aten::mm", at + ms, at + 2 * ms)
        builder.launch("gemm_kernel", (at + ms + 1000, at + ms + 9000), (at + ms + 20_000, at + 4 * ms))
    return builder.write(tmp_path_factory.mktemp("trace") / "steps.json")


@pytest.mark.slow
def test_the_verdict_at_the_end_of_a_short_run(trace: Path, tmp_path: Path):
    done = run(traced(PYTHON, "-c", RECORDS, trace, "sys.exit(3)"), tmp_path, timeout=240)
    said = done.stderr.decode()
    assert (done.returncode, done.stdout) == (3, b"")
    assert "10 ms an iteration" in said and said.endswith("gpuprof: next: gpuprof diagnose\n")
    folder = only_run(tmp_path)
    assert str((tmp_path / runfile.RUNS / runfile.LATEST).readlink()) == folder.name
    names = {path.name for path in folder.iterdir()}
    assert names == {"manifest.json", "rank0.json", "trace.rank0.json.gz", "verdict.txt", "report.html", "history.json"}
    assert len((folder / "verdict.txt").read_text().splitlines()) == 2


AGES = """
while not (run / "trace.rank0.json.gz").exists():
    time.sleep(0.02)
os.utime(run / "verdict.txt", (1, 1))
"""
"""A training that ends when its recording has been read, long after the verdict."""
KEEPS_FRESH = """
sys.stdin.read()
os.utime(run / "verdict.txt", times=(time.time() + 3600,) * 2)
"""
"""A training that ends with its input; its verdict counts as just printed, however slow the machine is."""


@pytest.fixture(scope="module")
def read_meanwhile(trace: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit code and stderr of two trainings that outlast the reading of their recordings, by the age of the verdict.

    They run at the same time: while the training continues, the process that reads has the lowest priority.
    """
    folders = {name: tmp_path_factory.mktemp(name) for name in ("new", "old")}

    def started(name: str, code: str) -> Started:
        return Started(traced("--out", "run", PYTHON, "-c", RECORDS, trace, code), folders[name])

    ends = {}
    with started("new", KEEPS_FRESH) as new, started("old", AGES) as old:
        for name, training in (("new", new), ("old", old)):
            assert wait_for((folders[name] / "run" / "trace.rank0.json.gz").exists, 240)
            assert name == "old" or training.process.poll() is None
            code, _, err = training.end(timeout=120)
            ends[name] = code, err.decode()
    assert str((folders["new"] / runfile.RUNS / runfile.LATEST).readlink()) == "../run"
    return ends


def test_the_verdict_while_the_training_goes_on(read_meanwhile: dict[str, tuple[int, str]]):
    code, said = read_meanwhile["new"]
    assert code == 0
    assert said.count("WAITING FOR THE CPU") == 1 and said.endswith("gpuprof: next: gpuprof diagnose\n")


def test_the_verdict_again_if_it_was_long_ago(read_meanwhile: dict[str, tuple[int, str]]):
    code, said = read_meanwhile["old"]
    assert code == 0
    *_, headline, summary, report, advice = said.splitlines()
    assert headline.startswith("gpuprof: WAITING FOR THE CPU") and summary.startswith("gpuprof: The GPU works")
    assert report.startswith("gpuprof: report: ") and report.endswith("/report.html")
    assert advice == "gpuprof: next: gpuprof diagnose"


def test_a_killed_training_is_not_waited_for(trace: Path, tmp_path: Path):
    done = run(traced("--out", "run", PYTHON, "-c", RECORDS, trace, "os.kill(os.getpid(), 9)"), tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert done.stderr == b"gpuprof: next: gpuprof diagnose\n"
    assert (tmp_path / "run" / "trace.rank0.json").exists()


def test_a_run_that_was_too_short(tmp_path: Path):
    code = "open(run / 'steps.jsonl', 'w').write('{\"rank\": 0, \"step\": 1}\\n' * 4)"
    done = run(traced("--settle", 2, "--baseline", 2, PYTHON, "-c", RECORDS, "-", code), tmp_path)
    assert done.returncode == 0
    assert b"nothing was traced: it took 4 steps, and 11 are needed" in done.stderr
    assert done.stderr.count(b"\n") == 1


def test_a_recording_that_cannot_be_read(tmp_path: Path):
    (tmp_path / "rubbish").write_text("not JSON")
    done = run(traced(PYTHON, "-c", RECORDS, "rubbish", "pass"), tmp_path)
    assert done.returncode == 0
    assert b"Traceback" not in done.stderr and done.stderr.endswith(b"gpuprof: next: gpuprof diagnose\n")
