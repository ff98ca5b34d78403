"""What `gpuprof hang` reads and says, on generated dumps."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.command import in_process
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from gpuprof.errors import GpuprofError
from gpuprof.hang.dump import DumpFrame, read
from gpuprof.hang.hang_json import dumps as as_text
from gpuprof.hang.hang_json import schema, to_json
from gpuprof.hang.judge import judge
from gpuprof.hang.load_states import states_of
from gpuprof.hang.rank_state import RankState
from gpuprof.hang.stacks import ThreadStack, parse
from gpuprof.report.words.hang_words import next_step

SECOND = 1_000_000_000
FAULTHANDLER = """Current thread 0x00007f29b57ff6c0 (most recent call first):
  File "/x/gpuprof/record/recording/stall.py", line 90 in _write

Thread 0x00007f29d3ea6b80 [python] (most recent call first):
  File "/usr/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py", line 3252 in all_reduce
  File "/home/me/train.py", line 26 in step
  File "/home/me/train.py", line 40 in <module>
"""
PY_SPY = """Process 12: python train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 0x7F00 (idle): "Thread-1"
    wait (threading.py:320)
Thread 12 (active): "MainThread"
    _write (torch/serialization.py:900)
    get (queue.py:171)
    save (train.py:31)
    <module> (train.py:40)
