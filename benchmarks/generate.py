"""Writes a Kineto trace of a fine-tune, of any size, in any of the layouts PyTorch has used.

    python -m benchmarks.generate trace.json.gz --bytes 250MB --layout kineto

The text is that of a recording on an H200: its events, their nesting, names, shapes and arguments. Every step
repeats the first with other times and ids. What is written depends on the options alone.
"""

from __future__ import annotations

import argparse
import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from benchmarks.layouts import LAYOUTS, Layout
from benchmarks.synthetic_finetune import record
from benchmarks.synthetic_step import AUTOGRAD, COMPUTE, COPY, MAIN, PROFILER, Event, Number, Step

BASE_NS = 1_790_857_026_000_000_000
"""Times in the file count from here."""
START_NS = 4_390_147_251_847_232
STEP_BYTES = 32_000_000
"""Approximate size of a step, so that files of every size have steps like those of real ones."""
UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9}
TIME = "%d.%03d"
FIRST = {"step": 2, "external": 113_153, "correlation": 3_712_185, "sequence": 220_677, "fwdbwd": 1}
"""Where counters start; those not named start at 0."""


@dataclass(slots=True)
class Section:
    """The events of a step as a template."""

    text: str
    slots: np.ndarray
    """Rows hi, lo, base, stride, div and mod, with a column for each `%d` of the text."""

    def rendered(self, times: np.ndarray, step: int) -> str:
        """The text for one step, given its times in ns."""
        hi, lo, base, stride, div, mod = self.slots
        values = (times[hi] - times[lo] + base + step * stride) // div % mod
        return self.text % tuple(values.tolist())


@dataclass(slots=True)
class Template:
    """Turns the events of a section into its text and slots."""

    layout: Layout
    counts: dict[str, int]
    """How much each counter grows per step."""
    first: dict[str, int]
    text: list[str] = field(default_factory=list)
    slots: list[tuple[int, int, int, int, int, int]] = field(default_factory=list)

    def add(self, e: Event) -> None:
        """Adds one event."""
        pid, tid = map(str, e.thread)
        fields = {"ph": f'"{e.phase}"', "cat": f'"{e.category}"', "name": f'"{e.name}"', "bp": '"e"'}
        fields |= {"id": "%d", "pid": pid, "tid": tid, "ts": TIME, "dur": TIME}
        self.text.append(self.layout.event(e.phase, fields, e.args))
        self.slots.extend(map(self._number, e.named))
        self._time(e.start, 0)
        if e.phase == "X":
            self._time(e.end, e.start)
        self.slots.extend(map(self._number, e.numbers))

    def _number(self, number: Number) -> tuple[int, int, int, int, int, int]:
        counter, place = number
        return 0, 0, self.first.get(counter, 0) + place, self.counts.get(counter, 1), 1, 2**62

    def _time(self, hi: int, lo: int) -> None:
        """Slots for whole microseconds and the remaining nanoseconds. Place 0 is 0: with it as `lo` this is a time."""
        self.slots += (hi, lo, 0, 0, 1000, 2**62), (hi, lo, 0, 0, 1, 1000)

    def section(self) -> Section:
        """The section with the events that were added."""
        columns = np.array(self.slots, dtype=np.int64).reshape(-1, 6).T
        return Section("".join(self.text), np.ascontiguousarray(columns))


