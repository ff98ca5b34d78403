"""Flight recorder dumps written by NCCL, read by gpuprof and by torch's own analyser."""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from helpers.command import in_process
from helpers.paths import ROOT

from gpuprof.hang.dump import CALLS_A_GROUP, read
from gpuprof.record.recording.stall import flight_recorders

DUMPS = ROOT / "tests" / "data" / "nccl_dumps"
CASES = sorted(path.name.partition(".")[0] for path in DUMPS.glob("*.fr_entries.txt"))


@pytest.mark.parametrize("case", CASES)
def test_calls_sizes_and_states_are_those_that_torch_reads(case: str):
    found = re.findall(
        r"^(\w+)\(input_sizes=(\S.*?), state=(\w+)\)$", (DUMPS / f"{case}.fr_entries.txt").read_text(), re.M
    )
    groups = read(DUMPS / f"{case}_rank_0").groups
    calls = sorted((call for group in groups for call in group.calls), key=lambda call: call.created_ns)
    ours = [(call.op, str([list(size) for size in call.sizes] or None), call.state) for call in calls]
    if case == "coalesced":  # torch's analyser prints its parts instead
        assert ours == [("coalesced", found[0][1], "completed")]
    elif len(groups) == 1:
        states = [state for *_, state in found]
        at = next((i for i, state in enumerate(states) if state != "completed"), len(found))
        window = found[max(at - CALLS_A_GROUP, 0) : at + CALLS_A_GROUP]
        assert ours == window[-len(ours) :] and len(ours) >= min(CALLS_A_GROUP, len(window))
    else:  # it prints group by group
        assert sorted(ours) == sorted(found)


@pytest.mark.parametrize(
    ("case", "said", "line"),
    [
        ("completed", "NOTHING HANGS", None),
        ("groups", "NOTHING HANGS", None),
        ("coalesced", "NOTHING HANGS", None),
        ("missing_rank", "NOTHING HANGS", None),
        ("waits", "waits in all_reduce 2 of group 0 (default_pg) of 1024 Float", 107),
        ("timeout", "waits in all_reduce 2 of group 0 (default_pg) of 1024 Float", 129),
        ("running", "waits in _all_gather_base 157 of group 0 (default_pg) of 268435456 Float", 119),
    ],
)
def test_what_hangs_is_named_with_its_line(case: str, said: str, line: int | None):
    done = in_process("hang", DUMPS / f"{case}_rank_0")
    text = " ".join(done.stdout.split())
    assert said in text, text
    assert line is None or f"/home/user/benchmarks/nccl_dumps.py:{line} in {case}" in text


@pytest.mark.parametrize(("case", "said"), [("waits", "waits in all_reduce 2"), ("nothing_called", "NOTHING HANGS")])
def test_dumps_as_json(case: str, said: str):
    """Where there is no entry, torch leaves the list out of the JSON."""
    assert said in in_process("hang", DUMPS / f"{case}_rank_0.json").stdout


def test_a_second_rank_that_does_not_come(tmp_path: Path):
    """The dump of NCCL's watchdog at its timeout, and one of a rank that has not called the last collective."""
    document = pickle.loads((DUMPS / "timeout_rank_0").read_bytes())
    document["pg_config"]["0"]["ranks"] = "[0, 1]"
    for rank in (0, 1):
        (tmp_path / f"nccl_trace_rank_{rank}").write_bytes(pickle.dumps(document, 2))
        document["entries"].pop()
        document["pg_status"]["0"]["last_enqueued_collective"] = 1
    text = " ".join(in_process("hang", tmp_path).stdout.split())
    assert text.startswith("A RANK IS MISSING · rank 1 Rank 0 waits in all_reduce 2 of group 0 (default_pg)")
    assert "/home/user/benchmarks/nccl_dumps.py:129 in timeout" in text


def test_the_recorder_that_holds_something_is_dumped(monkeypatch: pytest.MonkeyPatch):
    """With NCCL torch 2.11 has two recorders, and the one for other backends is empty: a pickle without entries."""
    pytest.importorskip("torch", reason="torch is not installed")
    import torch._C

    full, empty = ((DUMPS / f"{case}_rank_0").read_bytes() for case in ("waits", "missing_rank"))
    assert empty and pickle.loads(empty)["entries"] == []
    group = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: True)
    monkeypatch.setitem(sys.modules, "torch.distributed", group)  # type: ignore[arg-type]
    for nccl, other in ((full, empty), (empty, full)):
        made = ModuleType("_distributed_c10d")
        made._dump_nccl_trace, made._dump_fr_trace = (lambda one=nccl: one), (lambda one=other: one)  # type: ignore
        monkeypatch.setattr(torch._C, "_distributed_c10d", made)
        assert flight_recorders() == [full]
