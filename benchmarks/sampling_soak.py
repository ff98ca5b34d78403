"""A long soak test of the sampler: a program that changes Python's stacks in every way is sampled for an hour.

    python -m benchmarks.sampling_soak [--minutes 60] [--python PYTHON …] [--busy 0.1] [--period-ms 4]

Each Python runs its own program at the same time, at the lowest priority. It imports modules and drops them, forks,
starts threads (one is named as autograd's are, so that its stack is read too), collects garbage, raises through deep
calls, recurses near the limit, leaves generators and coroutines half-way, and compiles functions and drops them; it
sleeps the rest of the time. Every 20 s the sampler ends, is read, and starts again. Exits with 1 if a program crashed,
a sampler ended by itself, or more than 2 % of the samples taken while the program was busy could not be read.

The program needs nothing but the standard library, so that any Python will do.
"""

from __future__ import annotations

import _thread
import argparse
import asyncio
import contextlib
import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
import warnings
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

MOST_UNREAD = 0.02
STRETCH_S = 20.0
BURST_S = 0.05
"""Seconds for which the program is busy at a time, before it sleeps."""
AUTOGRAD_NAME = "pt_autograd_0"
PATIENCE_S = 120.0
"""Seconds to wait for the samples of a stretch: the machine may be busy."""


# -- what the program does


def deep(n: int) -> int:
    """Frames that are pushed and popped."""
    return 0 if n <= 0 else deep(n - 1) + 1


def recursion(_: Path) -> None:
    """Shallow and deep recursion, and one beyond the limit."""
    deep(30)
    deep(300)
    with contextlib.suppress(RecursionError):
        deep(10**6)


def exceptions(_: Path) -> None:
    """Raised through deep calls, caught, chained, and left with their tracebacks in a cycle."""

    def fall(n: int) -> None:
        if not n:
            raise KeyError(n)
        try:
            fall(n - 1)
        except KeyError as error:
            if n % 7 == 0:
                raise KeyError(n) from error
            raise

    for n in (3, 40, 150):
        with contextlib.suppress(KeyError):
            fall(n)


def generators(_: Path) -> None:
    """Run to their end, left half-way, and closed in the middle of a deep `yield from`."""

    def chain(n: int) -> Iterator[int]:
        yield n
        if n:
            yield from chain(n - 1)

    def closing() -> Generator[int, None, None]:
        try:
            yield from chain(20)
        finally:
            deep(10)

    sum(chain(40))
    half = closing()
    next(half)
    half.close()
    left = chain(30)
    next(left)
    next(left)