"""


def entry(
    seq: int,
    op: str = "all_reduce",
    done: bool = True,
    size: int = 4,
    dtype: str = "Float",
    group: str = "0",
    at: int = 0,
):
    return {
        "record_id": seq, "pg_id": int(group), "process_group": (group, "default_pg" if group == "0" else "dp"),
        "collective_seq_id": seq, "p2p_seq_id": 0, "op_id": seq, "profiling_name": f"nccl:{op}",
        "time_created_ns": (1_000 + seq + at) * SECOND, "input_sizes": [[size]], "input_dtypes": [dtype],
        "output_sizes": [[size]], "output_dtypes": [dtype], "state": "completed" if done else "started",
        "retired": done, "timeout_ms": 600_000, "is_p2p": False,
        "frames": [{"name": "all_reduce", "filename": "/lib/python3.11/site-packages/torch/x.py", "line": 1},
                   {"name": "train", "filename": "/home/me/train.py", "line": 10 + seq}],
    }  # fmt: skip


def written(
    folder: Path, dumps: dict[int, list[dict]], groups: dict[str, list[int]] | None = None, kind: str = "pickle"
) -> Path:
    config = {name: {"name": name, "desc": "", "ranks": str(ranks)} for name, ranks in (groups or {}).items()}
    for rank, entries in dumps.items():
        document = {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": entries}
        data = pickle.dumps(document, 2) if kind == "pickle" else json.dumps(document).encode()
        (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
    return folder


def answer(folder: Path, seconds_later: int = 60):
    states, _ = states_of([str(folder)])
    last = max(state.dump.last_ns for state in states if state.dump)
    found = judge(states, last + seconds_later * SECOND)
    Draft202012Validator(schema()).validate(json.loads(as_text(found, states)))
    return found


@pytest.mark.parametrize("kind", ["pickle", "json"])
def test_a_rank_that_did_not_come(tmp_path: Path, kind: str):
    dumps = {rank: [entry(1), entry(2, done=False)] for rank in range(4)}
    dumps[3] = [entry(1)]
    found = answer(written(tmp_path, dumps, {"0": [0, 1, 2, 3]}, kind))
    assert (found.kind, found.ranks) == ("missing", (3,)) and found.waiting and found.waiting.came == (0, 1, 2)
    assert found.at == DumpFrame("/home/me/train.py", 11, "train") and found.waited_ns == 60 * SECOND


def test_a_member_without_a_dump_is_silent(tmp_path: Path):
    dumps = {rank: [entry(1), entry(2, done=False)] for rank in range(3)}
    found = answer(written(tmp_path, dumps, {"0": [0, 1, 2, 3]}))
    assert (found.kind, found.ranks) == ("no_dump", (3,))


def test_a_rank_is_late_before_it_is_missing(tmp_path: Path):
    dumps = {0: [entry(1, done=False)], 1: []}
    found = answer(written(tmp_path, dumps, {"0": [0, 1]}), seconds_later=2)
    assert (found.kind, found.ranks) == ("late", (1,))


def test_a_chain_leads_to_the_rank_that_waits_for_nobody(tmp_path: Path):
    """0 waits for 1 in a group of both; 1 waits for 2 in another; 2 is elsewhere."""
    dumps = {0: [entry(1, done=False, group="1")], 1: [entry(1, done=False, group="2")], 2: [entry(1, group="0")]}
    found = answer(written(tmp_path, dumps, {"0": [0, 1, 2], "1": [0, 1], "2": [1, 2]}))
    assert (found.kind, found.ranks) == ("missing", (2,))


def test_who_failed_first_where_all_came_and_none_is_done(tmp_path: Path):
    """A rank that fails right behind a collective makes the others fail in it."""
    dumps = {rank: [entry(1, done=False)] for rank in range(3)}
    states, _ = states_of([str(written(tmp_path, dumps, {"0": [0, 1, 2]}))])
    errors = ["Connection closed by peer [127.0.0.1]:11435", "Connection closed by peer", "the batch is empty"]
    dead = [replace(state, life="dead", error=errors[state.rank]) for state in states]
    found = judge(dead, 2_000 * SECOND)
    assert (found.kind, found.ranks) == ("dead", (2,))


def test_two_groups_in_opposite_order_are_a_deadlock(tmp_path: Path):
    dumps = {0: [entry(1, done=False, group="1")], 1: [entry(1, done=False, group="2")]}
    found = answer(written(tmp_path, dumps, {"1": [0, 1], "2": [0, 1]}))
    assert (found.kind, found.ranks) == ("deadlock", (0, 1))


@pytest.mark.parametrize(
    ("differs", "what"), [({"op": "broadcast"}, "collective"), ({"size": 5}, "sizes"), ({"dtype": "Half"}, "dtypes")]
)
def test_ranks_that_call_different_things(tmp_path: Path, differs: dict, what: str):
    dumps = {rank: [entry(1), entry(2, done=False)] for rank in range(3)}
    dumps[1] = [entry(1), entry(2, done=False, at=-500, **differs)]  # it calls first
    found = answer(written(tmp_path, dumps, {"0": [0, 1, 2]}))
    assert (found.kind, found.ranks) == ("mismatch", (1,)) and found.mismatch and found.mismatch.what == what
    assert found.waiting and (found.waiting.op, found.waiting.sizes, found.waiting.dtypes) == (
        "all_reduce", ((4,),), ("Float",)
    ), "what the others wait in, whoever called first"  # fmt: skip
    assert found.waiting.since_ns == (1_000 + 2 - 500) * SECOND


def test_of_two_ranks_the_usual_call_is_what_the_group_called_before(tmp_path: Path):
    dumps = {rank: [entry(1), entry(2, done=False, dtype="Half" if rank == 0 else "Float")] for rank in range(2)}
    found = answer(written(tmp_path, dumps, {"0": [0, 1]}))
    assert (found.kind, found.ranks) == ("mismatch", (0,)) and found.mismatch and found.mismatch.usual == "Float"
    both = {rank: [entry(1, done=False, dtype="Half" if rank == 0 else "Float")] for rank in range(2)}
    found = answer(written(tmp_path, both, {"0": [0, 1]}))
    assert (found.kind, found.ranks) == ("mismatch", (0, 1)) and found.mismatch and found.mismatch.usual == ""


def test_ranks_that_only_receive_have_no_types(tmp_path: Path):
    """Only the source of a scatter has inputs."""
    dumps = {rank: [entry(1, "scatter"), entry(2, done=False)] for rank in range(3)}
    for rank in (1, 2):
        dumps[rank][0] |= {"input_sizes": [], "input_dtypes": []}
    dumps[2].pop()
    found = answer(written(tmp_path, dumps, {"0": [0, 1, 2]}))
    assert (found.kind, found.ranks) == ("missing", (2,))


def transfer(seq: int, op: str, done: bool = False, size: int = 4):
    return entry(0, op, done, size) | {"is_p2p": True, "p2p_seq_id": seq, "op_id": seq}


def test_a_receive_waits_for_the_rank_that_does_not_send(tmp_path: Path):
    """A pipeline of three: 2 waits for 1, which waits for 0, which has sent once and computes."""
    dumps = {
        0: [transfer(1, "send 0->1", done=True)],
        1: [transfer(1, "recv 1<-0", done=True), transfer(2, "send 1->2", done=True), transfer(3, "recv 1<-0")],
        2: [transfer(1, "recv 2<-1", done=True), transfer(2, "recv 2<-1")],
    }
    found = answer(written(tmp_path, dumps, {"0": [0, 1, 2]}))
    assert (found.kind, found.ranks) == ("missing", (0,))
    assert found.waiting and (found.waiting.op, found.waiting.members) == ("recv 1<-0", (0, 1))


def test_two_ranks_that_both_send_first_are_a_deadlock(tmp_path: Path):
    dumps = {0: [transfer(1, "send 0->1")], 1: [transfer(1, "send 1->0")]}
    assert answer(written(tmp_path, dumps, {"0": [0, 1]})).kind == "deadlock"


def test_a_send_that_is_received_and_does_not_end_is_stuck(tmp_path: Path):
    dumps = {0: [transfer(1, "send 0->1")], 1: [transfer(1, "recv 1<-0")]}
    found = answer(written(tmp_path, dumps, {"0": [0, 1]}))
    assert found.kind == "stuck" and found.waiting and found.waiting.missing == ()


@pytest.mark.parametrize("done", [True, False])
def test_a_batch_of_transfers_is_in_the_state_of_its_end(tmp_path: Path, done: bool):
    batch = [transfer(1, "send 0->1"), transfer(1, "recv 0<-1"), transfer(1, "coalesced", done)]
    other = [transfer(1, "send 1->0"), transfer(1, "recv 1<-0"), transfer(1, "coalesced", done)]
    found = answer(written(tmp_path, {0: batch, 1: other}, {"0": [0, 1]}))
    assert found.kind == ("none" if done else "stuck")


def test_a_rank_whose_entries_of_a_group_were_overwritten_is_not_missing(tmp_path: Path):
    """Group 0's last call is older than everything that the recorder still holds; its status includes the call."""
    dumps = {0: [entry(3, done=False), entry(1, group="1")], 1: [entry(1, group="1")]}
    written(tmp_path, dumps, {"0": [0, 1], "1": [0, 1]})
    path = tmp_path / "nccl_trace_rank_1"
    document = pickle.loads(path.read_bytes())
    document["pg_status"] = {"0": {"last_enqueued_collective": 3, "last_completed_collective": 2}}
    path.write_bytes(pickle.dumps(document, 2))
    assert answer(tmp_path).kind == "stuck"


