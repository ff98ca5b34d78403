"""Jobs whose ranks call collectives in nested groups until one of them does something else, and what NCCL's flight
recorder then has for each rank. Which rank that is, and at which collective, is known.

Rows and columns of a mesh share a group's name, as `split_group` has it. Coalesced operations are recorded as NCCL
does: parts that are never updated, and an entry where they end.
"""

from __future__ import annotations

import pickle
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

COALESCED = "ALLGATHER_coalesced"
OPS = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", COALESCED, "all_to_all")
FAULTS = ("missing", "collective", "sizes", "dtypes")
FRAME = {"name": "train", "filename": "/home/user/train.py"}


@dataclass(frozen=True, slots=True)
class Call:
    """A collective that a rank calls, number `seq` of its group."""

    name: str
    members: tuple[int, ...]
    seq: int
    op: str
    size: int
    dtype: str = "Float"


@dataclass
class Job:
    """fault: of FAULTS. spoiled: what the culprit should have called."""

    fault: str
    culprit: int
    spoiled: Call
    groups: dict[str, list[tuple[int, ...]]]
    called: dict[int, list[tuple[Call, int]]] = field(default_factory=dict)
    """By rank its calls, each with when it was made."""
    done: set[tuple[int, Call]] = field(default_factory=set)

    def write(self, folder: Path) -> Path:
        """Its dumps, as files of that folder."""
        folder.mkdir(parents=True)
        for rank in self.called:
            (folder / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(self._dump(rank), 2))
        return folder

    def _dump(self, rank: int) -> dict[str, Any]:
        mine = {name: str([*next(row for row in rows if rank in row)]) for name, rows in self.groups.items()}
        entries = [one for call, at in self.called[rank] for one in _entries(call, at, (rank, call) in self.done)]
        return {
            "version": "2.10",
            "pg_config": {name: {"name": name, "desc": _desc(name), "ranks": row} for name, row in mine.items()},
            "pg_status": {},
            "entries": [entry | {"record_id": number} for number, entry in enumerate(entries)],
        }  # fmt: skip


def job(seed: int) -> Job:
    """A job of four to eight ranks with one fault, the same for the same seed."""
    draw = random.Random(seed)
    world = draw.choice((4, 6, 8))
    side = draw.choice((2, world // 2))
    rows = [tuple(range(first, first + side)) for first in range(0, world, side)]
    groups = {"0": [tuple(range(world))], "1": rows, "2": [tuple(range(i, world, side)) for i in range(side)]}
    program, numbers = list[list[Call]](), Counter[str]()
    for _ in range(draw.randint(3, 24)):
        name, op, size = draw.choice([*groups]), draw.choice(OPS), draw.choice((4, 8, 1024))
        numbers[name] += 1
        program.append([Call(name, members, numbers[name], op, size) for members in groups[name]])
    culprit, at = draw.randrange(world), draw.randrange(len(program))
    spoiled = _of(program[at], culprit)
    fault = draw.choice(FAULTS) if len(spoiled.members) > 2 and spoiled.op != "all_to_all" else "missing"
    found = Job(fault, culprit, spoiled, groups)
    own = {rank: [_of(step, rank) for step in program] for rank in range(world)}
    own[culprit] = own[culprit][:at] + ([] if fault == "missing" else [_other(spoiled, fault)])
    _run(found, own)
    return found


def _of(step: Sequence[Call], rank: int) -> Call:
    return next(call for call in step if rank in call.members)


def _other(call: Call, fault: str) -> Call:
    if fault == "sizes":
        return replace(call, size=call.size + 2)
    if fault == "dtypes":
        return replace(call, dtype="Half")
    return replace(call, op="all_reduce" if call.op != "all_reduce" else "broadcast")


def _run(job: Job, own: dict[int, list[Call]]) -> None:
    """Each rank calls its next collective once the one before is done, which it is once all members have called it."""
    job.called = {rank: [] for rank in own}
    clock, goes_on = 1_700_000_000_000_000_000, True
    while goes_on:
        goes_on = False
        for rank, calls in own.items():
            made = job.called[rank]
            if len(made) < len(calls) and (not made or (rank, made[-1][0]) in job.done):
                call = calls[len(made)]
                clock += 1_000_000
                made.append((call, clock))
                goes_on = True
                if all(job.called[other] and job.called[other][-1][0] == call for other in call.members):
                    job.done |= {(other, call) for other in call.members}


def _desc(name: str) -> str:
    return "default_pg" if name == "0" else f"mesh_{name}"


def _entries(call: Call, at: int, done: bool) -> Iterator[dict[str, Any]]:
    """One, or two parts and their end."""
    for op in ["_all_gather_base"] * 2 if call.op == COALESCED else []:
        yield _entry(call, at, op, False) | {"state": "scheduled"}
    yield _entry(call, at, call.op, done)


def _entry(call: Call, at: int, op: str, done: bool) -> dict[str, Any]:
    ranks, n = len(call.members), call.size
    sizes = {"_all_gather_base": (n, n * ranks), "_reduce_scatter_base": (n * ranks, n)}.get(op, (n, n))
    given, got = ([[], []] if op == COALESCED else [[[size]] for size in sizes])  # fmt: skip
    return {
        "pg_id": int(call.name), "process_group": (call.name, _desc(call.name)), "collective_seq_id": call.seq,
        "p2p_seq_id": 0, "op_id": call.seq, "profiling_name": f"nccl:{op}", "time_created_ns": at,
        "input_sizes": given, "output_sizes": got, "input_dtypes": [call.dtype] * len(given),
        "output_dtypes": [call.dtype] * len(got), "state": "completed" if done else "started", "retired": done,
        "time_discovered_started_ns": at, "time_discovered_completed_ns": at + 1 if done else None,
        "timeout_ms": 600_000, "is_p2p": False, "frames": [FRAME | {"line": call.seq}],
    }  # fmt: skip
