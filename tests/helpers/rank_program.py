"""Ranks of one training, from a small simulation of ranks that meet in collectives; each is recorded."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from helpers.make_trace import TraceBuilder

MS, US = 1_000_000, 1_000
CALL, LATENCY, RETURN = 5 * US, 2 * US, 3 * US
BUCKETS = (1 << 20, 24 << 20)
"""Elements of the two gradient buckets of a step."""


@dataclass(frozen=True)
class RankProgram:
    """A rank's work in a step, and how its clock and its recording differ from others'."""

    extra_ns: int = 0
    """Python before the forward pass."""
    forward_ns: int = 20 * MS
    backward_ns: int = 30 * MS
    kernel_ns: int = 1 * MS
    clock_ns: int = 0
    groups: tuple[str, str] = ("", "")
    """Ranks that exchange the first and the second bucket; all of them if not said."""
    skipped: int = 0
    """Steps at the beginning that were not recorded."""
    host: float = 1.0
    """Factor on the CPU time of forward and backward."""


@dataclass
class Step:
    begin: int = 0
    forward: tuple[int, int] = (0, 0)
    kernel: tuple[int, int] = (0, 0)
    backward: tuple[int, int] = (0, 0)
    launch: list[tuple[int, int]] = field(default_factory=list)
    reduce: list[tuple[int, int]] = field(default_factory=list)
    sync: tuple[int, int] = (0, 0)


def run(programs: list[RankProgram], steps: int, transfer: tuple[int, int] = (1 * MS, 2 * MS)) -> list[list[Step]]:
    """All ranks, step by step: a bucket's exchange ends for all of its group when the last has come and it is moved."""
    now, free = [0] * len(programs), [0] * len(programs)
    done: list[list[Step]] = [[] for _ in programs]
    for _ in range(steps):
        for r, p in enumerate(programs):
            s = Step(begin=now[r])
            t = now[r] + p.extra_ns
            s.forward = (t, t + round(p.forward_ns * p.host))
            s.launch.append((s.forward[1], s.forward[1] + CALL))
            s.backward = (s.launch[0][1], s.launch[0][1] + round(p.backward_ns * p.host))
            s.launch.append((s.backward[1], s.backward[1] + CALL))
            s.kernel = (s.forward[0] + CALL + LATENCY, s.forward[0] + CALL + LATENCY + p.kernel_ns)
            done[r].append(s)
        for bucket in range(2):
            ready = [max(done[r][-1].launch[bucket][1] + LATENCY, free[r]) for r in range(len(programs))]
            for r, p in enumerate(programs):
                group = _members(p, bucket, len(programs))
                end = max(ready[m] for m in group) + transfer[bucket]
                done[r][-1].reduce.append((ready[r], end))
            free = [done[r][-1].reduce[bucket][1] + US for r in range(len(programs))]
        for r in range(len(programs)):
            s = done[r][-1]
            begin = s.launch[1][1]
            now[r] = max(begin, s.reduce[1][1], s.kernel[1]) + RETURN
            s.sync = (begin, now[r])
    return done


def _members(program: RankProgram, bucket: int, ranks: int) -> list[int]:
    return json.loads(program.groups[bucket] or json.dumps(list(range(ranks))))


def recording(rank: int, program: RankProgram, steps: list[Step], ranks: int) -> TraceBuilder:
    """The rank's trace, on its own clock."""
    made = TraceBuilder(distributedInfo={"backend": "nccl", "rank": rank, "world_size": ranks})
    off = program.clock_ns
    for k, s in list(enumerate(steps))[program.skipped :]:
        made.step(k, s.begin + off, s.sync[1] + off)
        begin, end = s.forward
        made.op("aten::mm", begin + off, end + off)
        made.launch("gemm", (begin + off, begin + CALL + off), (s.kernel[0] + off, s.kernel[1] + off))
        backward = {"Fwd thread id": 1, "Sequence number": k}
        made.op("aten::bmm", s.backward[0] + off, s.backward[1] + off, cat="cpu_op", **backward)
        for bucket in range(2):
            members = _members(program, bucket, ranks)
            said = {
                "Collective name": "allreduce", "In msg nelems": BUCKETS[bucket], "Out msg nelems": BUCKETS[bucket],
                "dtype": "Float", "Group size": len(members), "Process Group Ranks": str(members),
                "Process Group Name": str(bucket if len(members) < ranks else 0),
            }  # fmt: skip
            low, high = s.launch[bucket]
            made.op("record_param_comms", low + off, high + off, cat="cpu_op", **said)
            made.launch(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
                (low + off, high + off), (s.reduce[bucket][0] + off, s.reduce[bucket][1] + off), stream=17, **said,
            )  # fmt: skip
        made.call("cudaDeviceSynchronize", s.sync[0] + off, s.sync[1] + off, correlation=90_000 + k)
    return made


def write(folder: Path, programs: list[RankProgram], steps: int = 4, **options) -> list[Path]:
    done = run(programs, steps, **options)
    return [recording(r, p, done[r], len(programs)).write(folder / f"rank{r}.json.gz") for r, p in enumerate(programs)]