class Clock:
    """When things happen; deterministic for each step."""

    def __init__(self, step: Step, steps: int, seed: int) -> None:
        self._seed = seed
        self._costs_ns = np.array(step.costs_ns, dtype=np.float64)
        self._synchronized = step.synchronized
        self._gpu_ns = np.array([work.ns for work in step.gpu], dtype=np.float64)
        self._varies = np.array([work.varies for work in step.gpu])
        self._launched = np.array([work.launched for work in step.gpu])
        self._streams = np.array([work.stream for work in step.gpu])
        lengths = [self._relative(i)[len(self._costs_ns)] for i in range(steps)]
        self._origins = START_NS + np.concatenate([[0], np.cumsum(lengths)])
        self.end_ns = int(self._origins[-1])

    def times(self, step: int) -> np.ndarray:
        """The ns at each place: 0, the host's boundaries, and from the end start and end of each GPU work."""
        times = self._relative(step)
        times[1:] += self._origins[step]
        return times

    def _relative(self, step: int) -> np.ndarray:
        rng = np.random.default_rng([self._seed, step])
        host = np.cumsum(1 + (self._costs_ns * rng.lognormal(0, 0.25, len(self._costs_ns))).astype(np.int64))
        noise = np.where(self._varies, rng.lognormal(0, 0.05, len(self._gpu_ns)), 1)
        gpu_ns, arrived = (self._gpu_ns * noise).astype(np.int64), host[self._launched - 1] + 900
        ends = np.empty_like(arrived)
        for stream in (COMPUTE, COPY):
            on = self._streams == stream
            ends[on] = queued(arrived[on], gpu_ns[on] + 700)
        # What the CPU does after a wait happens that much later.
        waited = max(0, int(ends.max()) + 1_500 - int(host[self._synchronized - 1]))
        host[self._synchronized - 1 :] += waited
        gpu = np.stack([ends - gpu_ns, ends], axis=1).ravel()
        return np.concatenate([[0], host, gpu[::-1]])


def queued(arrived: np.ndarray, durations: np.ndarray) -> np.ndarray:
    """When each of a queue's jobs ends, if it starts on arrival or at the end of the one before."""
    total = np.cumsum(durations)
    return total + np.maximum.accumulate(arrived - (total - durations))


def written(out: IO[str], name: str, layout: Layout, step: Step, steps: int, seed: int) -> None:
    """Write the whole trace."""
    clock = Clock(step, steps, seed)
    first = FIRST | {"main": steps * step.counts["autograd"]}
    out.write(layout.head.replace("BASE", str(BASE_NS)))
    if layout.metadata_first:
        out.write(metadata(layout))
    for events in step.sections.values():
        template = Template(layout, step.counts, first)
        for event in events:
            template.add(event)
        section = template.section()
        for i in range(steps):
            out.write(section.rendered(clock.times(i), i))
    if not layout.metadata_first:
        out.write(metadata(layout))
    out.write(closing(layout, clock.end_ns))
    out.write(layout.tail.replace("BASE", str(BASE_NS)).replace("NAME", name))


def metadata(layout: Layout) -> str:
    """What processes and threads are called: this one's, and those of 16 GPUs, of which one was used."""
    text = []

    def describe(name: str, pid: int, tid: int, key: str, value: str) -> None:
        fields = {"name": f'"{name}"', "ph": '"M"', "ts": in_us(START_NS), "pid": str(pid), "tid": str(tid)}
        text.append(layout.event("M", fields, f'"{key}": {value}'))

    for pid, label, order in [
        (MAIN[0], "CPU", MAIN[0]),
        *((i, f"GPU {i}", 5_000_000 + i) for i in range(16)),
    ]:
        describe("process_name", pid, 0, "name", '"python3"')
        describe("process_labels", pid, 0, "labels", f'"{label}"')
        describe("process_sort_index", pid, 0, "sort_index", str(order))
    threads = {MAIN: "thread 513 (python3)", AUTOGRAD: "thread 575 (pt_autograd_0)", PROFILER: "thread 0"}
    threads |= {(0, COMPUTE): f"stream {COMPUTE} ", (0, COPY): f"stream {COPY} "}
    for (pid, tid), name in threads.items():
        describe("thread_name", pid, tid, "name", f'"{name}"')
        describe("thread_sort_index", pid, tid, "sort_index", str(tid))
    return "".join(text)


