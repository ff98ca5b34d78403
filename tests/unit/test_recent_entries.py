"""A dump whose oldest entries are left out before decoding says the same as the whole one."""

from __future__ import annotations

import json
import pickle
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from helpers.quick import seeds
from helpers.torch_pickle import dumps

from gpuprof.hang.dump import CALLS_A_GROUP, MOST_ENTRIES, read
from gpuprof.hang.recent import json_without_oldest, without_oldest

MANY = 4 * MOST_ENTRIES


def history(seed: int) -> dict[str, Any]:
    """A dump of a rank that has called hundreds of collectives of three groups, sends, and coalesced operations whose
    parts have others between them now and then; one may be left waiting long ago."""
    draw = random.Random(seed)
    entries: list[dict[str, Any]] = []
    numbers: dict[tuple[int, bool], int] = {}
    coalesces, waits = draw.random() < 0.7, draw.randrange(MANY) if draw.random() < 0.5 else -1
    while len(entries) < MANY:
        group, sent = draw.randrange(3), draw.random() < 0.1
        number = numbers[group, sent] = numbers.get((group, sent), 0) + 1
        parts = draw.randint(1, 3) if coalesces and draw.random() < 0.3 else 0
        done = not len(entries) <= waits < len(entries) + parts + 1
        for size in range(parts):
            entries.append(entry(draw, group, number, sent, "nccl:_all_gather_base", False) | {"input_sizes": [[size]]})
            if draw.random() < 0.1:
                other = numbers[2 - group, False] = numbers.get((2 - group, False), 0) + 1
                entries.append(entry(draw, 2 - group, other, False, "nccl:broadcast", True))
        name = "nccl:ALLGATHER_coalesced" if parts else "nccl:send 0->1" if sent else "nccl:all_reduce"
        entries.append(entry(draw, group, number, sent, name, done) | ({"input_sizes": []} if parts else {}))
    return {
        "version": "2.10",
        "pg_config": {str(one): {"name": str(one), "desc": f"mesh{one}", "ranks": "[0, 1]"} for one in range(3)},
        "pg_status": {"0": {"last_enqueued_collective": numbers.get((0, False), 0), "last_completed_collective": 1}},
        "entries": [one | {"record_id": at} for at, one in enumerate(entries)],
    }


def entry(draw: random.Random, group: int, number: int, sent: bool, name: str, done: bool) -> dict[str, Any]:
    line = draw.randrange(40)
    return {
        "frames": [{"name": "step", "filename": "train.py", "line": line}], "pg_id": group,
        "process_group": (str(group), f"mesh{group}"), "collective_seq_id": 0 if sent else number,
        "p2p_seq_id": number if sent else 0, "profiling_name": name, "time_created_ns": 1_700_000_000 * 10**9 + line,
        "input_sizes": [[line, 300]], "input_dtypes": ["Float"], "state": "completed" if done else "scheduled",
        "retired": done, "is_p2p": sent,
    }  # fmt: skip


@pytest.mark.parametrize("seed", seeds(40))
def test_a_dump_without_its_oldest_entries_says_the_same(tmp_path: Path, seed: int):
    """Written as torch does, and by Python's pickler, from whose dumps nothing is left out."""
    whole = history(seed)
    for name, data in (("0", pickle.dumps(whole, 2)), ("torch0", dumps(whole)), ("json0", json.dumps(whole).encode())):
        (tmp_path / name).write_bytes(data)
    expected = read(tmp_path / "0")
    for name in ("torch0", "json0"):
        assert replace(read(tmp_path / name), path=expected.path, written_ns=expected.written_ns) == expected, name


def test_most_entries_are_left_out():
    """With and without coalesced operations; of Python's pickler none are."""
    left = {}
    for seed in range(10):
        whole = history(seed)
        assert without_oldest(pickle.dumps(whole, 2), MOST_ENTRIES, CALLS_A_GROUP) == (
            pickle.dumps(whole, 2),
            MOST_ENTRIES,
        )
        data, looked_at = without_oldest(dumps(whole), MOST_ENTRIES, CALLS_A_GROUP)
        fewer = pickle.loads(data)["entries"]
        assert all(one in whole["entries"] for one in fewer) and looked_at <= MOST_ENTRIES
        left[seed] = len(fewer), len(json_without_oldest(json.dumps(whole).encode(), MOST_ENTRIES)["entries"])
    assert max(fewer for fewer, _ in left.values()) < MANY * 0.6, left
    assert max(fewer for _, fewer in left.values()) < MANY * 0.9, left
