"""`gpuprof hang` compared with what is known about generated jobs, and with torch's own tool for the same dumps."""

from __future__ import annotations

import pickle
import random
import subprocess
from pathlib import Path

import pytest
from helpers.flight_jobs import COALESCED, Job, job
from helpers.installed import need
from helpers.started import environment
from helpers.torch_flight import torchs_answers
from helpers.torch_pickle import dumps
from helpers.warm_torch import warm_python

from gpuprof.errors import UnreadableTrace
from gpuprof.hang.dump import CALLS_A_GROUP, MOST_ENTRIES, read
from gpuprof.hang.judge import Hang, judge
from gpuprof.hang.load_states import states_of
from gpuprof.hang.recent import without_oldest

need("torch")
JOBS = 150


def answer(folder: Path) -> Hang:
    return judge(*states_of([str(folder)]))


def test_generated_jobs_of_nccl(tmp_path: Path):
    """Rank and collective are as known; torch's tool finds the same collective, with the same ranks missing from it.

    Of coalesced operations its list of missing ranks also has ranks that came, and may have no list of mismatches.
    """
    jobs: dict[Path, Job] = {}
    for seed in range(JOBS):
        found = job(seed)
        jobs[found.write(tmp_path / str(seed))] = found
    said = torchs_answers([*jobs])
    for folder, known in jobs.items():
        ours = answer(folder)
        assert ours.ranks == (known.culprit,), folder
        assert ours.waiting is not None
        if known.fault == "missing":
            assert ours.kind == "missing"
            assert known.culprit in ours.waiting.missing
        else:
            assert ours.mismatch is not None
            assert (ours.mismatch.what, ours.mismatch.seq) == (known.fault, known.spoiled.seq)
            assert ours.waiting.members == known.spoiled.members
        theirs = next(
            one
            for one in said[folder]
            if (one["group"], tuple(one["members"]), one["seq"])
            == (ours.waiting.group, ours.waiting.members, ours.waiting.seq)
        )
        if known.fault == "missing" and ours.waiting.op != COALESCED:
            assert tuple(theirs["missing"]) == ours.waiting.missing
        elif known.fault == "missing":
            assert set(theirs["missing"]) >= set(ours.waiting.missing)
        else:
            assert theirs["others"] or known.spoiled.op == COALESCED


CALLS = 3 * MOST_ENTRIES
LONG = f"""
import sys
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _dump_fr_trace

dist.init_process_group("gloo", init_method=f"file://{{sys.argv[1]}}/store", rank=0, world_size=1)
for at in range({CALLS}):
    dist.all_reduce(torch.ones(8))
open(f"{{sys.argv[1]}}/rank0", "wb").write(_dump_fr_trace())
"""


@pytest.fixture(scope="module")
def long_dump(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A dump by torch with more calls than are read."""
    folder = tmp_path_factory.mktemp("long")
    (folder / "job.py").write_text(LONG)
    variables = environment(TORCH_FR_BUFFER_SIZE=str(CALLS))
    subprocess.run([warm_python(), str(folder / "job.py"), str(folder)], check=True, env=variables, timeout=120)
    return (folder / "rank0").read_bytes()


def test_only_the_last_entries_are_loaded(long_dump: bytes, tmp_path: Path):
    whole = pickle.loads(long_dump)
    data, looked_at = without_oldest(long_dump, MOST_ENTRIES, CALLS_A_GROUP)
    fewer = pickle.loads(data)
    assert len(whole["entries"]) == CALLS and CALLS_A_GROUP <= looked_at <= len(fewer["entries"]) < CALLS_A_GROUP + 10
    assert fewer["entries"][-CALLS_A_GROUP:] == whole["entries"][-CALLS_A_GROUP:]
    assert fewer | {"entries": 0} == whole | {"entries": 0}
    assert dumps(whole) == long_dump, "the tests' pickler writes what torch's does"


def test_what_is_not_done_stays(long_dump: bytes):
    word = long_dump.index(b"retired") + len(b"retired") + 1
    of_entry = b"h" + long_dump[word : word + 1] + b"\x88"
    at = -1
    for _ in range(50):
        at = long_dump.index(of_entry, at + 1)
    waits = long_dump[: at + 2] + b"\x89" + long_dump[at + 3 :]
    entries = pickle.loads(without_oldest(waits, MOST_ENTRIES, CALLS_A_GROUP)[0])["entries"]
    open_still = {entry["collective_seq_id"] for entry in pickle.loads(long_dump)["entries"] if not entry["retired"]}
    assert {entry["collective_seq_id"] for entry in entries if not entry["retired"]} == {51} | open_still


def test_a_damaged_long_dump_is_one_line_or_an_answer(long_dump: bytes, tmp_path: Path):
    draw, path = random.Random(0), tmp_path / "rank0"
    for _ in range(300):
        damaged = bytearray(long_dump)
        for _ in range(draw.randint(1, 4)):
            damaged[draw.randrange(len(damaged))] = draw.randrange(256)
        path.write_bytes(bytes(damaged[: draw.randrange(len(damaged))] if draw.random() < 0.2 else damaged))
        try:
            read(path)
        except UnreadableTrace as error:
            assert "\n" not in str(error)
