"""What the nodes of a job send each other is signed and bounded, and anything else that arrives is dropped."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.node_folders import SECRET, write_nodes
from helpers.rank_program import MS, RankProgram

import gpuprof
from gpuprof.cli.export import choose
from gpuprof.cli.shared import after_recording, several_nodes
from gpuprof.cli.shared.url_mailbox import UrlMailbox
from gpuprof.cli.trace import closing_command
from gpuprof.diagnosis.ranks.rank_digests import write_digest
from gpuprof.errors import GpuprofError
from gpuprof.record.base.redact import redact
from gpuprof.record.job_nodes import nodes as nodes_of_record
from gpuprof.record.job_nodes.mailbox import FolderMailbox
from gpuprof.record.job_nodes.nodes import _JOB, SHARED, WAIT, NodeExchange, exchange_of, shared_url
from gpuprof.record.job_nodes.signed import (
    DIGEST,
    LARGEST_MESSAGE_BYTES,
    NOTE,
    PLAN,
    TOKEN,
    Message,
    NotVerified,
    key_of,
    new_call,
    number_of,
    seal,
    unseal,
)
from gpuprof.record.launcher.recording_reader import RUNNING
from gpuprof.record.launcher.tell import tell
from gpuprof.runfile import EXCHANGE, NODES, RUN_VARIABLE, digest_file, read_json
from gpuprof.tracefile.recording import resolve

KEY = key_of(SECRET)
EVEN, SLOW = RankProgram(), RankProgram(extra_ns=40 * MS)


@pytest.fixture(autouse=True)
def launched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment on a node of a job that shares a folder."""
    for name in (*_JOB, "OMPI_COMM_WORLD_LOCAL_SIZE", "SLURM_JOB_NUM_NODES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    for name, value in ((TOKEN, SECRET), (WAIT, "0.5"), (RUN_VARIABLE, "x"), (SHARED, str(tmp_path / "shared"))):
        monkeypatch.setenv(name, value)


# -- signatures


def test_a_message_comes_back_and_no_changed_byte_does():
    number = number_of(KEY, new_call(KEY))
    message = Message(3, DIGEST, b"columns")
    sent = seal(KEY, number, message)
    assert unseal(KEY, number, 3, sent) == message
    for at in range(len(sent)):
        changed = sent[:at] + bytes([sent[at] ^ 1]) + sent[at + 1 :]
        with pytest.raises(NotVerified):
            unseal(KEY, number, 3, changed)
    for cut in (b"", sent[:10], sent[:-1], sent + b"x"):
        with pytest.raises(NotVerified):
            unseal(KEY, number, 3, cut)


def test_a_message_of_another_rank_recording_or_token_does_not_verify():
    number, later = (number_of(KEY, new_call(KEY)) for _ in range(2))
    sent = seal(KEY, number, Message(3, NOTE, b"why"))
    for key, call, rank in ((KEY, number, 2), (KEY, later, 3), (key_of(SECRET + "x"), number, 3)):
        with pytest.raises(NotVerified):
            unseal(key, call, rank, sent)
    with pytest.raises(NotVerified):
        number_of(key_of(SECRET + "x"), new_call(KEY))
    with pytest.raises(NotVerified):
        number_of(KEY, seal(KEY, number, Message(0, NOTE, b""))[:48])


def test_sizes_are_bounded(tmp_path: Path):
    number = number_of(KEY, new_call(KEY))
    with pytest.raises(ValueError, match="is too large"):
        seal(KEY, number, Message(1, DIGEST, bytes(LARGEST_MESSAGE_BYTES + 1)))
    with pytest.raises(NotVerified):
        unseal(KEY, number, 1, bytes(32) + DIGEST + bytes(LARGEST_MESSAGE_BYTES + 1))
    mailbox = FolderMailbox(tmp_path, "job")
    mailbox.put("rank1", bytes(100))
    assert mailbox.has("rank1") and not mailbox.has("rank2")
    assert mailbox.take("rank1", 100) == bytes(100)
    with pytest.raises(ValueError, match="too large"):
        mailbox.take("rank1", 99)


# -- the token


def test_the_token_reaches_no_process_that_needs_none_and_no_command(tmp_path: Path):
    _, variables = closing_command(tmp_path, RUNNING, diagnose=True)
    assert TOKEN not in variables
    assert SECRET not in " ".join(redact(["env", f"{TOKEN}={SECRET}", "train.py", "bash", "-c", f"{TOKEN}={SECRET} x"]))


def test_without_a_token_several_nodes_get_one_line(tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv(TOKEN)
    assert exchange_of(tmp_path, 0, 2, None, tell) is None
    assert capfd.readouterr().err.count(TOKEN) == 1
    assert exchange_of(tmp_path, 1, 2, None, tell) is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert exchange_of(tmp_path, 0, 2, None, tell) is None
    assert capfd.readouterr().err == "", "one node needs none"
    monkeypatch.setenv(TOKEN, "swordfish")
    assert exchange_of(tmp_path, 0, 2, None, tell) is None
    said = capfd.readouterr().err
    assert said.count("\n") == 1 and "fewer than 16 characters" in said and "swordfish" not in said
    monkeypatch.setenv(TOKEN, SECRET)
    assert exchange_of(tmp_path, 0, 1, None, tell) is None
    assert exchange_of(tmp_path, 1, 3, [1, 2], tell) is None, "rank 0 would collect"
    monkeypatch.delenv(RUN_VARIABLE)
    assert exchange_of(tmp_path, 0, 2, None, tell) is None, "nothing would make digests"
    assert not (tmp_path / NODES).exists()


# -- the exchange, in a shared folder


def exchange(nodes: list[Path], ranks: list[int], capfd: pytest.CaptureFixture[str]) -> str:
    """Runs the ranks' exchanges to their ends, each in its own thread; returns what they said."""
    for node in nodes:
        several_nodes.reduce_ranks(node, after_recording.compress, write_digest)
    capfd.readouterr()
    begun: list[NodeExchange] = []
    for rank in ranks:
        one = exchange_of(nodes[rank], rank, len(nodes), None, tell)
        assert one is not None
        begun.append(one)
        one.begin()
    for one in begun:
        one.join(30)
        assert not one.is_alive()
    return capfd.readouterr().err


def outcome_of(node: Path) -> dict:
    found = read_json(node / NODES / EXCHANGE)
    assert found is not None
    return found


def test_a_shared_folder_in_place_of_the_store(tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(WAIT, "20")
    nodes = write_nodes(tmp_path, [EVEN, SLOW])
    assert exchange(nodes, [1, 0], capfd) == ""
    assert outcome_of(nodes[0])["received"] == [1]
    assert not FolderMailbox(tmp_path / "shared", "--").has("rank1"), "removed once it was read"
    diagnosis = gpuprof.diagnose(nodes[0])
    assert diagnosis.verdict.cause == "straggler"
    assert [rank.rank for rank in choose(diagnosis, None, resolve(nodes[0]))] == [0], "what can be exported here"
    with pytest.raises(GpuprofError, match=r"rank 1 of .* was recorded on another node"):
        choose(diagnosis, [0, 1], resolve(nodes[0]))
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and SECRET.encode() in one.read_bytes()]


def test_a_url_in_place_of_the_store(tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch):
    """Then the process that reads the recording exchanges the digests, as the program's Python may lack the library for
    it."""
    need("fsspec")
    monkeypatch.setenv(WAIT, "20")
    monkeypatch.setenv(SHARED, f"file://{tmp_path / 'bucket'}")
    nodes = write_nodes(tmp_path, [EVEN, SLOW])
    assert [exchange_of(node, rank, 2, None, tell) for rank, node in enumerate(nodes)] == [None, None]
    url = shared_url()
    assert url is not None
    threads = [threading.Thread(target=several_nodes.exchange_at_url, args=(node, url)) for node in nodes]
    for node in nodes:
        several_nodes.reduce_ranks(node, after_recording.compress, write_digest)
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert outcome_of(nodes[0])["received"] == [1]
    assert gpuprof.diagnose(nodes[0]).verdict.cause == "straggler"
    assert closing_command(tmp_path, RUNNING, diagnose=True)[1][TOKEN] == SECRET
    assert not [one for one in tmp_path.rglob("*") if one.is_file() and SECRET.encode() in one.read_bytes()]
    mailbox = UrlMailbox(url, "--")
    mailbox.put("rank1", bytes(100))
    assert mailbox.has("rank1") and not mailbox.has("rank2")
    assert mailbox.take("rank1", 100) == bytes(100)
    with pytest.raises(ValueError, match="too large"):
        mailbox.take("rank1", 99)


def test_all_ranks_plan_by_rank_0s_step(tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(WAIT, "20")
    pair = [exchange_of(node, rank, 2, None, tell) for rank, node in enumerate(write_nodes(tmp_path, [EVEN, SLOW]))]
    assert pair[0] is not None and pair[1] is not None
    assert pair[0].agree(1.96875) == 1.96875
    assert pair[1].agree(2.5) == 1.96875
    for rank in (0, 1):  # the digests follow under the same number
        several_nodes.reduce_ranks(tmp_path / f"node{rank}", after_recording.compress, write_digest)
    pair[1].begin()
    pair[0].begin()
    pair[0].join(30)
    assert outcome_of(tmp_path / "node0")["received"] == [1]


@pytest.mark.parametrize("kind", ["none", "forged", "of another kind"])
def test_without_rank_0s_plan_a_rank_plans_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str):
    monkeypatch.setattr(nodes_of_record, "AGREE_S", 0.05)
    one = exchange_of(tmp_path, 1, 2, None, tell)
    assert one is not None
    mailbox, call = FolderMailbox(tmp_path / "shared", "--"), new_call(KEY)
    if kind != "none":
        mailbox.put("call", call)
        key, what = (key_of(SECRET[::-1]), PLAN) if kind == "forged" else (KEY, NOTE)
        mailbox.put("plan", seal(key, number_of(KEY, call), Message(0, what, b"9.0")))
    assert one.agree(2.5) == 2.5
    assert "rank 1 plans its window alone: " in (tmp_path / "gpuprof.log").read_text()


def test_a_forged_message_is_dropped_with_one_line(tmp_path: Path, capfd):
    nodes = write_nodes(tmp_path, [EVEN, SLOW, EVEN])
    mailbox = FolderMailbox(tmp_path / "shared", "--")
    forged = seal(key_of("not the secret of this job"), bytes(16), Message(1, DIGEST, b"x"))
    mailbox.put("rank1", forged)
    mailbox.put("rank2", bytes(LARGEST_MESSAGE_BYTES + 100))
    said = exchange(nodes, [0], capfd)
    assert said == "".join(
        f"gpuprof: a message in the name of rank {rank} does not verify and was dropped\n" for rank in (1, 2)
    )
    assert (outcome_of(nodes[0])["received"], outcome_of(nodes[0])["dropped"]) == ([], [1, 2])
    assert not (nodes[0] / NODES / digest_file(1)).exists()
    several_nodes.tell_others(outcome_of(nodes[0]))
    assert capfd.readouterr().err == (
        "gpuprof: ranks 1, 2 sent a message that does not verify: the verdict is without them\n"
    )


def test_a_signed_message_that_is_no_digest_is_left_out_of_the_verdict(tmp_path: Path, capfd, monkeypatch):
    monkeypatch.setenv(WAIT, "20")
    nodes = write_nodes(tmp_path, [EVEN, SLOW, EVEN])
    (nodes[2] / digest_file(2)).write_bytes(b"PK damaged")
    monkeypatch.setattr(several_nodes, "_is_reduced", lambda folder, rank: (folder / digest_file(rank)).is_file())
    exchange(nodes, [0, 1, 2], capfd)
    assert outcome_of(nodes[0])["received"] == [1, 2]
    diagnosis = gpuprof.diagnose(nodes[0])
    assert diagnosis.verdict.cause == "straggler"
    assert any(issue.id == "rank_unreadable" for issue in diagnosis.quality.issues)


def test_ranks_of_the_same_run_folder_send_nothing(tmp_path: Path, capfd):
    nodes = write_nodes(tmp_path, [EVEN, SLOW])
    (nodes[0] / "rank1.json").write_bytes((nodes[1] / "rank1.json").read_bytes())
    (nodes[0] / "trace.rank1.json.gz").write_bytes((nodes[1] / "trace.rank1.json.gz").read_bytes())
    exchange([nodes[0], nodes[0]], [1, 0], capfd)
    assert (outcome_of(nodes[0])["received"], outcome_of(nodes[0])["silent"]) == ([], [])
    assert not FolderMailbox(tmp_path / "shared", "--").has("rank1")
    assert gpuprof.diagnose(nodes[0]).verdict.cause == "straggler"


def test_a_rank_without_a_window_says_so(tmp_path: Path, capfd, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(WAIT, "20")
    nodes = write_nodes(tmp_path, [EVEN, SLOW])
    several_nodes.reduce_ranks(nodes[0], after_recording.compress, write_digest)
    (nodes[1] / "trace.rank1.json.gz").unlink()
    pair = [exchange_of(node, rank, 2, None, tell) for rank, node in enumerate(nodes)]
    assert pair[0] is not None and pair[1] is not None
    pair[1].begin("no window was recorded")
    pair[0].begin()
    pair[0].finish()
    assert outcome_of(nodes[0])["without_digest"] == {"1": "no window was recorded"}
    capfd.readouterr()
    several_nodes.tell_others(outcome_of(nodes[0]))
    assert capfd.readouterr().err == "gpuprof: rank 1 has no digest: no window was recorded\n"


def test_a_program_that_fails_waits_for_less_and_names_who_is_missing(tmp_path: Path, monkeypatch):
    monkeypatch.setenv(WAIT, "600")
    monkeypatch.setattr(nodes_of_record, "FAILED_S", 0.1)
    monkeypatch.setattr(sys, "last_value", RuntimeError("a peer is gone"), raising=False)
    first, _ = write_nodes(tmp_path, [EVEN, SLOW])
    one = exchange_of(first, 0, 2, None, tell)
    assert one is not None
    one.begin()
    one.finish()
    assert outcome_of(first)["silent"] == [1]
    assert outcome_of(first)["waited_s"] < 60


def test_what_reads_the_recording_does_not_wait_for_a_dead_process(tmp_path: Path, capfd):
    nodes = write_nodes(tmp_path, [EVEN, SLOW])
    path = nodes[0] / "rank0.json"
    path.write_text(path.read_text().replace(str(os.getpid()), str(2**22 + 1)))
    done: list[object] = []
    waiting = threading.Thread(target=lambda: done.append(several_nodes.wait_for_others(nodes[0])))
    waiting.start()
    waiting.join(20)
    assert done == [None]
    several_nodes.tell_others(None)
    assert "rank 0's process ended before the digests of other nodes had arrived" in capfd.readouterr().err
