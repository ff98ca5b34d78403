"""Sends, receives and batches of them as torch records them, and the roles given by descriptions of groups."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.make_trace import TraceBuilder
from helpers.rank_program import CALL, MS, US
from helpers.timeline import timeline_of

from gpuprof.ranks.roles import ROLES, described_role
from gpuprof.timeline.collectives.collectives import KINDS, UNKNOWN_GROUP, described_as, find_collectives
from gpuprof.timeline.collectives.matching import match
from gpuprof.timeline.collectives.point_to_point import exchange_text, is_exchange, p2p_pair, p2p_text, pair_text

KERNEL = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
STAGES = [0, 2, 4]
"""Ranks of the pipeline's process group: ranks within the group are not those of the job."""


def said(way: str, peer: int, elements: int = 1 << 20, **more) -> dict:
    """What record_param_comms holds for a send or receive: only the other side, as a rank of the job."""
    return {
        "Collective name": way, "dtype": "BFloat16", "In msg nelems": elements, "Out msg nelems": elements,
        "Group size": len(STAGES), "Process Group Name": "3", "Process Group Description": "mesh_pp",
        "Process Group Ranks": str(STAGES), "Rank": STAGES.index(peer),
        "Dst Rank" if way == "send" else "Src Rank": peer, **more,
    }  # fmt: skip


class Rank:
    """The sends and receives of one rank, one after the other; `now` is in ns."""

    def __init__(self, rank: int) -> None:
        self.made = TraceBuilder(distributedInfo={"backend": "nccl", "rank": rank, "world_size": 6})
        self.made.step(0, 0, 400 * MS)
        self.now = MS

    def comms(self, *parts: dict) -> None:
        for one in parts:
            self.made.op(
                "c10d::send" if one["Collective name"] == "send" else "c10d::recv_", self.now, self.now + 9 * US
            )
            self.made.op("record_param_comms", self.now + US, self.now + 8 * US, **one)
            self.now += 10 * US

    def single(self, one: dict, start: int, end: int) -> None:
        """Outside of a batch the kernel is launched within record_param_comms, and has its arguments."""
        call = (self.now + 2 * US, self.now + 2 * US + CALL)
        self.comms(one)
        self.made.launch(KERNEL, call, (start, end), stream=40, api="cudaLaunchKernelExC", **one)

    def batch(self, *parts: dict, start: int, end: int) -> None:
        """In a batch it is launched where the batch ends, and has none."""
        self.comms(*parts)
        self.made.annotation("nccl:coalesced", self.now, self.now + 9 * US)
        self.made.launch(
            KERNEL, (self.now + US, self.now + US + CALL), (start, end), stream=41, api="cudaLaunchKernelExC"
        )
        self.now += 20 * US

    def collectives(self, folder: Path):
        return find_collectives(timeline_of(self.made.write(folder / "rank.json")))


def groups(found) -> list[str]:
    return [found.texts[g] for g in found.columns.group]


def stage(rank: int, peer: int, folder: Path, *, later: int = 0):
    """One of a pair of stages: the first sends, both exchange twice, the second sends back."""
    one, first = Rank(rank), rank < peer
    out, back = said("send", peer), said("recv", peer, 1 << 18)
    if not first:
        out, back = said("send", peer, 1 << 18), said("recv", peer)
    one.single(out if first else back, 10 * MS, 12 * MS)
    one.batch(out, back, start=20 * MS + later, end=25 * MS)
    one.batch(out, back, start=30 * MS + later, end=35 * MS)
    one.single(back if first else out, 40 * MS, 42 * MS)
    return one.collectives(folder)


def test_batches_and_single_sends_of_two_stages_match(tmp_path: Path):
    both = [stage(2, 4, tmp_path), stage(4, 2, tmp_path, later=MS)]
    for found in both:
        assert groups(found) == ["p2p 2>4", "p2p 2<>4", "p2p 2<>4", "p2p 4>2"]
        assert {KINDS[k] for k in found.columns.kind} == {"send_recv"}
        assert found.columns.group_size.tolist() == [2] * 4, "whatever the size of the process group"
        assert found.columns.bytes.tolist() == [2 << 20, 2 << 20, 2 << 20, 2 << 18], "the larger direction"
    matched = match(both)
    assert matched.instance[0].tolist() == matched.instance[1].tolist()
    assert all(one.all() for one in matched.complete)
    assert matched.transfer_ns[0].tolist() == [2 * MS, 4 * MS, 4 * MS, 2 * MS]


