"""Matching the collectives of several ranks, also without what older and damaged recordings lack, and the resulting
clocks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from helpers.collectives import collectives
from helpers.make_trace import TraceBuilder
from helpers.rank_program import CALL, MS, US
from helpers.timeline import timeline_of
from helpers.traces import shared_trace

from gpuprof.timeline.collectives.clocks import Link, clock_offsets
from gpuprof.timeline.collectives.collectives import UNKNOWN_GROUP, Collectives, find_collectives
from gpuprof.timeline.collectives.matching import match


def uneven(count: int, seed: int = 0) -> np.ndarray:
    """End times at irregular distances of 8 to 12 ms."""
    return np.cumsum(np.random.default_rng(seed).integers(8 * MS, 12 * MS, count))


def test_kernels_launched_before_the_recording_match_no_one(tmp_path):
    """One kernel whose arguments were not recorded is on another stream than those that name their group."""
    said = {
        "Collective name": "allreduce", "In msg nelems": 1024, "Out msg nelems": 1024, "dtype": "Float",
        "Group size": 2, "Process Group Ranks": "[0, 1]", "Process Group Name": "0",
    }  # fmt: skip
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
    made = TraceBuilder().step(0, 0, 100 * MS)
    made.gpu(name, 1 * MS, 2 * MS, stream=5, correlation=7001)
    made.gpu(name, 3 * MS, 4 * MS, stream=17, correlation=7002)
    made.op("record_param_comms", 10 * MS, 11 * MS, cat="cpu_op", **said)
    made.launch(name, (10 * MS, 10 * MS + CALL), (12 * MS, 14 * MS), stream=17, **said)
    found = find_collectives(timeline_of(made.write(tmp_path / "rank0.json")))
    groups = [found.texts[g] for g in found.columns.group]
    assert groups == [UNKNOWN_GROUP, "0 [0,1]", "0 [0,1]"]
    matched = match([found, found])
    assert (matched.instance[0] >= 0).tolist() == [False, True, True]


def test_copies_of_a_recording_with_such_a_kernel():
    """Four copies of either rank. The kernel that only one of the two holds is incomplete, and not a transfer of 26 ms:
    it is unknown how long the four ranks that hold it waited for the others."""

    def copy(rank: int) -> Collectives:
        found = find_collectives(timeline_of(shared_trace(f"h200/ddp_straggler_rank{rank}")))
        columns = dataclasses.replace(found.columns, group_size=np.full(len(found), 8))
        return Collectives(columns, found.texts)

    first, other = copy(0), copy(1)
    ranks = [first] * 4 + [other] * 4
    expected = [np.full(len(one), 200.0 * US) for one in ranks]
    matched = match(ranks, expected)
    assert len(first) == len(other) + 1
    assert matched.complete[0].sum() == len(other)
    assert np.isnan(matched.transfer_ns[0][~matched.complete[0]]).all()
    assert np.nansum(matched.transfer_ns[0]) < 3 * MS


def test_groups_without_a_name_are_distinguished_by_their_ends():
    """Ranks 0 and 1 exchange with each other, 2 and 3 too; no recording says so."""
    ends = uneven(40), uneven(40, seed=1)
    late = 2 * MS
    ranks = [collectives(ends[r // 2], np.where(r % 2, 50 * US, 50 * US + late), "stream 0", size=0) for r in range(4)]
    matched = match(ranks)
    assert (matched.instance[0] == matched.instance[1]).all()
    assert (matched.instance[2] == matched.instance[3]).all()
    assert not set(matched.instance[0].tolist()) & set(matched.instance[2].tolist())
    assert [float(one[0]) for one in matched.transfer_ns] == [50 * US] * 4
    assert [bool(one.all()) for one in matched.last] == [False, True, False, True]


def test_one_overlapping_collective_does_not_set_the_clock():
    """Two collectives per recording: shifted by one, the only remaining pair fits exactly, 600 ms apart."""
    a = collectives([0, 621 * MS, 1400 * MS], [10 * MS] * 3, "stream 0", size=0)
    b = collectives([70 * US, 621 * MS + 330 * US], [10 * MS] * 2, "stream 0", size=0)
    assert match([a, b]).offset_ns == (0, 200 * US)


def test_the_recorded_clocks_of_two_sampled_ranks():
    folder = "multirank/hta_128rank_2of/sampled_rank-"
    found = [find_collectives(timeline_of(shared_trace(f"{folder}{r}"))) for r in (0, 1)]
    offset = match(found).offset_ns[1]
    assert offset is not None
    assert abs(offset) < 1 * MS


def test_one_missing_rank_of_many_leaves_transfers_known():
    ends = uneven(30)
    rng = np.random.default_rng(2)
    ranks = [collectives(ends, 400 * US + rng.integers(0, 300 * US, 30), size=8) for _ in range(7)]
    expected = [np.full(30, 350.0 * US)] * 7
    known = match(ranks, expected)
    assert all(np.all(one < 420 * US) for one in known.transfer_ns)
    assert not any(one.any() for one in known.complete)


def test_if_the_missing_rank_may_be_the_slow_one_transfers_are_not_known():
    ends = uneven(30)
    ranks = [collectives(ends, np.full(30, 40 * MS), size=8) for _ in range(7)]
    assert all(np.isnan(one).all() for one in match(ranks, [np.full(30, 350.0 * US)] * 7).transfer_ns)


def test_recorded_numbers_go_before_everything_else():
    """Two recordings that share only numbers 3 and 4, with ends that would fit other shifts as well."""
    ends = np.arange(5) * 10 * MS
    a = collectives(ends, [MS] * 5, numbers=range(5))
    b = collectives(ends[:2] + 30 * MS, [MS] * 2, numbers=(3, 4))
    matched = match([a, b])
    assert matched.instance[1].tolist() == matched.instance[0][3:].tolist()
    assert matched.offset_ns == (0, 0)


def test_sends_and_receives_are_matched_by_their_pair():
    ends = uneven(12)
    send = collectives(ends, [3 * MS] * 12, "p2p 0>1", kind="send_recv")
    receive = collectives(ends + 5 * MS, [1 * MS] * 12, "p2p 0>1", kind="send_recv")
    matched = match([send, receive])
    assert (matched.instance[0] == matched.instance[1]).all()
    assert float(matched.transfer_ns[0][0]) == 1 * MS
    assert matched.offset_ns == (0, 5 * MS)


@pytest.mark.parametrize("seed", range(4))
def test_clocks_by_least_squares_beat_any_chain(seed: int):
    """In a TP × DP grid each rank belongs to two groups. The offsets have smaller errors than those of a spanning
    tree."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(-(10**15), 10**15, 64)
    truth[0] = 0

    def link(a: int, b: int) -> Link:
        exact = int(truth[b] - truth[a])
        return Link(a, b, float(rng.normal(0, 5_000)), exact, 10, 5_000.0)

    pairs = [(8 * g, 8 * g + k) for g in range(8) for k in range(1, 8)]
    pairs += [(k, 8 * g + k) for g in range(1, 8) for k in range(8)]
    links = [link(a, b) for a, b in pairs]
    found = np.array(clock_offsets(64, links), np.int64) - truth
    # Each rank's estimate averages over two groups; a chain through a group's first rank adds two errors.
    assert np.sqrt(np.mean(found.astype(float) ** 2)) < 7_000
    tree = np.array(clock_offsets(64, links[:56] + links[56:][::8]), np.int64) - truth
    assert np.mean(found.astype(float) ** 2) < np.mean(tree.astype(float) ** 2)


def test_a_rank_that_no_chain_reaches_has_no_clock():
    assert clock_offsets(3, [Link(0, 1, 4.0, 100, 5, 0.0)]) == (0, 104, None)
    assert clock_offsets(0, []) == ()
