"""Traces to spoil, ways to damage them, and the command on a file in a process of its own."""

from __future__ import annotations

import gzip
import random
import subprocess
import sys
import time
import zipfile
from io import BytesIO
from pathlib import Path

from helpers.bad_input import ENVIRONMENT, Result, good


def text(rounds: int = 12) -> str:
    return good(rounds).text()


def event(cat: str = "cpu_op", extra: str = "", args: str = "", **values: str) -> str:
    """An event whose values are given as JSON text."""
    v = {"ph": '"X"', "name": '"aten::mm"', "pid": "1", "tid": "100", "ts": "10", "dur": "20"} | values
    where = {"device": "0", "stream": "7", "correlation": "1", "External id": "1", "bytes": "8"}
    inner = ", ".join(f'"{key}": {v.pop(key, value)}' for key, value in where.items())
    outer = ", ".join(f'"{key}": {value}' for key, value in v.items())
    return f'{{"cat": "{cat}", {outer}{extra}, "args": {{{inner}{args}}}}}'


def with_events(*events: str) -> str:
    """A sound trace with these events before its own."""
    return text().replace('"traceEvents": [\n', '"traceEvents": [\n' + "".join(f"{e},\n" for e in events), 1)


def alone(*events: str) -> str:
    return '{"traceEvents": [\n' + ",\n".join(events) + "\n]}"


def named(name: str) -> str:
    """A trace in which everything has the same name, given as JSON text of a string."""
    spans = [("kernel", "5000"), ("cpu_op", "30000"), ("user_annotation", "40000"), ("python_function", "50000")]
    return alone(*(event(cat, name=name, dur=dur) for cat, dur in spans))


def crowd(count: int, tid: bool = False, pid: bool = False, stream: bool = False, device: bool = False) -> str:
    """`count` ops, each with a launch and a kernel, on as many threads, processes, streams or devices."""
    events = []
    for i in range(count):
        where = {"tid": str(i) if tid else "1", "pid": str(i) if pid else "1"}
        on = {"stream": str(i) if stream else "7", "device": str(i) if device else "0", "correlation": str(i + 1)}
        events += [
            event(ts=str(10 * i), dur="5", **where),
            event("cuda_runtime", name='"cudaLaunchKernel"', ts=str(10 * i + 1), dur="2", **where, **on),
            event("kernel", name='"gemm"', ts=str(10 * i + 4), dur="5", **on),
        ]
    return alone(*events)


def zipped() -> bytes:
    out = BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("trace.json", text())
    return out.getvalue()


def packed() -> bytes:
    """Much larger than the pieces in which it is unpacked."""
    rng = random.Random(1)
    builder = good(300)
    for e in builder.events:
        e["args"] = e.get("args", {}) | {"noise": rng.getrandbits(64)}
    return gzip.compress(builder.text().encode())


def flipped(data: bytes, at: float) -> bytes:
    place = int(len(data) * at)
    return data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :]


def cut(data: bytes | str, share: float) -> bytes:
    data = data.encode() if isinstance(data, str) else data
    return data[: int(len(data) * share)]


def command(*arguments: str | Path, timeout_s: float = 120, **options) -> Result:
    """The command in a process of its own."""
    begun = time.monotonic()
    child = subprocess.run(
        [sys.executable, "-m", "gpuprof", "diagnose", *map(str, arguments)], capture_output=True, env=ENVIRONMENT,
        timeout=timeout_s, check=False, **options,
    )  # fmt: skip
    err = "".join(line for line in child.stderr.decode().splitlines(True) if "compiling the trace reader" not in line)
    return Result(child.returncode, child.stdout.decode(), err, time.monotonic() - begun)