def closing(layout: Layout, end_ns: int) -> str:
    """The profiler's own session, and the end of what it recorded; after that no comma."""
    ts, session = in_us(START_NS), '"PyTorch Profiler (0)"'
    at = {"pid": '"Spans"', "tid": '"PyTorch Profiler"', "ts": ts, "dur": in_us(end_ns - START_NS)}
    text = layout.event("X of spans", {"ph": '"X"', "cat": '"Trace"', "name": session, **at}, '"Op count": 0')
    fields = {"ph": '"M"', "name": '"process_sort_index"', "ts": ts, "pid": '"Spans"', "tid": "0"}
    text += layout.event("M of spans", fields, '"sort_index": 536870912')
    begin = {"ph": '"i"', "s": '"g"', "name": '"Iteration Start: PyTorch Profiler"', "ts": ts}
    text += layout.event("i", {**begin, "pid": '"Traces"', "tid": '"Trace PyTorch Profiler"'}, "")
    end = {"name": '"Record Window End"', "pid": '""', "tid": '""', "ts": in_us(end_ns + 80_000_000)}
    head, _, tail = layout.event("i", {**begin, **end}, "").rpartition(",")
    return text + head + tail


def in_us(ns: int) -> str:
    """Microseconds with three decimals."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def recorded(nbytes: int, steps: int | None, layout: Layout, seed: int) -> tuple[Step, int]:
    """(a step, how many times to write it) for a file of about this many bytes."""
    sizes = []
    for few in (1, 2):
        step = record(few, seed)
        template = Template(layout, step.counts, FIRST)
        for event in (event for section in step.sections.values() for event in section):
            template.add(event)
        section = template.section()
        sizes.append(len(section.rendered(Clock(step, 1, seed).times(0), 0)))
    layer_bytes = sizes[1] - sizes[0]
    fixed_bytes = sizes[0] - layer_bytes

    def layers(count: int) -> int:
        return max(1, round((nbytes / count - fixed_bytes) / layer_bytes))

    # Layers are large, so some numbers of steps come closer to the size than others.
    usual = max(2, round(nbytes / STEP_BYTES))
    counts = [steps] if steps else range(max(2, usual // 2), 2 * usual + 1)
    best = min(counts, key=lambda count: abs(count * (fixed_bytes + layers(count) * layer_bytes) - nbytes))
    return record(layers(best), seed), best


@contextmanager
def opened(path: Path) -> Iterator[IO[str]]:
    """A text file to write, compressed if its name says so."""
    if path.suffix == ".gz":
        # Level 6 and no time of writing: the same bytes whenever they are written.
        packed = gzip.GzipFile(path, "wb", compresslevel=6, mtime=0)
        with packed, io.TextIOWrapper(packed, "utf-8", newline="\n") as out:
            yield out
    else:
        with path.open("w", encoding="utf-8", newline="\n") as out:
            yield out


def size(text: str) -> int:
    """Bytes, from `250MB`, `1GB` or a plain number."""
    number = text.upper().removesuffix("B")
    unit = number[-1:] if number[-1:] in UNITS else ""
    return int(float(number.removesuffix(unit)) * UNITS[unit])


def generate(path: Path, nbytes: int, layout: str = "kineto", steps: int | None = None, seed: int = 0) -> int:
    """Write a trace of about `nbytes` bytes of JSON to `path`; returns the number of events without metadata."""
    step, count = recorded(nbytes, steps, LAYOUTS[layout], seed)
    with opened(path) as out:
        written(out, path.name, LAYOUTS[layout], step, count, seed)
    return count * sum(map(len, step.sections.values()))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("out", type=Path, help="the file to write; compressed if it ends in .gz")
    parser.add_argument("--bytes", type=size, default="250MB", help="how much JSON, about")
    parser.add_argument("--layout", choices=sorted(LAYOUTS), default="kineto")
    parser.add_argument("--steps", type=int, help="how many training steps (default: so that each is some 32 MB)")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(generate(options.out, options.bytes, options.layout, options.steps, options.seed), "events")


if __name__ == "__main__":
    main()
