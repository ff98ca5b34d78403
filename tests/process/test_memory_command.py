"""`gpuprof memory`, called as a user calls it: its JSON, its screen, and one line for what is not a snapshot."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from helpers.command import in_process
from jsonschema import Draft202012Validator

from benchmarks.memory_snapshot import MIB, Allocator, Program, train
from gpuprof.memory.memory_report import DOCUMENT as MEMORY

VALIDATOR = Draft202012Validator(MEMORY.schema())


def written(path: Path, steps: int = 6, leak: int = 0, layers: int = 8, fail: bool = False) -> Path:
    allocator, program = Allocator(), Program(3)
    train(allocator, program, steps, layers=layers, leak=leak)
    if fail:
        allocator.fail(2 << 30, 100 * MIB, program.block(103))
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    return path


def document(*arguments: object) -> dict:
    done = in_process("memory", *arguments, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    found = json.loads(done.stdout, parse_constant=pytest.fail)
    wrong = [f"{error.json_path}: {error.message}" for error in VALIDATOR.iter_errors(found)]
    assert not wrong
    return found


def test_owners_of_a_fine_tune(tmp_path: Path):
    """Compared with what the generated program holds at its peak, after the forward and the loss of the last step,
    worked out by hand."""
    found = document(written(tmp_path / "a.pickle"))
    peak = found["devices"][0]["peak"]
    assert peak["phase"] == "forward" and peak["step"] == 2  # the first step has no optimizer state yet
    assert {one["owner"]: one["bytes"] // (MIB // 8) for one in peak["owners"] if one["owner"] != "unused"} == {
        "weights": 8 * (3 + 4 + 5 + 3 + 4 + 5 + 3 + 4), "adapters": 8, "optimizer_state": 16,
        "activations": 4 * 8 * (3 * (1 + 2 + 3 + 4)), "logits": 8 * (16 + 32 + 32),
    }  # fmt: skip
    assert max(found["devices"][0]["series"]["owners"]["gradients"]) == MIB
    assert not found["devices"][0]["leaks"]


def test_a_leak_names_its_line(tmp_path: Path):
    (leak,) = document(written(tmp_path / "a.pickle", steps=8, leak=3 * MIB))["devices"][0]["leaks"]
    assert (leak["file"], leak["line"], leak["bytes_per_step"]) == ("/home/me/train.py", 71, 3 * MIB)


def test_the_difference_of_two(tmp_path: Path):
    small, large = written(tmp_path / "a.pickle"), written(tmp_path / "b.pickle", layers=12)
    found = document(small, large)["difference"]
    assert sum(one["bytes"] for one in found["owners"]) == found["bytes"]
    held = {one["owner"]: one["bytes"] for one in found["owners"]}
    assert held["activations"] == 4 * 12 * 5 * MIB // 4
    assert held["logits"] == 0


def test_the_answer_fits_in_fifteen_lines(tmp_path: Path):
    path = written(tmp_path / "a.pickle", steps=8, leak=3 * MIB, fail=True)
    done = in_process("memory", path, COLUMNS="110")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) <= 15
    text = " ".join(done.stdout.split())
    assert "Out of memory: modeling_llama.py:103 forward asked for 2.0 GiB" in text
    assert "+3.0 MiB from train.py:71 log" in text


def with_global() -> bytes:
    return pickle.dumps({"segments": [], "device_traces": [], "x": Path})


BAD = {
    "empty": (b"", "is empty"),
    "truncated": (pickle.dumps({"segments": [], "device_traces": [[]]})[:-9], "damaged or was cut off"),
    "global": (with_global(), "do not trust it"),
    "reduce": (b"\x80\x04cos\nsystem\n(S'touch pwned'\ntR.", "do not trust it"),
    "other_pickle": (pickle.dumps({"a": 1}), "not a memory snapshot"),
    "list_of_numbers": (pickle.dumps([1, 2]), "not a memory snapshot"),
    "no_events": (pickle.dumps({"segments": [], "device_traces": [[]]}), "is an empty memory snapshot"),
    "odd_events": (pickle.dumps({"segments": [], "device_traces": [[{"action": []}]]}), "not a memory snapshot"),
    "huge_size": (pickle.dumps({"segments": [], "device_traces": [[{"action": "alloc", "size": 1 << 80}]]}),
                  "not a memory snapshot"),
    "text": (b"hello there", "not a pickle"),
    "json": (b'{"traceEvents": []}', "no memory events"),
    "zip": (b"PK\x03\x04rest", "torch.save"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_snapshot_gets_one_line(name: str, tmp_path: Path):
    content, expected = BAD[name]
    path = tmp_path / "a.pickle"
    path.write_bytes(content)
    done = in_process("memory", path, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1 and expected in done.stderr
    assert [one.name for one in tmp_path.iterdir()] == ["a.pickle"]


def test_what_is_not_there_gets_one_line(tmp_path: Path):
    for path in (tmp_path, tmp_path / "none.pickle"):
        done = in_process("memory", path)
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