def test_a_batch_with_two_other_ranks_is_not_matched(tmp_path: Path):
    """Its kernel ends when both transfers are done, so it is not the collective of either pair."""
    one = Rank(2)
    one.batch(said("send", 4), said("recv", 0), start=10 * MS, end=12 * MS)
    one.batch(said("send", 4), said("recv", 4), start=20 * MS, end=22 * MS)
    assert groups(one.collectives(tmp_path)) == ["3 [0,2,4] mesh_pp", "p2p 2<>4"]


def test_a_batch_whose_sends_were_not_recorded_takes_the_group_of_its_stream(tmp_path: Path):
    one = Rank(2)
    one.batch(start=5 * MS, end=6 * MS)
    one.batch(said("send", 4), said("recv", 4), start=20 * MS, end=22 * MS)
    assert groups(one.collectives(tmp_path)) == ["p2p 2<>4", "p2p 2<>4"]


def test_sends_of_an_unknown_rank_have_the_group_only(tmp_path: Path):
    """If the recording's own rank is unknown, so is whose sends these are."""
    one = Rank(2)
    del one.made.top_level["distributedInfo"]
    one.single(said("send", 4), 10 * MS, 12 * MS)
    assert groups(one.collectives(tmp_path)) == ["3 [0,2,4] mesh_pp"]


def test_recorded_numbers_of_sends_are_not_compared(tmp_path: Path):
    """`Seq` counts a rank's sends and receives with all others, so that of the middle stage runs ahead."""
    pair = []
    for rank, peer, number in ((2, 4, 7), (4, 2, 3)):
        one = Rank(rank)
        way = ("send", "recv")[rank == 4]
        for i in range(4):
            one.single(said(way, peer, Seq=number + i), (10 + 10 * i) * MS, (12 + 10 * i) * MS)
        pair.append(one.collectives(tmp_path))
    matched = match(pair)
    assert matched.instance[0].tolist() == matched.instance[1].tolist()
    assert matched.collectives == 4


def test_descriptions_stay_with_their_groups(tmp_path: Path):
    made = TraceBuilder().step(0, 0, 100 * MS)
    for i, described in enumerate(("mesh_tp", "undefined", "TENSOR MODEL")):
        args = {
            "Collective name": "allreduce", "dtype": "Float", "In msg nelems": 8, "Out msg nelems": 8, "Group size": 2,
            "Process Group Name": str(i), "Process Group Description": described, "Process Group Ranks": "[0, 1]",
        }  # fmt: skip
        at = (10 + i) * MS
        made.op("record_param_comms", at, at + CALL, **args)
        made.launch("ncclDevKernel_AllReduce_Sum_f32_RING_LL", (at, at + CALL), (at + CALL, at + 9 * US), **args)
    found = groups(find_collectives(timeline_of(made.write(tmp_path / "rank.json"))))
    assert found == ["0 [0,1] mesh_tp", "1 [0,1]", "2 [0,1] TENSOR_MODEL"]
    assert [described_as(text) for text in (*found, p2p_text(0, 1), UNKNOWN_GROUP, "stream 1")] == [
        "mesh_tp", "", "TENSOR_MODEL", "", "", "",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("described", "role"),
    [
        ("mesh_tp", "tensor"), ("mesh_dp", "data"), ("mesh_dp_replicate", "data"), ("mesh_dp_shard_cp", "data"),
        ("mesh_cp", "context"), ("mesh_ep", "expert"), ("mesh_pp", "pipeline"), ("", None),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data"), ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"), ("TENSOR_AND_DATA_PARALLEL_GROUP", None), ("mesh_0", None),
        ("http_pool", None),
    ],
)  # fmt: skip
def test_roles_in_descriptions(described: str, role: str | None):
    found = described_role(described)
    assert (None if found is None else ROLES[found]) == role


def test_texts_of_pairs():
    assert p2p_pair(p2p_text(3, 1)) == (3, 1)
    assert p2p_pair(exchange_text(3, 1)) == (1, 3)
    assert [is_exchange(text) for text in (exchange_text(3, 1), p2p_text(3, 1), "p2p 1", "0 [0,1]")] == [
        True, False, False, False,
    ]  # fmt: skip
    assert pair_text(1, [{"Src Rank": 1, "Dst Rank": 3}]) == "p2p 1>3", "where both sides are recorded"
    assert pair_text(1, [{"Dst Rank": 1}]) is None, "to itself"
    assert pair_text(1, [{"Dst Rank": "x"}]) is None
    assert pair_text(1, []) is None
