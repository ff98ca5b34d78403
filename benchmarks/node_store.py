"""How long rank 0 takes to collect the digests of a large job through the store: `python -m benchmarks.node_store`.

All other ranks are one process here, on the same machine: their network is not measured.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpuprof.record.job_nodes.mailbox import StoreMailbox
from gpuprof.record.job_nodes.nodes import CALL, NodeExchange
from gpuprof.record.job_nodes.signed import DIGEST, Message, key_of, number_of, seal
from gpuprof.record.launcher.tell import tell
from gpuprof.runfile import EXCHANGE, NODES, digest_file, read_json

KEY = key_of("a token of this benchmark")


def collect(store: Any, ranks: int) -> str:
    """Rank 0's part; what it took, in words."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / NODES).mkdir()
        (folder / digest_file(0)).write_bytes(b"made")
        exchange = NodeExchange(folder, 0, set(range(ranks)), KEY, tell)
        begun, worked = time.perf_counter(), time.process_time()
        exchange.begin(mailbox=StoreMailbox(store))
        exchange.join()
        took, work = time.perf_counter() - begun, time.process_time() - worked
        outcome = read_json(folder / NODES / EXCHANGE) or {}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return f"{len(outcome['received'])} digests in {took:.2f} s, CPU {work:.2f} s, peak {peak:.0f} MB with torch"


def send(store: Any, ranks: int, size: int) -> None:
    """The part of all others."""
    mailbox, body = StoreMailbox(store), os.urandom(size)
    while not mailbox.has(CALL):
        time.sleep(0.05)
    number = number_of(KEY, mailbox.take(CALL, 1 << 10))
    for rank in range(1, ranks):
        mailbox.put(f"rank{rank}", seal(KEY, number, Message(rank, DIGEST, body)))


def main() -> None:
    """Measures it once."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--bytes", type=int, default=137_000, help="of a digest (3,000 collectives)")
    parser.add_argument("--port", type=int, default=0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.port:
        send(TCPStore("127.0.0.1", args.port, is_master=False), args.ranks, args.bytes)
        return
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    words = ["--ranks", str(args.ranks), "--bytes", str(args.bytes), "--port", str(store.port)]
    others = subprocess.Popen([sys.executable, "-m", "benchmarks.node_store", *words])
    print(collect(store, args.ranks))
    others.wait()


if __name__ == "__main__":
    main()
