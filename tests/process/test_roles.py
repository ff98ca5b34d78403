"""A generator and a trainer in separate processes with a queue of one batch, compared with clocks put around their
waits by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from helpers.run_schema import errors_in
from helpers.trainings import variables

from gpuprof.diagnosis.roles.model import Roles
from gpuprof.diagnosis.roles.sources import diagnose_roles
from gpuprof.tracefile.recording import resolve

PROGRAM = """
    import json, multiprocessing, sys, time
    from multiprocessing.connection import Client, Listener
    from pathlib import Path
    import gpuprof

    COUNT, GENERATE_S, TRAIN_S = 24, {generate}, {train}
    waits = []

    def waited(call):
        begun = time.monotonic_ns()
        found = call()
        waits.append((begun, time.monotonic_ns()))
        return found

    def generate():
        with Listener("socket", "AF_UNIX") as listener, listener.accept() as trainer:
            for i in range(COUNT):
                with gpuprof.phase("generation"):
                    time.sleep(GENERATE_S)
                if i:
                    waited(trainer.recv)  # there is room for one batch: until the last one was taken
                trainer.send(i)
            trainer.recv()
        Path("generator.json").write_text(json.dumps(waits))

    def train():
        while not Path("socket").exists():
            time.sleep(0.01)
        with Client("socket", "AF_UNIX") as generator:
            for i in range(COUNT):
                assert waited(generator.recv) == i
                generator.send("taken")
                with gpuprof.phase("log-probabilities"):
                    end = time.perf_counter() + 0.01
                    while time.perf_counter() < end:
                        pass
                with gpuprof.phase("training"):
                    time.sleep(TRAIN_S)
        Path("trainer.json").write_text(json.dumps(waits))

    if __name__ == "__main__":
        if {together}:
            child = multiprocessing.get_context("spawn").Process(target=generate)
            child.start()
            train()
            child.join()
        else:
            {{"generate": generate, "train": train}}[sys.argv[1]]()
"""
NEAR, NEAR_NS = 0.05, 4_000_000
"""A role's waits match the clocks around them within this share, or this time per wait."""


def command(folder: Path, name: str, *words: str) -> subprocess.Popen[str]:
    options = ["trace", "--no-report", "--out", str(folder / name)]
    return subprocess.Popen(
        [sys.executable, "-m", "gpuprof", *options, str(folder / "program.py"), *words],
        cwd=folder, env=variables(), text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def recorded(folder: Path, generate: float, train: float, together: bool) -> list[str]:
    """The run folders of a job, of both processes or of one each."""
    import textwrap

    text = textwrap.dedent(PROGRAM.format(generate=generate, train=train, together=together))
    (folder / "program.py").write_text(text, encoding="utf-8")
    roles = ("job",) if together else ("generate", "train")
    started = [command(folder, name, name) for name in roles]
    for process in started:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
    runs = [folder / name for name in roles]
    assert not [error for run in runs for error in errors_in(run)]
    return [str(run) for run in runs]


def check(folder: Path, found: Roles) -> None:
    """Compares the waits in the window with the clocks that the program put around them."""
    for one in found.roles:
        clocks = json.loads((folder / f"{one.role}.json").read_text())
        low = monotonic(one.source, found.start_unix_ns)
        inside = [min(end, low + found.window_ns) - max(begin, low) for begin, end in clocks]
        inside = [ns for ns in inside if ns > 0]
        assert abs(one.wait_ns - sum(inside)) <= max(NEAR * sum(inside), NEAR_NS * len(inside)), one.role


def monotonic(source: str, unix_ns: int) -> int:
    head = json.loads(Path(source).read_text().splitlines()[0])
    return unix_ns - head["unix_ns"] + head["monotonic_ns"]


@pytest.mark.measures_time
@pytest.mark.parametrize("together", [pytest.param(True, marks=pytest.mark.slow), False], ids=["one run", "a run each"])
def test_a_trainer_waits_for_generation(tmp_path: Path, together: bool):
    runs = recorded(tmp_path, generate=0.08, train=0.02, together=together)
    found = diagnose_roles(resolve(runs))
    assert sorted(one.role for one in found.roles) == ["generator", "trainer"]
    check(tmp_path, found)
    wait = found.waits[0]
    assert (wait.role, wait.waits_for, wait.phase) == ("trainer", "generator", "generation")
    assert wait.ns > 0.3 * found.window_ns
    assert found.one_clock and found.iterations >= 15


@pytest.mark.measures_time
@pytest.mark.slow
def test_a_generator_waits_for_training(tmp_path: Path):
    found = diagnose_roles(resolve(recorded(tmp_path, generate=0.02, train=0.08, together=False)))
    check(tmp_path, found)
    wait = found.waits[0]
    assert (wait.role, wait.waits_for) == ("generator", "trainer")
    assert wait.ns > 0.3 * found.window_ns


def test_a_process_that_only_generates_says_what_it_left(tmp_path: Path):
    (tmp_path / "program.py").write_text(
        'import time\nimport gpuprof\nwith gpuprof.phase("generation"):\n    time.sleep(0.05)\n', encoding="utf-8"
    )
    process = command(tmp_path, "generate")
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    assert "reads them together with the run of the process that trains" in said
    assert "nothing was recorded" not in said