def test_a_rank_far_ahead_is_still_seen_to_wait(tmp_path: Path):
    """Programs call hundreds of NCCL's collectives before they need a result."""
    dumps = {rank: [entry(1), *(entry(seq, done=False) for seq in range(2, 400))] for rank in range(3)}
    dumps[2] = [entry(1)]
    found = answer(written(tmp_path, dumps, {"0": [0, 1, 2]}))
    assert (found.kind, found.ranks) == ("missing", (2,)) and found.waiting and found.waiting.seq == 2


def test_with_nccl_a_rank_that_waits_may_stand_in_any_line(tmp_path: Path):
    """0 waits for 1 in a group of both; 1 is at loss.item(), as it waits for 2 in another."""
    dumps = {0: [entry(1, done=False, group="1")], 1: [entry(1, done=False, group="2")], 2: [entry(1, group="0")]}
    states, _ = states_of([str(written(tmp_path, dumps, {"0": [0, 1, 2], "1": [0, 1], "2": [1, 2]}))])
    line = ThreadStack((DumpFrame("/home/me/train.py", 31, "step"),))
    assert judge([replace(state, stack=line) for state in states]).ranks == (2,)


def test_two_recorders_of_a_rank_are_both_read(tmp_path: Path):
    """NCCL and gloo number a group's collectives separately; the second rank waits in gloo's third."""
    for rank in (0, 1):
        written(tmp_path, {rank: [entry(seq) for seq in (1, 2, 3)]}, {"0": [0, 1]})
        (tmp_path / f"nccl_trace_rank_{rank}").rename(tmp_path / f"flight.rank{rank}")
        gloo = [
            entry(seq, "broadcast", seq < 3) | {"profiling_name": "gloo:broadcast"} for seq in (1, 2, 3)[: 3 - rank]
        ]
        written(tmp_path, {rank: gloo}, {"0": [0, 1]})
        (tmp_path / f"nccl_trace_rank_{rank}").rename(tmp_path / f"flight.other.rank{rank}")
    found = answer(tmp_path)
    assert (found.kind, found.ranks) == ("missing", (1,)) and found.waiting and found.waiting.op == "broadcast"


