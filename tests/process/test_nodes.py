"""A job on several nodes, each with its own run folder: rank 0 gets everyone's digest through the job's store.

The nodes are processes on one machine that share no folder; their process group is gloo's. Traces are generated, so
that the slow rank and the shift of its node's clock are known.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from helpers.installed import need
from helpers.node_folders import SECRET, free_port, start_rank, start_reading, variables_of, write_nodes
from helpers.quick import few
from helpers.rank_program import MS, RankProgram
from helpers.run_schema import errors_in
from helpers.slow_link import slow_link
from helpers.trainings import MODEL
from helpers.warm_torch import warm_python

import gpuprof
from gpuprof.cli.shared import after_recording, several_nodes
from gpuprof.diagnosis.ranks.rank_digests import write_digest
from gpuprof.runfile import EXCHANGE, NODES, digest_file, read_json

need("torch")

SHIFT_NS = 3_700_000_000
"""How far the clock of the slow rank's node is ahead."""
LONG_S = 60.0
"""Seconds; nothing here takes that long."""
EVEN = RankProgram()
SLOW = RankProgram(extra_ns=40 * MS, clock_ns=SHIFT_NS)


def job(
    nodes: list[Path],
    faults: dict[int, str],
    wait: float = LONG_S,
    tokens: dict[int, str] | None = None,
    ports: dict[int, int] | None = None,
) -> list[str]:
    """Runs the ranks' processes to their ends; returns what each printed. Digests are made meanwhile, or before where
    `wait` is tested. ports: those of the ranks that reach the store at another port, including rank 0."""
    ports = ports or {0: free_port()}

    def reduce() -> None:
        for node in nodes:
            several_nodes.reduce_ranks(node, after_recording.compress, write_digest)

    if wait < LONG_S:
        reduce()
    ranks = [
        start_rank(
            node,
            variables_of(node, rank, len(nodes), ports.get(rank, ports[0]), (tokens or {}).get(rank, SECRET), wait),
            faults.get(rank, ""), LONG_S, warm_python(),
        )
        for rank, node in enumerate(nodes)
    ]  # fmt: skip
    reduce()
    said = []
    for rank, process in enumerate(ranks):
        if faults.get(rank) == "never":  # rank 0 has ended by now
            process.kill()
        said.append(process.communicate(timeout=120)[1])
    return said


def assert_never_stored(folder: Path) -> None:
    """The secret is in no file."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    assert not [path for path in files if SECRET.encode() in path.read_bytes()]


def test_two_nodes_that_share_no_disk_give_one_verdict(tmp_path: Path):
    first, second = write_nodes(tmp_path, [EVEN, SLOW])
    job([first, second], {})
    outcome = read_json(first / NODES / EXCHANGE)
    assert outcome is not None
    assert (outcome["received"], outcome["silent"], outcome["dropped"], outcome["failed"]) == ([1], [], [], None)
    sent = first / NODES / digest_file(1)
    assert sent.read_bytes() == (second / digest_file(1)).read_bytes()
    assert sent.stat().st_size < 1 << 20
    assert sent.stat().st_mode & 0o777 == 0o600
    assert not (second / NODES / EXCHANGE).exists(), "only rank 0 collects"
    diagnosis = gpuprof.diagnose(first)
    assert diagnosis.verdict.cause == "straggler"
    assert "rank 1" in diagnosis.verdict.summary
    assert "recorded on another node, where gpuprof diagnose has its fixes" in diagnosis.verdict.summary
    assert "kernels and phases are of rank 0" in diagnosis.verdict.summary
    assert [finding.id for finding in diagnosis.findings] == ["straggler"], "rank 0 only waits"
    assert diagnosis.ranks is not None
    assert [rank.rank for rank in diagnosis.ranks] == [0, 1]
    assert diagnosis.ranks[1].clock_offset_ns == pytest.approx(SHIFT_NS, abs=MS)
    assert_never_stored(tmp_path)


@pytest.mark.parametrize("fault", few(["lost", "never"], ["lost"]))
def test_a_rank_that_is_lost_or_never_enters_is_named(tmp_path: Path, fault: str, capfd: pytest.CaptureFixture[str]):
    nodes = write_nodes(tmp_path, [EVEN, SLOW, EVEN])
    job(nodes, {2: fault}, wait=4)
    outcome = several_nodes.wait_for_others(nodes[0])
    assert outcome is not None
    assert (outcome["received"], outcome["silent"]) == ([1], [2])
    capfd.readouterr()
    several_nodes.tell_others(outcome)
    said = capfd.readouterr().err
    assert re.fullmatch(r"gpuprof: rank 2 sent nothing within \d+ s: the verdict is without it\n", said)
    assert outcome["waited_s"] >= 4
    diagnosis = gpuprof.diagnose(nodes[0])
    assert diagnosis.verdict.cause == "straggler"
    assert any("2" in issue.message and "rank" in issue.message for issue in diagnosis.quality.issues)


@pytest.mark.measures_time
@pytest.mark.slow
def test_a_slow_link_delays_the_digest_or_costs_it_but_holds_up_no_one(tmp_path: Path):
    """Rank 1 reaches the store through a slow link, rank 2 through one that is too slow. The token is never sent."""
    port, nodes, passed = free_port(), write_nodes(tmp_path, [EVEN, SLOW, EVEN]), list[bytearray]()
    with slow_link(port, 10e3, passed) as slow, slow_link(port, 200) as slower:
        said = job(nodes, {}, wait=8, ports={0: port, 1: slow, 2: slower})
    outcome = read_json(nodes[0] / NODES / EXCHANGE)
    assert outcome is not None
    assert (outcome["received"], outcome["silent"], outcome["dropped"], outcome["failed"]) == ([1], [2], [], None), said
    assert (nodes[0] / NODES / digest_file(1)).read_bytes() == (nodes[1] / digest_file(1)).read_bytes()
    assert 8 <= outcome["waited_s"] < 20
    digest = (nodes[1] / digest_file(1)).read_bytes()
    assert any(digest[:1000] in one for one in passed), "the store's traffic was seen"
    assert not any(SECRET.encode() in one for one in passed)
    assert gpuprof.diagnose(nodes[0]).verdict.cause == "straggler"


def test_a_node_with_another_token_sends_nothing(tmp_path: Path):
    nodes = write_nodes(tmp_path, [EVEN, SLOW])
    other = "another-secret-of-the-same-length"
    _, said = job(nodes, {}, wait=2, tokens={1: other})
    assert "rank 1: what rank 0 sent is not signed with this node's GPUPROF_TOKEN: nothing is sent" in said
    outcome = read_json(nodes[0] / NODES / EXCHANGE)
    assert outcome is not None
    assert (outcome["received"], outcome["silent"]) == ([], [1])


TRAINING = f"""{MODEL}
    import torch.distributed as dist
    dist.init_process_group("gloo")
    model = torch.nn.parallel.DistributedDataParallel(Model())
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches(30):
        loss_of(model, batch).backward()
        opt.step()
        opt.zero_grad()
    dist.destroy_process_group()
