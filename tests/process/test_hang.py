"""`gpuprof hang` finds the rank and the line of twelve injected faults in jobs of three gloo ranks, from what torch and
Python themselves wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from helpers import hang_jobs
from helpers.installed import need
from helpers.once import once
from helpers.paths import ROOT
from helpers.quick import few
from helpers.started import environment
from helpers.torch_flight import as_nccl_dumps_it, torchs_answers
from helpers.warm_torch import warm_python
from jsonschema import Draft202012Validator

from gpuprof.hang.hang_json import schema

need("torch")
CULPRIT = hang_jobs.CULPRIT
KINDS = {
    "missing_rank": ("missing", [CULPRIT]), "order": ("mismatch", [CULPRIT]), "size": ("mismatch", [CULPRIT]),
    "dtype": ("mismatch", [CULPRIT]), "exception": ("dead", [CULPRIT]), "loader": ("loader", [CULPRIT]),
    "checkpoint": ("save", [CULPRIT]), "stopped": ("stopped", [CULPRIT]), "dead": ("dead", [CULPRIT]),
    "nested_groups": ("deadlock", [0, 1]), "unequal_batches": ("mismatch", [CULPRIT]),
    "cpu_loop": ("missing", [CULPRIT]),
}  # fmt: skip
COLLECTIVES = {
    "missing_rank": ("all_reduce", 2), "order": ("all_reduce", 2), "loader": ("all_reduce", 2),
    "checkpoint": ("all_reduce", 2), "stopped": ("all_reduce", 2), "unequal_batches": ("all_reduce", 3),
    "cpu_loop": ("all_reduce", 2), "nested_groups": ("all_reduce", 2),
}  # fmt: skip
"""The collective in which the other ranks hang; not given where a failed rank made them fail."""


QUICK = ("missing_rank", "order", "dead", "loader")
"""Faults of the quick run, whose jobs run at the same time; so do those of the other faults."""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """From a fault to the folder of its job, after it has run and `gpuprof hang` has read it."""

    def run(folder: Path, faults: Iterable[str]) -> None:
        subprocess.run(
            [sys.executable, "-m", "helpers.hang_jobs", str(folder), *faults],
            check=True, cwd=ROOT / "tests", env={**os.environ, "TORCH_FR_BUFFER_SIZE": "100"}, timeout=240,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def folder_of(fault: str) -> Path:
        faults = QUICK if fault in QUICK else [one for one in KINDS if one not in QUICK]
        return once(tmp_path_factory, f"hang-jobs-{faults[0]}", lambda folder: run(folder, faults)) / fault

    return folder_of


def marked_lines(fault: str) -> set[int]:
    """The marked lines of the job's file in the fault's function and in what that calls."""
    lines = Path(hang_jobs.__file__).read_text(encoding="utf-8").splitlines()
    begun = next(i for i, line in enumerate(lines) if line.startswith(f"def {fault}("))
    ended = next((i for i in range(begun + 1, len(lines)) if re.match(r"\S", lines[i])), len(lines))
    within = {i + 1 for i in range(begun, ended) if "# FAULT" in lines[i]}
    shared = {
        i + 1
        for i, line in enumerate(lines)
        if "dist.all_reduce(" in line or line.strip() == "time.sleep(3600)  # FAULT"
    }
    return within | shared


@pytest.mark.parametrize("fault", few(KINDS, QUICK))
def test_rank_collective_and_line(jobs: Callable[[str], Path], fault: str):
    answer = json.loads((jobs(fault) / "answer.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema()).validate(answer)
    assert (answer["kind"], answer["ranks"]) == KINDS[fault]
    if fault in COLLECTIVES:
        assert (answer["waiting"]["op"], answer["waiting"]["seq"]) == COLLECTIVES[fault]
    if fault not in ("dead", "stopped"):  # these left no stack
        assert answer["at"]["file"].endswith("hang_jobs.py") and answer["at"]["line"] in marked_lines(fault)
    if fault == "exception":
        assert "the batch is empty" in " ".join(answer["notes"])


@pytest.mark.slow
def test_torchs_tool_finds_the_same_collective(jobs: Callable[[str], Path], tmp_path: Path):
    """Compared for the jobs whose ranks all left a dump and have a collective waiting."""
    groups = {"0": [0, 1, 2], "1": [0, 1], "2": [0, 1, 2]}
    faults = sorted({*COLLECTIVES, "size"} - {"stopped"})
    for fault in faults:
        (tmp_path / fault).mkdir()
        for rank in range(hang_jobs.RANKS):
            mine = {name: ranks for name, ranks in groups.items() if rank in ranks}
            dump = (jobs(fault) / "hang" / f"flight.rank{rank}").read_bytes()
            (tmp_path / fault / f"nccl_trace_rank_{rank}").write_bytes(as_nccl_dumps_it(dump, mine))
    said = torchs_answers([tmp_path / fault for fault in faults])
    for fault in faults:
        answer = json.loads((jobs(fault) / "answer.json").read_text(encoding="utf-8"))
        ours, waiting = answer["mismatch"], answer["waiting"]
        assert (waiting["group"], waiting["seq"], [] if ours else waiting["missing"], [CULPRIT] if ours else []) in [
            (one["group"], one["seq"], one["missing"], [int(rank) for rank in one["others"]])
            for one in said[tmp_path / fault]
        ], fault


@pytest.mark.parametrize("fault", ["missing_rank", pytest.param("order", marks=pytest.mark.slow)])
def test_without_the_culprits_dump(jobs: Callable[[str], Path], fault: str, tmp_path: Path):
    """What the other ranks wrote shows which one is silent."""
    for rank in range(hang_jobs.RANKS):
        if rank != CULPRIT:
            for name in (f"flight.rank{rank}", f"stack.rank{rank}"):
                (tmp_path / name).write_bytes((jobs(fault) / "hang" / name).read_bytes())
    (tmp_path / f"flight.rank{CULPRIT}").write_bytes(
        (jobs(fault) / "hang" / f"flight.rank{CULPRIT}").read_bytes()[:700]
    )
    answer = hang(tmp_path)
    assert (answer["kind"], answer["ranks"]) == ("no_dump", [CULPRIT])
    assert any("cut off" in note for note in answer["notes"])


STALLS = """
import os, sys, time
import torch

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(8):
    model(torch.ones(4)).sum().backward()
    optimizer.step()
    if step == 5:
        stall = next(module for name, module in sys.modules.items() if name.endswith("recording.stall"))
        stall.LEAST_S = 1.0  # in place of a minute
        until = time.monotonic() + 90
        while not os.path.exists(os.environ["GPUPROF_RUN"] + "/hang/hang.json") and time.monotonic() < until:
            time.sleep(0.1)  # STALLS
"""


@pytest.mark.slow
def test_trace_notices_a_stall_and_says_why(tmp_path: Path):
    (tmp_path / "train.py").write_text(STALLS)
    words = [sys.executable, "-m", "gpuprof", "trace", "--settle=2", "--baseline=2", "--no-report", "--out", "run"]
    words += [warm_python(), "train.py"]
    said = subprocess.run(words, cwd=tmp_path, env=environment(), capture_output=True, text=True, timeout=180).stderr
    line = next(number for number, text in enumerate(STALLS.splitlines(), 1) if "# STALLS" in text)
    assert re.search(r"no step for \d+ s after step 6: writing down where each rank is", said), said
    assert re.search(rf"gpuprof: STUCK · rank 0: .*train\.py:{line}", said), said
    answer = json.loads((tmp_path / "run" / "hang" / "hang.json").read_text(encoding="utf-8"))
    Draft202012Validator(schema()).validate(answer)
    assert (answer["kind"], answer["at"]["line"]) == ("stuck", line)
    assert answer["states"][0]["last_step"] is not None


def hang(*places: object) -> dict:
    found = subprocess.run(
        [sys.executable, "-m", "gpuprof", "hang", "--json", *map(str, places)],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(found.stdout)
