"""30 kills, of `gpuprof try` and of the server of agents, at any moment: no process is left, and no scratch folder."""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.command import variables
from helpers.paths import ROOT
from helpers.started import wait_for
from helpers.trials import make_run

from gpuprof.trial.sandbox.kinds import HOOKS, LANDLOCK, NAMESPACE

KILLS = 30
LASTS_S = 4.0
"""Within this time of its start a process is killed."""
PROGRAM = """
import subprocess, time
subprocess.Popen(["env", "-i", "sh", "-c", "exec sleep {mark}"], start_new_session=True)
subprocess.run(["sh", "-c", "(setsid sleep {mark} &)"])
open("made.txt", "w").write("x")
time.sleep(600)
"""


def left(scratch: Path, mark: str) -> list[str]:
    """Processes that have the scratch folder in their environment, or sleep for that time."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            words, variables = ((place / name).read_bytes().split(b"\0") for name in ("cmdline", "environ"))
        except OSError:
            continue
        of_trial = any(one.startswith(b"GPUPROF_TRIAL=" + os.fsencode(scratch)) for one in variables)
        if of_trial or (words[0] == b"sleep" and words[1:2] == [mark.encode()]):
            found.append(b" ".join(words).decode(errors="replace"))
    return found


def killed(folder: Path, case: int) -> tuple[int, list[str], list[str]]:
    """Kills one; returns how many of its processes ran then, and the processes and temporary folders that are left."""
    rng = random.Random(case)
    scratch, mark = Path(tempfile.mkdtemp(prefix="kill-")), f"9{case:02}.{os.getpid()}"
    folder.mkdir()
    (folder / "train.py").write_text(PROGRAM.format(mark=mark))
    run = make_run(folder, python=sys.executable)
    environment = variables(
        TMPDIR=str(scratch), PYTHONPATH=str(ROOT), GPUPROF_SANDBOX=(NAMESPACE, LANDLOCK, HOOKS)[case % 3]
    )
    number = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
    after_s = rng.uniform(0.3, LASTS_S)
    if case % 2:
        running = asyncio.run(_kill_server(folder, environment, number, after_s, lambda: len(left(scratch, mark))))
    else:
        words = [sys.executable, "-m", "gpuprof", "try", "--fix", "input_workers=2", sys.executable, "train.py"]
        with subprocess.Popen(
            words, cwd=folder, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:  # fmt: skip
            time.sleep(after_s)
            running = len(left(scratch, mark))
            process.send_signal(number)
    wait_for(lambda: not left(scratch, mark) and not list(scratch.glob("gpuprof-try-*")), 30)
    found = running, left(scratch, mark), [path.name for path in scratch.glob("gpuprof-try-*")]
    shutil.rmtree(scratch, ignore_errors=True)
    assert json.loads((run / "manifest.json").read_text()) and not (folder / "made.txt").exists()
    return found


async def _kill_server(
    folder: Path, environment: dict[str, str], number: int, after_s: float, count: Callable[[], int]
) -> int:
    """Kills a server that runs the tool `try`; returns how many processes ran then."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gpuprof", "mcp", "--allow-run", cwd=folder, env=environment,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    assert server.stdin is not None and server.stdout is not None
    call = {"name": "try", "arguments": {"command": [sys.executable, "train.py"], "fixes": ["input_workers=2"]}}
    hello = {"protocolVersion": "2025-03-26", "capabilities": {}, "clientInfo": {"name": "test", "version": "0"}}
    messages = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call},
    ]
    server.stdin.write(json.dumps(messages[0]).encode() + b"\n")
    await asyncio.wait_for(server.stdout.readline(), 60)
    for message in messages[1:]:
        server.stdin.write(json.dumps(message).encode() + b"\n")
    await server.stdin.drain()
    await asyncio.sleep(after_s)
    running = count()
    server.send_signal(number)
    if number == signal.SIGINT:
        server.stdin.close()  # a client that goes away
    await asyncio.wait_for(server.wait(), 60)
    return running


@pytest.mark.slow
def test_thirty_kills_leave_no_process(tmp_path: Path):
    pytest.importorskip("mcp.server.mcpserver", reason="the extra [mcp] is not installed")
    found = {case: killed(tmp_path / str(case), case) for case in range(KILLS)}
    kept = {case: what for case, what in found.items() if what[1:] != ([], [])}
    running = sum(what[0] > 2 for what in found.values())
    print(f"{KILLS} kills, {running} of them while the program ran; {len(kept)} left something")
    assert kept == {} and running >= KILLS // 3