"""


def test_trace_on_two_nodes_from_the_window_to_the_last_word(tmp_path: Path):
    """The whole command; on CPUs the recordings hold no GPU work, and that is what rank 0 reports."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINING))
    port = free_port()
    ends: dict[int, subprocess.CompletedProcess[str]] = {}

    def trace(rank: int) -> None:
        node = tmp_path / f"node{rank}"
        node.mkdir()
        variables = variables_of(node, rank, 2, port)
        del variables["GPUPROF_RUN"]
        variables["GPUPROF_NODES_WAIT"] = "120"  # seconds beyond the usual minute: the machine may be busy
        options = ["--settle=2", "--baseline=2", "--no-sampling", "--no-report", "--out", "run"]
        words = [sys.executable, "-m", "gpuprof", "trace", *options, warm_python(), str(script)]
        ends[rank] = subprocess.run(words, env=variables, cwd=node, capture_output=True, text=True, timeout=240)

    threads = [threading.Thread(target=trace, args=(rank,)) for rank in (0, 1)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert [ends[rank].returncode for rank in (0, 1)] == [0, 0], ends
    assert "rank 1 has no digest: trace.rank1.json.gz: holds no GPU work" in ends[0].stderr
    assert "the digests of this node go to rank 0, which prints the verdict of the job" in ends[1].stderr
    assert (tmp_path / "node1" / "run" / "trace.rank1.json.gz").is_file()
    assert not (tmp_path / "node1" / "run" / "verdict.txt").exists()
    assert_never_stored(tmp_path)
    assert not errors_in(tmp_path / "node0" / "run")
    assert not errors_in(tmp_path / "node1" / "run")


@pytest.mark.slow  # four processes that read a recording, four that import torch
def test_four_nodes_print_one_verdict(tmp_path: Path):
    nodes = write_nodes(tmp_path, [EVEN, EVEN, SLOW, EVEN])
    port = free_port()
    ranks = [start_rank(node, variables_of(node, rank, 4, port)) for rank, node in enumerate(nodes)]
    readers = [start_reading(node) for node in nodes]
    said = [reader.communicate(timeout=300)[1] for reader in readers]
    assert [rank.wait(timeout=60) for rank in ranks] == [0] * 4
    assert "The other ranks wait for rank 2" in " ".join(said[0].split())
    for other in said[1:]:
        assert other == "gpuprof: the digests of this node go to rank 0, which prints the verdict of the job\n"
    diagnosis = gpuprof.diagnose(nodes[0])
    assert diagnosis.ranks is not None
    assert diagnosis.ranks[2].clock_offset_ns == pytest.approx(SHIFT_NS, abs=MS)
    assert_never_stored(tmp_path)
