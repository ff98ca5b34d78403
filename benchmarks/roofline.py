"""How accurate FLOPs, bytes and bounds are compared with hardware counters, and how much of other recordings is
modelled.

    python -m benchmarks.roofline ../shared/traces
    python -m benchmarks.roofline ../shared/traces --json

`h200/roofline_pair` is one step recorded twice, with the profiler and with Nsight Compute, the same kernels in the same
order. Exits with 1 if a limit is missed:

gemm flops      FLOPs of every bf16 matmul over what the tensor cores counted. A counter also counts the part of
                a tile that lies outside of the output, so up to 1 % over ours is exact.
elementwise     Bytes of elementwise kernels and copies: mean distance from the counters, weighted with time.
bytes           Bytes of all kernels together over those of the counters.
bound           Time of the modelled kernels that no launch floor hides for which compute or memory is what the counters
                say: the larger of tensor-pipe and DRAM activity.
unmodelled      Share of the GPU time, without communication, whose work is not known; for every recording.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from gpuprof.costs.dtypes import CODE
from gpuprof.costs.roofline import Roofline, roofline
from gpuprof.costs.split import COMPUTE, LATENCY, MEMORY
from gpuprof.timeline.categories import CATEGORIES
from gpuprof.timeline.timeline import Timeline, build_timeline
from gpuprof.tracefile.kineto.reader import read_kineto
from gpuprof.tracefile.trace import KERNEL

GEMM_OVER, ELEMENTWISE, BYTES, BOUND, UNMODELLED = 0.01, 0.30, 0.10, 0.95, 0.10
"""Limits."""
PAIR = "h200/roofline_pair"
_STREAMING = [CATEGORIES.index(name) for name in ("elementwise", "cast/copy")]
_SURE_BYTES = 1_000_000
"""Below this many bytes a counter shows little but its own error."""


@dataclass(frozen=True, slots=True)
class Agreement:
    """One recording next to the counters of the same kernels."""

    gemm_flops_low: float
    """Counted over computed FLOPs of bf16 matmuls: the least, and the most."""
    gemm_flops_high: float
    elementwise_error: float
    bytes_ratio: float
    bound_share: float
    judged_share: float
    """Share of the time that `bound_share` refers to."""

    @property
    def holds(self) -> bool:
        exact = self.gemm_flops_low >= 1 - 1e-9 and self.gemm_flops_high <= 1 + GEMM_OVER
        return (
            exact
            and self.elementwise_error <= ELEMENTWISE
            and abs(self.bytes_ratio - 1) <= BYTES
            and self.bound_share >= BOUND
        )


@dataclass(frozen=True, slots=True)
class Coverage:
    """What the roofline makes of one recording."""

    name: str
    gpu: str
    events: int
    compute: float
    memory: float
    latency: float
    inefficient: float
    unmodelled: float
    """Shares of all GPU time; the five sum to 1."""
    unmodelled_share: float
    """Share of the time that is not communication."""
    seconds: float
    """Time of the computation."""


def load(path: Path) -> Timeline | None:
    return build_timeline(read_kineto(path, path.stat().st_size, small_bytes=1 << 28))


def counters(path: Path) -> list[dict[str, float]]:
    """Per kernel, in order of launch, its metrics by name, as `ncu --csv --page raw` wrote them line by line."""
    kernels: dict[int, dict[str, float]] = {}
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for row in csv.DictReader(line for line in file if line.startswith('"')):
            kernels.setdefault(int(row["ID"]), {})[row["Metric Name"]] = float(row["Metric Value"].replace(",", ""))
    return [kernels[i] for i in sorted(kernels)]


def compare(timeline: Timeline, found: Roofline, counted: list[dict[str, float]]) -> Agreement:
    """Compares a roofline with counters. Raises ValueError if these are of other kernels."""
    events = timeline.trace.gpu
    rows = np.flatnonzero(events.kind == KERNEL)
    rows = rows[np.argsort(events.start_ns[rows], kind="stable")]
    if len(rows) != len(counted):
        raise ValueError(f"{len(rows)} kernels recorded, {len(counted)} counted")

    def metric(name: str) -> np.ndarray:
        return np.array([kernel[name] for kernel in counted])

    duration = (events.end_ns - events.start_ns)[rows].astype(float)
    flops, moved, bound = found.work.flops[rows], found.work.bytes[rows], found.split.bound[rows]
    matmuls = (found.work.dtype[rows] == CODE["bf16"]) & (timeline.category[rows] == CATEGORIES.index("gemm"))
    ratio = metric("sm__ops_path_tensor_src_bf16_dst_fp32.sum")[matmuls] / flops[matmuls]
    dram = metric("dram__bytes_read.sum") + metric("dram__bytes_write.sum")
    known = found.work.model[rows]
    streaming = known & np.isin(timeline.category[rows], _STREAMING) & (dram > _SURE_BYTES)
    off = np.abs(moved[streaming] - dram[streaming]) / dram[streaming]
    tensor = metric("sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active")
    by_hardware = np.where(tensor > metric("dram__throughput.avg.pct_of_peak_sustained_elapsed"), COMPUTE, MEMORY)
    judged = bound < LATENCY
    return Agreement(
        gemm_flops_low=float(ratio.min()),
        gemm_flops_high=float(ratio.max()),
        elementwise_error=float(np.average(off, weights=duration[streaming])),
        bytes_ratio=float(moved[known].sum() / dram[known].sum()),
        bound_share=float(duration[judged & (bound == by_hardware)].sum() / duration[judged].sum()),
        judged_share=float(duration[judged].sum() / duration.sum()),
    )


def cover(name: str, timeline: Timeline) -> Coverage | None:
    """What is modelled of a recording; None where its GPU is not known or nothing ran."""
    begin = time.perf_counter()
    found = roofline(timeline)
    seconds = time.perf_counter() - begin
    if found is None:
        return None
    parts = [found.compute_ns, found.memory_ns, found.latency_ns, found.inefficient_ns, found.unmodelled_ns]
    shares = [part / sum(parts) for part in parts] if sum(parts) else [0.0] * 5
    return Coverage(
        name, found.ceilings.gpu.name, len(timeline.trace.gpu), *shares,
        unmodelled_share=found.unmodelled_share, seconds=seconds,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path, help="folder with h200/ and, if wanted, other folders of recordings")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    covered = []
    for path in sorted(arguments.traces.glob("**/*.json.gz")):
        timeline = None if path.name.startswith("broken") else load(path)
        found = cover(str(path.relative_to(arguments.traces)).removesuffix(".json.gz"), timeline) if timeline else None
        if found is not None:
            covered.append(found)
    timeline = load(arguments.traces / f"{PAIR}.json.gz")
    found = roofline(timeline) if timeline else None
    if timeline is None or found is None:
        print(f"{PAIR}: no roofline", file=sys.stderr)
        return 1
    agreement = compare(timeline, found, counters(arguments.traces / f"{PAIR}.ncu.csv.gz"))
    ours = [c for c in covered if c.name.startswith("h200/")]
    if arguments.json:
        print(json.dumps({"agreement": asdict(agreement), "coverage": [asdict(c) for c in covered]}, indent=2))
    else:
        _print(agreement, covered)
    return 0 if agreement.holds and all(c.unmodelled_share <= UNMODELLED for c in ours) else 1


def _print(agreement: Agreement, covered: list[Coverage]) -> None:
    print(f"{PAIR} and hardware counters")
    print(f"  gemm flops, counted / ours   {agreement.gemm_flops_low:.4f} – {agreement.gemm_flops_high:.4f}")
    print(f"  elementwise bytes, error     {agreement.elementwise_error:7.1%}   limit {ELEMENTWISE:.0%}")
    print(f"  all bytes, ours / counted    {agreement.bytes_ratio:7.3f}   limit ± {BYTES:.0%}")
    print(f"  bound agrees                 {agreement.bound_share:7.1%}   limit {BOUND:.0%}, of", end=" ")
    print(f"{agreement.judged_share:.1%} of the time")
    print()
    titles = ("compute", "memory", "latency", "ineff.", "unmod.", "u. w/o comm.", "ms")
    print(f"{'recording':52s}{'GPU':16s}" + "".join(f"{title:>13s}" for title in titles))
    for c in covered:
        shares = (c.compute, c.memory, c.latency, c.inefficient, c.unmodelled, c.unmodelled_share)
        row = "".join(f"{share:13.1%}" for share in shares)
        print(f"{c.name[-50:]:52s}{c.gpu:16s}{row}{c.seconds * 1e3:13.0f}")


if __name__ == "__main__":
    sys.exit(main())
