"""Traces at the level of operations (one row per compute, send, receive or collective of a pipeline) as digests."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.plain_digest import labels_of, plain_digest
from gpuprof.ranks.digest_data import BACKWARD, FORWARD, LOCAL, NO_ROW, OPTIMIZER, OTHER, Digest
from gpuprof.timeline.collectives.collectives import KINDS
from gpuprof.timeline.collectives.point_to_point import p2p_text
from gpuprof.tracefile.trace import ABSENT

APART_NS = 10**12
"""Samples of steps lie this far apart."""
_COMPUTE = {"forward-compute": FORWARD, "backward-compute": BACKWARD, "optimizer": OPTIMIZER}
_COLLECTIVE = {
    "params-all-gather": "all_gather", "grads-reduce-scatter": "reduce_scatter",
    "embedding-grads-all-reduce": "all_reduce", "optimizer-clip-main-grad": "all_reduce",
}  # fmt: skip


def digests(path: Path) -> list[Digest]:
    """One digest per recorded rank of a parquet file with columns dp_rank, stage, rank, step, optype, start_ts,
    duration, seq_id, mb_id (seconds)."""
    import pandas as pd

    table = pd.read_parquet(path)
    table = table[table.optype != "gc"]
    steps = sorted(table.step.unique())
    world, stages = int(table["rank"].nunique()), int(table.stage.max()) + 1
    by_place = {(d, s): r for d, s, r in table[["dp_rank", "stage", "rank"]].drop_duplicates().itertuples(index=False)}
    dp = int(table.dp_rank.max()) + 1
    in_order = table.sort_values(["start_ts", "seq_id"], kind="stable")
    columns = ["rank", "step", "optype", "start_ts", "duration", "seq_id", "mb_id"]
    ops = defaultdict(list)
    for one in in_order[columns].itertuples(index=False):
        ops[one.rank, one.step].append(one)
    found = []
    for (d, s), rank in sorted(by_place.items(), key=lambda item: item[1]):
        made = _Rank(rank, d, s, stages, dp, world, by_place)
        for k, step in enumerate(steps):
            made.step(k, ops[rank, step])
        found.append(made.digest(len(steps)))
    return found


class _Rank:
    def __init__(self, rank, dp_rank, stage, stages, dp, world, by_place) -> None:
        self.rank, self.dp_rank, self.stage, self.stages = rank, dp_rank, stage, stages
        self.dp, self.world, self.by_place = dp, world, by_place
        self.groups: dict[str, int] = {}
        self.rows: list[tuple] = []
        self.labels: list[list[tuple[int, float, int]]] = []

    def group(self, op: str) -> tuple[str, int]:
        if op.endswith(("-send", "-recv")):
            forward, sends = op.startswith("forward"), op.endswith("send")
            other = self.stage + (1 if forward == sends else -1)
            peer = self.by_place[self.dp_rank, other]
            return p2p_text(*((self.rank, peer) if sends else (peer, self.rank))), 2
        if op == "optimizer-clip-main-grad":
            return "world", self.world
        if op == "embedding-grads-all-reduce":
            return f"embedding {self.dp_rank}", 2
        return f"data {self.stage}", self.dp

    def step(self, k: int, ops: list[Any]) -> None:
        base = k * APART_NS
        last: dict[str, int] = {}
        done: dict[tuple[str, int], int] = {}
        chain = NO_ROW
        # Of what starts together, receives first.
        records = sorted(ops, key=lambda o: (o.start_ts, not o.optype.endswith("recv")))
        number: dict[str, int] = {}
        for o in records:
            op = str(o.optype)
            start, took = base + round(o.start_ts * 1e9), round(o.duration * 1e9)
            kind = op.split("-")[0]
            preds: list[int] = []
            p2p = op.endswith(("-send", "-recv"))
            if p2p:
                if op in last:
                    preds.append(last[op])
                if op.endswith("-send"):
                    preds.append(done[f"{kind}-compute", o.seq_id])
            else:
                if chain >= 0:
                    preds.append(chain)
                if op in ("forward-compute", "backward-compute") and (f"{kind}-recv", o.mb_id) in done:
                    preds.append(done[f"{kind}-recv", o.mb_id])
            at = len(self.rows)
            # Gaps before an operation are left out, as in the published replay: most are waits for what is not here.
            self.labels.append([(p, 0.0, OTHER) for p in preds])
            anchor = -np.inf
            if not preds:
                anchor = float(base)
            local = op in _COMPUTE or op == "layernorm-grads-all-reduce"
            group, size = ("", 1) if local else self.group(op)
            index = LOCAL if local else self.groups.setdefault(group, len(self.groups))
            count = number[group] = number.get(group, -1) + 1
            self.rows.append(
                (
                    index, -1 if local else KINDS.index("send_recv" if p2p else _COLLECTIVE[op]), size,
                    ABSENT if local else k * 10_000 + count, k, start, start + took, anchor,
                    float(took) if local else 0.0, _COMPUTE.get(op, OTHER),
                )
            )  # fmt: skip
            done[op, o.mb_id if op.endswith("compute") else o.seq_id] = at
            if p2p:
                last[op] = at
            else:
                chain = at

    def digest(self, steps: int) -> Digest:
        columns = list(zip(*self.rows, strict=True))
        group, kind, size, number, step, start, end, anchor, own, own_work = (np.array(c) for c in columns)
        return plain_digest(
            rank=self.rank, world_size=self.world, groups=tuple(self.groups),
            labels=labels_of(self.labels, own, own_work), looped=False,
            step_begin_ns=np.arange(steps, dtype=np.float64) * APART_NS, group=group, kind=kind,
            bytes=np.full(len(group), ABSENT), size=size, number=number, step=step, start_ns=start, end_ns=end,
            anchor_ns=anchor,
        )  # fmt: skip
