"""Builds small Kineto traces for tests: events in whole nanoseconds, written as the profiler writes them."""

from __future__ import annotations

import gzip
import json
from json.encoder import encode_basestring_ascii
from pathlib import Path
from typing import Any

MAIN, AUTOGRAD = 100, 200


# -- arguments of events, as the profiler names them


def forward_thread(thread: int) -> dict[str, Any]:
    """Of an op: the thread of the forward pass, 0 in the forward pass itself."""
    return {"Fwd thread id": thread}


def sequence(number: int, thread: int = 0) -> dict[str, Any]:
    """Of an op: the number that autograd gave it, and `forward_thread`."""
    return {"Sequence number": number, **forward_thread(thread)}


def external(number: int) -> dict[str, Any]:
    """Of an op and of what it launched: the id that they share."""
    return {"External id": number}


def dims(*shapes: list[int]) -> dict[str, Any]:
    """Of an op: the shapes of its inputs."""
    return {"Input Dims": list(shapes)}


def graph_node(number: int) -> dict[str, Any]:
    """Of GPU work: its node of a CUDA graph."""
    return {"graph node id": number}


def micros(ns: int) -> str:
    """Microseconds as the profiler prints them: three decimals, exact."""
    sign = "-" if ns < 0 else ""
    return f"{sign}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"


class TraceBuilder:
    """Collects events; times are ns, `tid` a host thread, `device` and `stream` where GPU work runs."""

    def __init__(self, gpus: int = 1, **top_level) -> None:
        self.events: list[dict] = []
        self.top_level = {
            "schemaVersion": 1,
            "deviceProperties": [{"id": i, "name": "NVIDIA H200", "totalGlobalMem": 150109880320} for i in range(gpus)],
            **top_level,
        }
        self._correlation = 0

    def event(self, **fields) -> TraceBuilder:
        """Any event; `ts` and `dur` in ns."""
        self.events.append(fields)
        return self

    def op(self, name: str, start: int, end: int, tid: int = MAIN, cat: str = "cpu_op", **args) -> TraceBuilder:
        """A host op; `args` are written as they are (e.g. **{"Sequence number": 3})."""
        return self.event(ph="X", cat=cat, name=name, pid=1, tid=tid, ts=start, dur=end - start, args=args)

    def annotation(self, name: str, start: int, end: int, tid: int = MAIN) -> TraceBuilder:
        return self.op(name, start, end, tid, cat="user_annotation")

    def step(self, number: int, start: int, end: int) -> TraceBuilder:
        return self.annotation(f"ProfilerStep#{number}", start, end)

    def frame(self, name: str, start: int, end: int, tid: int = MAIN, **args) -> TraceBuilder:
        return self.op(name, start, end, tid, cat="python_function", **args)

    def overhead(self, name: str, start: int, end: int) -> TraceBuilder:
        return self.event(ph="X", cat="overhead", name=name, pid=-1, tid=0, ts=start, dur=end - start)

    def call(self, name: str, start: int, end: int, tid: int = MAIN, correlation: int = 0) -> TraceBuilder:
        return self.op(name, start, end, tid, cat="cuda_runtime", correlation=correlation)

    def gpu(
        self, name: str, start: int, end: int, *, device=0, stream=7, correlation=0, cat="kernel", **args
    ) -> TraceBuilder:
        """GPU work without a recorded launch."""
        args = {"device": device, "stream": stream, "correlation": correlation, **args}
        return self.event(ph="X", cat=cat, name=name, pid=device, tid=stream, ts=start, dur=end - start, args=args)

    def launch(
        self,
        name: str,
        call: tuple[int, int],
        work: tuple[int, int],
        *,
        tid: int = MAIN,
        cat: str = "kernel",
        **where,
    ) -> TraceBuilder:
        """A call and the GPU work that it launches, linked by a fresh correlation id."""
        self._correlation += 1
        api = {
            "kernel": "cudaLaunchKernel",
            "gpu_memcpy": "cudaMemcpyAsync",
            "gpu_memset": "cudaMemsetAsync",
        }[cat]
        self.call(where.pop("api", api), *call, tid=tid, correlation=self._correlation)
        return self.gpu(name, *work, correlation=self._correlation, cat=cat, **where)

    def flow(self, cat: str, number: int, begin: tuple[int, int, int], end: tuple[int, int, int]) -> TraceBuilder:
        """An arrow between two (pid, tid, ns)."""
        for ph, (pid, tid, ts) in (("s", begin), ("f", end)):
            self.event(ph=ph, id=number, pid=pid, tid=tid, ts=ts, cat=cat, name=cat)
        return self

    def text(self) -> str:
        """The document as JSON text."""
        events = ",\n".join(self._event_text(e) for e in self.events)
        head = json.dumps(self.top_level)[1:-1]
        return f'{{\n{head}, "traceEvents": [\n{events}\n], "traceName": "test.json"}}'

    def write(self, path: Path) -> Path:
        """Writes the document; gzip if the name says so."""
        data = self.text().encode()
        path.write_bytes(gzip.compress(data, 1) if path.name.endswith(".gz") else data)
        return path

    @staticmethod
    def _event_text(event: dict) -> str:
        fields = {k: (micros(v) if k in ("ts", "dur") else _json(v)) for k, v in event.items()}
        return "{" + ", ".join(f'"{k}": {v}' for k, v in fields.items()) + "}"


def _json(value: object) -> str:
    """`json.dumps`, with a short way for what most fields are."""
    if type(value) is str:
        return encode_basestring_ascii(value)
    return str(value) if type(value) is int else json.dumps(value)
