"""How fast steps are replayed, as events and what-ifs a second.

    python -m benchmarks.replay [TRACE] [--events 100000]

Steps of a recording (else of a generated one) with about this many events are built into a graph and replayed with
something changed, 25 times. Medians of several rounds; the first call, which compiles, is left out.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.generate import generate
from gpuprof.diagnosis.recorded.representative_steps import representative
from gpuprof.replay.build.build import build
from gpuprof.replay.graph import RESOURCES
from gpuprof.replay.simulate import ROUNDS, simulate
from gpuprof.replay.transform import scale
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.recording import resolve

WHAT_IFS = 25
REPEATS = 5


def events_in(timeline: Timeline) -> int:
    low, high = timeline.window
    trace = timeline.trace
    return sum(int(((t.start_ns >= low) & (t.start_ns < high)).sum()) for t in (trace.ops, trace.calls, trace.gpu))


def seconds(work: Callable[[], object]) -> float:
    """Median seconds of REPEATS runs, after one that is not counted."""
    work()
    taken = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def measure(timeline: Timeline) -> dict[str, float]:
    """Seconds to build, to simulate one round, and for 25 what-ifs of three rounds; and the events they are of."""
    graph = build(timeline)

    def what_ifs() -> None:
        for k in range(WHAT_IFS):
            resource = RESOURCES[k % 5]
            simulate(scale(graph, **{resource: 0.5 + k / 100}), ROUNDS)

    return {
        "events": events_in(timeline),
        "nodes": len(graph),
        "build_s": seconds(lambda: build(timeline)),
        "simulate_s": seconds(lambda: simulate(graph)),
        "what_ifs_s": seconds(what_ifs),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("trace", nargs="?", type=Path)
    parser.add_argument("--events", type=int, default=100_000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = args.trace or Path(folder) / "trace.json"
        if args.trace is None:
            generate(path, 330 * args.events)
        trace = resolve(str(path)).read().trace
        assert trace is not None
        timeline = build_timeline(trace)
        assert timeline is not None
        found = measure(representative(timeline, args.events))
    print(f"{found['events']:,} events, {found['nodes']:,} nodes")
    print(f"build      {found['build_s']:.3f} s")
    print(f"simulate   {found['simulate_s']:.4f} s, {found['events'] / found['simulate_s'] / 1e6:.0f} million events/s")
    print(f"what-ifs   {found['what_ifs_s']:.2f} s for {WHAT_IFS} of {ROUNDS} rounds each")


if __name__ == "__main__":
    main()