def coroutines(_: Path) -> None:
    """Tasks that wait for each other; one is cancelled."""

    async def wait(n: int) -> int:
        await asyncio.sleep(0)
        return await wait(n - 1) if n else deep(5)

    async def main() -> None:
        tasks = [asyncio.ensure_future(wait(n)) for n in range(6)]
        tasks[-1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    asyncio.run(main())


def garbage(_: Path) -> None:
    """Cycles with finalizers that run Python code while they are collected."""

    class Node:
        def __init__(self, depth: int) -> None:
            self.me = self
            self.children = [Node(depth - 1) for _ in range(2)] if depth else []

        def __del__(self) -> None:
            deep(3)

    Node(5)
    gc.collect()


def compiled(_: Path) -> None:
    """Functions with names of every width that are compiled, called and dropped."""
    for name in ("made", "gemacht_\u00e4", "\u4f5c"):
        names: dict[str, Any] = {}
        exec(f"def {name}(n):\n    return [i for i in range(n)]\n{name}(5)", names)
    sorted(range(5), key=lambda _: deep(3))


def imports(folder: Path) -> None:
    """A module is written, imported, run and dropped."""
    name = f"soaked_{time.monotonic_ns()}"
    file = folder / f"{name}.py"
    file.write_text("import json.decoder\ndef run(n):\n    return n and run(n - 1)\nrun(20)\n")
    importlib.invalidate_caches()
    importlib.import_module(name).run(5)
    del sys.modules[name]
    file.unlink()


def threads(_: Path) -> None:
    """Threads that live for a moment; one has the name of autograd's."""

    def work(name: str | None) -> None:
        if name is not None:
            with contextlib.suppress(OSError):
                Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(name)
        for _ in range(5):
            deep(50)

    some = [threading.Thread(target=work, args=(AUTOGRAD_NAME if not i else None,)) for i in range(3)]
    for one in some:
        one.start()
    for one in some:
        one.join()


def forked(_: Path) -> None:
    """A child that runs Python code and ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: there are threads
        child = os.fork()
    if not child:
        signal.alarm(30)  # a child that hangs does not hang the soak
        deep(20)
        os._exit(0)
    os.waitpid(child, 0)


DOES: tuple[Callable[[Path], None], ...] = (
    recursion, exceptions, generators, coroutines, garbage, compiled, imports, threads, forked,
)  # fmt: skip


LASTING = """
def hooks(end):
    while monotonic() < end:
        deep(40)
        sleep(0.01)
    ended.set()
"""


def lasting_autograd(end: float) -> threading.Event:
    """Starts a thread that stays until then and looks like autograd's: by its name, and, as Python 3.10 does not say
    which thread of the system one is, by the file of its outermost function. Set once it has ended."""
    ended = threading.Event()
    names: dict[str, Any] = {"monotonic": time.monotonic, "sleep": time.sleep, "deep": deep, "ended": ended}
    exec(compile(LASTING, "torch/autograd/hooks.py", "exec"), names)
    _thread.start_new_thread(names["hooks"], (end,))
    for task in Path("/proc/self/task").iterdir():  # all are named, but for the first
        if task.name != str(os.getpid()):
            with contextlib.suppress(OSError):
                (task / "comm").write_text(AUTOGRAD_NAME)
    return ended


def program(seconds: float, busy: float, period_ms: float) -> dict[str, Any]:
    """Does all of it while being sampled; what the sampler read, in sums of all stretches, and what was done."""
    package = types.ModuleType("_gpuprof")
    package.__path__ = [str(Path(__file__).resolve().parents[1] / "gpuprof")]
    sys.modules["_gpuprof"] = package
    sampling = importlib.import_module("_gpuprof.record.stacks.sampling")
    begun = time.monotonic()
    end, turn = begun + seconds, 0
    total: dict[str, Any] = {"stretches": 0, "samples": 0, "busy": 0, "autograd": 0, "unread": 0, "ended_early": 0}
    done = {one.__name__: 0 for one in DOES}
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as name:
            folder, until = Path(name), min(time.monotonic() + STRETCH_S, max(end, time.monotonic() + 1.0))
            sys.path.insert(0, name)
            lasting = lasting_autograd(until)
            # As many seconds a step as make the sampler choose this period.
            at_hand = sampling.Sampling(folder, 0, period_ms / 1e3 * sampling.USUAL_SAMPLES)
            at_hand.begin(1, extends=False)
            while time.monotonic() < until:
                burst = time.monotonic() + BURST_S
                while time.monotonic() < burst:
                    what = DOES[turn % len(DOES)]
                    what(folder)
                    done[what.__name__] += 1
                    turn += 1
                if busy < 1.0:
                    time.sleep(BURST_S * (1.0 / busy - 1.0))
            lasting.wait()
            at_hand.step()
            at_hand.end(1)
            found = written(folder)
            sys.path.remove(name)
        total["stretches"] += 1
        total["ended_early"] += found is None
        if found is not None:
            count(found, total)
    return total | {"minutes": round((time.monotonic() - begun) / 60, 1), "done": done}


def count(found: dict[str, Any], total: dict[str, Any]) -> None:
    """Adds the samples of a stretch. Those are busy in which the program is within what it does."""
    own = {one.__name__ for one in DOES}
    of_own = [function[2].rpartition(".")[2] in own for function in found["functions"]]
    is_busy: list[bool] = []
    for caller, function, _ in found["nodes"]:
        is_busy.append(of_own[function] or (caller >= 0 and is_busy[caller]))
    total["samples"] += len(found["samples"])
    total["busy"] += sum(is_busy[node] for _, node, _ in found["samples"])
    total["autograd"] += sum(other >= 0 for _, _, other in found["samples"])
    total["unread"] += found["unread"]


def written(folder: Path) -> dict[str, Any] | None:
    """What the sampler wrote; None if it ended without."""
    file, patience = folder / "samples.rank0.json", time.monotonic() + PATIENCE_S
    while not file.exists():
        if time.monotonic() > patience or (folder / "gpuprof.log").exists():
            return None
        time.sleep(0.02)
    return json.loads(file.read_text())


# -- each Python


def has_failed(found: dict[str, Any] | None) -> bool:
    """Whether what a program says of its soak, None where it crashed, is a failure."""
    return found is None or bool(found["ended_early"]) or found["unread"] > MOST_UNREAD * found["busy"]


def main() -> int:
    """Soaks each Python; 1 if one fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--busy", type=float, default=0.1, help="share of the time in which the program works")
    parser.add_argument("--period-ms", type=float, default=4.0, help="from one sample to the next")
    parser.add_argument("--python", action="append", help="a Python to soak (default: this one)")
    parser.add_argument("--program", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.program:
        print(json.dumps(program(asked.minutes * 60, asked.busy, asked.period_ms)))
        return 0
    words = [f"--minutes={asked.minutes}", f"--busy={asked.busy}", f"--period-ms={asked.period_ms}", "--program"]
    running = [
        (
            python,
            subprocess.Popen(
                [python, "-X", "faulthandler", __file__, *words],
                stdout=subprocess.PIPE, preexec_fn=lambda: os.nice(19),
            ),
        )
        for python in asked.python or [sys.executable]
    ]  # fmt: skip
    failed = False
    for python, process in running:
        answer, _ = process.communicate()
        found = json.loads(answer) if process.returncode == 0 else None
        print(f"{python}: exit {process.returncode} {json.dumps(found)}", flush=True)
        failed |= has_failed(found)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
