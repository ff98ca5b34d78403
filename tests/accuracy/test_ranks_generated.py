"""Generated jobs of tensor, pipeline and data parallel ranks: the step and what is slow, against exact times."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.rank_jobs import MS, Shape, Slow, digests, programs, simulate
from benchmarks.ranks import Outcome, outcomes
from gpuprof.diagnosis.ranks.ranks import gang_of

SHAPES = (
    Shape(),
    Shape(tensor=2, pipeline=4, data=4, gpus=4),
    Shape(tensor=1, pipeline=1, data=8, gpus=4),
    Shape(tensor=4, pipeline=1, data=4, gpus=8),
)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda s: f"{s.tensor}x{s.pipeline}x{s.data}")
@pytest.mark.parametrize("seed", range(2))
def test_what_is_slow_is_named_and_the_step_without_it_is_right(shape: Shape, seed: int):
    found: list[Outcome] = list(outcomes(shape, seed))
    assert [one.name for one in found if not one.right] == []
    for one in found:
        assert one.replay_error < 1e-6
        if one.name != "batches":  # whose median step depends on which four steps are taken
            assert one.step_error == pytest.approx(0, abs=0.005)
        if one.without_error is not None:
            assert one.without_error == pytest.approx(0, abs=0.01)


@pytest.mark.parametrize("shape", [Shape(1, 4, 1, gpus=8), Shape(2, 4, 1, gpus=8)], ids=["rank", "tensor group"])
def test_a_long_stage_is_no_slow_rank_or_group(shape: Shape):
    """Its ranks are the whole stage: other ranks compute another part of the model."""
    last = frozenset(r for r in range(shape.ranks) if shape.place(r)[0] == shape.pipeline - 1)
    made = programs(shape, Slow(last, factor=1.5))
    job = gang_of(digests(shape, made, simulate(made)), []).job
    assert job.verdict == "stage_imbalance"
    assert job.culprit is not None
    assert job.culprit.ranks == tuple(sorted(last))


def test_the_share_of_lengths():
    """Longer micro-batches make both passes longer; what merely scatters has nothing in common."""
    shape = Shape(tensor=2, pipeline=2, data=4)

    def share(slow: Slow) -> float | None:
        made = programs(shape, slow)
        return gang_of(digests(shape, made, simulate(made)), []).job.lengths_share

    assert share(Slow(uneven=0.4)) == pytest.approx(1, abs=0.02)
    assert share(Slow()) == pytest.approx(0, abs=0.15)
    assert share(Slow(frozenset((3,)), factor=1.5)) == pytest.approx(0, abs=0.15), "a slow rank is slow in all steps"
    one_step = Shape(tensor=1, pipeline=1, data=4, steps=1)
    made = programs(one_step)
    assert gang_of(digests(one_step, made, simulate(made)), []).job.lengths_share is None


def test_clocks_of_all_ranks_are_found():
    shape = Shape(tensor=2, pipeline=4, data=4)
    made = programs(shape, Slow())
    times = simulate(made)
    clocks = np.random.default_rng(3).integers(-(10**12), 10**12, shape.ranks)
    gang = gang_of(digests(shape, made, times, lambda rank: int(clocks[rank])), [])
    assert [one.clock_offset_ns for one in gang.ranks] == (clocks - clocks[0]).tolist()


@pytest.mark.parametrize("gone", [(3,), (0,), (1, 9)])
def test_missing_ranks_are_left_out(gone: tuple[int, ...]):
    """The slow rank is found without the recordings of others, and waits for missing ranks do not count as its gain."""
    shape = Shape(tensor=2, pipeline=2, data=4)
    slow = 12
    made = programs(shape, Slow(frozenset((slow,)), factor=1.5))
    here = [one for one in digests(shape, made, simulate(made)) if one.rank not in gone]
    gang = gang_of(here, [])
    assert gang.missing == gone
    assert gang.job.replay_error < 0.02
    assert gang.slow is not None
    assert gang.ranks[gang.slow].rank == slow


def test_a_replay_that_misses_the_recording_gives_no_gains():
    """Ways to arrival that are too short by a third: the digests are not of these recordings."""
    shape = Shape()
    made = programs(shape, Slow(frozenset((5,)), factor=1.5))
    wrong = digests(shape, made, simulate(made))
    for one in wrong:
        one.recorded.lag_ns[:] *= 0.67
    gang = gang_of(wrong, [])
    assert gang.slow is None
    assert (gang.job.slowdown, gang.job.verdict, gang.job.changes) == (None, None, ())
    assert [id_ for id_, _ in gang.job.notes] == ["joint_replay"]
    assert gang.job.replay_error > 0.02


def test_exchanges_that_contradict_each_other_are_taken_apart():
    """Numbers recorded the wrong way round on one rank: the replay continues, and reports it."""
    shape = Shape(tensor=1, pipeline=1, data=2, gpus=2)
    made = programs(shape)
    both = digests(shape, made, simulate(made))
    for r, one in enumerate(both):
        shared = np.flatnonzero(one.rows.group >= 0)
        for g in range(len(one.groups)):
            mine = shared[one.rows.group[shared] == g]
            one.rows.number[mine] = np.arange(len(mine)) + (r if g == 0 else 0)
    gang = gang_of(both, [])
    assert "ranks_mismatched" in [id_ for id_, _ in gang.job.notes] or gang.job.replay_error < 0.02
    assert gang.job.step_ns > 1 * MS