def test_uneven_sizes_are_fine_where_they_may_be(tmp_path: Path):
    dumps = {rank: [entry(1, "all_to_all", size=4 + rank), entry(2, done=False)] for rank in range(2)}
    found = answer(written(tmp_path, dumps, {"0": [0, 1]}))
    assert found.kind == "stuck" and found.mismatch is None


def test_nothing_hangs(tmp_path: Path):
    assert answer(written(tmp_path, {rank: [entry(1)] for rank in range(2)})).kind == "none"


def test_an_old_and_a_damaged_dump_do_not_hide_the_rest(tmp_path: Path):
    dumps = {rank: [entry(1), entry(2, done=False)] for rank in range(4)}
    written(tmp_path, dumps, {"0": [0, 1, 2, 3]})
    path = tmp_path / "nccl_trace_rank_2"
    path.write_bytes(path.read_bytes()[:300])
    old = {
        "version": "1.0",
        "entries": [{"pg_id": 0, "seq_id": 1, "profiling_name": "nccl:all_reduce", "state": "completed"}],
    }
    (tmp_path / "nccl_trace_rank_3").write_bytes(pickle.dumps(old, 2))
    found = answer(tmp_path)
    assert 2 in found.waiting.missing and any("rank 2" in note and "cut off" in note for note in found.notes)  # type: ignore[union-attr]
    assert any("several versions" in note for note in found.notes)


def test_stacks_of_faulthandler_and_py_spy():
    one, other = parse(FAULTHANDLER), parse(PY_SPY)
    assert one and one.own == DumpFrame("/home/me/train.py", 26, "step") and one.doing == "collective"
    assert other and other.own == DumpFrame("train.py", 31, "save") and other.doing == "save"


def test_a_stack_without_collectives_says_what_the_process_does():
    frames = (
        DumpFrame("/lib/python3.11/site-packages/torch/utils/data/dataloader.py", 5, "_next_data"),
        DumpFrame("/me/t.py", 3, "f"),
    )
    found = judge([RankState(0, stack=ThreadStack(frames), life="running")])
    assert (found.kind, found.ranks, found.at) == ("loader", (0,), DumpFrame("/me/t.py", 3, "f"))


def test_a_process_that_waits_in_no_collective_is_not_sent_to_the_network():
    found = judge([RankState(0, stack=ThreadStack((DumpFrame("/me/train.py", 3, "f"),)), life="running")])
    assert found.kind == "stuck" and "NCCL" not in next_step(found)


def test_a_pickle_that_names_a_function_is_not_loaded(tmp_path: Path):
    path = tmp_path / "nccl_trace_rank_0"
    path.write_bytes(pickle.dumps(print, 2))
    with pytest.raises(GpuprofError, match="do not trust it"):
        read(path)


@given(st.data())
def test_a_mutated_dump_is_one_line_or_an_answer(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    folder = tmp_path_factory.mktemp("mutated")
    kind = data.draw(st.sampled_from(["pickle", "json"]))
    path = written(folder, {0: [entry(1), entry(2, done=False)]}, {"0": [0, 1]}, kind) / "nccl_trace_rank_0"
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(bytes(raw))
    try:
        states, now = states_of([str(folder)])
        to_json(judge(states, now), states)
    except GpuprofError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("words", [["999999999"], ["/nowhere"], [str(Path(__file__))]])
def test_what_is_none_of_them_is_one_line(words: list[str]):
    found = in_process("hang", *words)
    assert found.returncode == 2 and len(found.stderr.strip().splitlines()) == 1


def test_without_a_run_it_says_what_else_it_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    found = in_process("hang")
    assert found.returncode == 2 and found.stderr.count("\n") == 1
    assert "holds no run" in found.stderr and "gpuprof hang PID" in found.stderr and "diagnose" not in found.stderr


def test_the_screen(tmp_path: Path):
    dumps = {rank: [entry(1), entry(2, done=False)] for rank in range(4)}
    dumps[3] = [entry(1)]
    printed = in_process("hang", str(written(tmp_path, dumps, {"0": [0, 1, 2, 3]})), COLUMNS="80").stdout
    assert (
        printed.startswith("A RANK IS MISSING · rank 3")
        and " for 60 s" not in printed
        and "/home/me/train.py:11" in printed
    )
