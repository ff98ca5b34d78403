"""Two and five hosts, as network namespaces with addresses of their own: digests through the job's store, with gloo."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from helpers.hosts import INTERFACE, Host, hosts
from helpers.installed import need
from helpers.node_folders import NODE, start_reading, variables_of, write_nodes
from helpers.rank_program import MS, RankProgram
from helpers.trainings import MODEL

import gpuprof
from gpuprof.runfile import NODES, digest_file

need("torch")
pytestmark = pytest.mark.slow  # processes that import torch themselves, as a fork server is in no namespace

PORT = 29500
SHIFT_NS = -2_400_000_000
EVEN = RankProgram()
SLOW = RankProgram(extra_ns=40 * MS, clock_ns=SHIFT_NS)


def variables(node: Path, rank: int, made: list[Host], wait: float) -> dict[str, str]:
    found = variables_of(node, rank, len(made), PORT, wait=wait)
    return found | {"MASTER_ADDR": made[0].address, "GLOO_SOCKET_IFNAME": INTERFACE}


FAULTS = {3: "lost", 4: "never"}


def test_hosts_of_which_one_is_lost_one_never_enters_and_one_has_a_slow_link(tmp_path: Path):
    """Rank 1 has the slow link, and rank 2 has another clock."""
    nodes = write_nodes(tmp_path, [EVEN, EVEN, SLOW, EVEN, EVEN])
    with hosts(5) as made:
        made[1].throttle(30e3)
        ranks = []
        for rank, (node, host) in enumerate(zip(nodes, made, strict=True)):
            (script := node.with_suffix(".py")).write_text(NODE)
            words = host.enter([sys.executable, str(script), str(node), FAULTS.get(rank, ""), "600"])
            environment = variables(node, rank, made, 90 if rank else 45)
            ranks.append(subprocess.Popen(words, env=environment, cwd=node, stderr=subprocess.PIPE, text=True))
        readers = [start_reading(node, 45) for node in nodes[:3]]
        said = [reader.communicate(timeout=400)[1] for reader in readers]
        ranks[4].kill()
        assert [rank.wait(timeout=60) for rank in ranks[:4]] == [0, 0, 0, 1], said
    text = " ".join(said[0].split())
    assert "The other ranks wait for rank 2" in text
    assert re.search(r"ranks 3, 4 sent nothing within \d+ s: the verdict is without them", text), text
    assert all((nodes[0] / NODES / digest_file(rank)).stat().st_size < 1 << 20 for rank in (1, 2))
    diagnosis = gpuprof.diagnose(nodes[0])
    assert diagnosis.ranks is not None and [one.rank for one in diagnosis.ranks] == [0, 1, 2]
    assert diagnosis.ranks[2].clock_offset_ns == pytest.approx(SHIFT_NS, abs=MS)


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


def test_torchrun_on_two_hosts(tmp_path: Path):
    """`gpuprof trace torchrun --nnodes 2 …` on each; on CPUs the recordings hold no GPU work."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(TRAINING))
    with hosts(2) as made:
        running = []
        for rank, host in enumerate(made):
            (node := tmp_path / f"node{rank}").mkdir()
            environment = variables(node, rank, made, 120)
            for name in ("GPUPROF_RUN", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
                environment.pop(name, None)
            options = ["--settle=2", "--baseline=2", "--no-sampling", "--no-report", "--out", "run"]
            words = [sys.executable, "-m", "gpuprof", "trace", *options, sys.executable, "-m", "torch.distributed.run"]
            words += ["--nnodes=2", f"--node-rank={rank}", "--nproc-per-node=2", f"--master-addr={made[0].address}"]
            words = host.enter([*words, f"--master-port={PORT}", str(script)])
            running.append(subprocess.Popen(words, env=environment, cwd=node, text=True, stderr=subprocess.PIPE))
        said = [one.communicate(timeout=500)[1] for one in running]
    assert [one.returncode for one in running] == [0, 0], said
    assert "ranks 2, 3 have no digest: trace.rank2.json.gz: holds no GPU work" in said[0]
    assert "the digests of this node go to rank 0, which prints the verdict of the job" in said[1]
    assert (tmp_path / "node1" / "run" / "trace.rank3.json.gz").is_file()
