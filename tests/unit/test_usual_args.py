"""Args in their usual form give the row that reading them key by key gives."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from gpuprof.tracefile.kineto.msgspec_reader import Parsed, StringIds, TextIds, read_small
from gpuprof.tracefile.kineto.usual_args import USUAL

KERNEL = {"External id": 7, "device": 0, "stream": 7, "correlation": 3, "grid": [4, 1, 1], "block": [128, 1, 1]}
OP = {"External id": 7, "Sequence number": 5, "Input Dims": [[2, 3]], "Concrete Inputs": ["", "1"]}
MEMORY = {"Device Type": 1, "Device Id": 0, "Addr": 7, "Bytes": 512, "Total Allocated": 512}


def read(category: str, args: dict, name: str = "x") -> Parsed:
    event = {"ph": "X" if category else "i", "cat": category, "name": name, "pid": 0, "tid": 7, "ts": 1.5, "dur": 2}
    found = read_small(json.dumps({"traceEvents": [event | {"args": args}]}).encode())
    assert found is not None and not found.dropped
    return found


@pytest.mark.parametrize(
    ("category", "args", "name"),
    [("kernel", KERNEL, "x"), ("cpu_op", OP, "x"), ("", MEMORY, "[memory]")],
)
def test_a_key_that_makes_args_unusual_changes_nothing(category: str, args: dict, name: str):
    usual = read(category, args, name)
    unusual = read(category, args | {"external id": "none", "device": args.get("device", "none")}, name)
    table = next(table for table, event in (("gpu", KERNEL), ("ops", OP), ("memory", MEMORY)) if args is event)
    rows, others = usual.tables[table].take(), unusual.tables[table].take()
    assert {key: column.tobytes() for key, column in rows.items()} == {
        key: column.tobytes() for key, column in others.items()
    }
    assert usual.strings == unusual.strings
    taken = [column.tolist() for column in rows.values()]
    assert all(len(column) == 1 for column in taken) and [7] in taken


def test_only_usual_args_are_read_at_once():
    """Otherwise the test above would compare one way of reading with itself."""
    for table, args in (("gpu", KERNEL), ("ops", OP), ("memory", MEMORY)):
        assert USUAL[table].values(Raw(json.dumps(args).encode()), TextIds(StringIds())) is not None
        more = {"external id": 1} if table != "memory" else {"device": 1}
        assert USUAL[table].values(Raw(json.dumps(args | more).encode()), TextIds(StringIds())) is None
