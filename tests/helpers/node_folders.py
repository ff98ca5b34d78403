"""Nodes of one job, each with a run folder of its own in which its rank's window has closed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from gpuprof.cli.trace import closing_command
from gpuprof.record.job_nodes.nodes import WAIT
from gpuprof.record.job_nodes.signed import TOKEN
from gpuprof.record.launcher.recording_reader import ENDED
from gpuprof.runfile import NODES, RUN_VARIABLE, SCHEMA
from helpers.rank_program import RankProgram, recording, run
from helpers.started import environment

SECRET = "correct-horse-battery-staple"

NODE = """
import json, os, sys
from pathlib import Path
import torch.distributed as dist
from gpuprof.record.job_nodes.nodes import exchange_of
from gpuprof.record.launcher.tell import tell

folder, fault = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
place = {"schema": "gpuprof.run/1", "rank": rank, "world_size": world, "pid": os.getpid()}
(folder / f"rank{rank}.json").write_text(json.dumps(place))
exchange = exchange_of(folder, rank, world, None, tell)
dist.barrier()
if fault == "lost":
    os._exit(1)
if fault == "never":
    import time
    time.sleep(float(sys.argv[3]))
    os._exit(0)
exchange.begin()
exchange.finish()
"""
"""What a rank's process does once its window has closed; `python NODE FOLDER FAULT SECONDS`."""


def write_nodes(folder: Path, programs: Sequence[RankProgram], steps: int = 4) -> list[Path]:
    """A run folder for each rank, as it is when its window has closed."""
    done = run(list(programs), steps)
    folders = []
    for rank, program in enumerate(programs):
        node = folder / f"node{rank}"
        (node / NODES).mkdir(parents=True)
        (node / "manifest.json").write_text(json.dumps({"schema": SCHEMA, "status": "running"}))
        place = {"schema": SCHEMA, "rank": rank, "world_size": len(programs), "pid": os.getpid()}
        (node / f"rank{rank}.json").write_text(json.dumps(place))
        recording(rank, program, done[rank], len(programs)).write(node / f"trace.rank{rank}.json.gz")
        folders.append(node)
    return folders


def variables_of(node: Path, rank: int, ranks: int, port: int, token: str = SECRET, wait: float = 20) -> dict[str, str]:
    """The environment of a rank's process, as launchers set it."""
    place = {"RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    place |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    return environment(**place, **{TOKEN: token, WAIT: f"{wait:g}", RUN_VARIABLE: str(node)})


def start_rank(
    node: Path, variables: dict[str, str], fault: str = "", seconds: float = 0.0, python: str = sys.executable
) -> subprocess.Popen[str]:
    """Starts a rank's process; `fault`: "lost" dies in the window, "never" does not take part for `seconds`."""
    script = node.with_suffix(".py")
    script.write_text(NODE)
    return subprocess.Popen(
        [python, str(script), str(node), fault, str(seconds)],
        env=variables,
        stderr=subprocess.PIPE,
        text=True,
        cwd=node,
    )


def start_reading(node: Path, wait: float = 20) -> subprocess.Popen[str]:
    """Starts what `gpuprof trace` starts on a node when the window has closed."""
    words, variables = closing_command(node, ENDED, diagnose=True)
    return subprocess.Popen(words, env={**variables, WAIT: f"{wait:g}"}, stderr=subprocess.PIPE, text=True, cwd=node)


def free_port() -> int:
    """A port of this machine that nothing listens on."""
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
