"""Three production jobs with published answers ("Understanding Stragglers in Large Model Training", OSDI '25)."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from helpers.op_jobs import digests
from helpers.paths import SHARED

from gpuprof.ranks.joined import joined
from gpuprof.ranks.verdicts import JointReplay, judge

FOLDER = SHARED / "traces" / "straggler"
PUBLISHED = {"AR": 1.973, "SE": 1.537, "ST": 1.179}
RECORDED_S = {"AR": 46.65, "SE": 9.11, "ST": 2.21}


@cache
def found(name: str) -> JointReplay:
    path = FOLDER / f"trace-{name}.parquet"
    if not path.is_file():
        pytest.skip(f"no recorded jobs at {path} (set GPUPROF_SHARED)")
    pytest.importorskip("pyarrow")
    return judge(joined(digests(path)))


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_the_published_slowdown(name: str):
    summary = found(name).summary
    assert summary.slowdown == pytest.approx(PUBLISHED[name], rel=0.02)
    assert summary.step_ns / 1e9 == pytest.approx(RECORDED_S[name], rel=0.02)
    assert summary.replay_error < 0.02
    assert summary.notes == ()


def test_one_slow_worker_is_named():
    """dp rank 0 of stage 0, slowed artificially: global rank 0."""
    summary = found("AR").summary
    assert summary.verdict == "straggler"
    assert summary.culprit is not None
    assert summary.culprit.ranks == (0,)
    assert summary.culprit.speedup == pytest.approx(1.973, rel=0.05), "without it the job is nearly ideal"


def test_a_long_last_stage_is_named_and_none_of_its_ranks():
    summary = found("ST").summary
    assert summary.verdict == "stage_imbalance"
    assert summary.culprit is not None
    assert (summary.culprit.name, summary.culprit.ranks) == ("stage 3", (6, 7))
    assert summary.culprit.speedup == pytest.approx(1.179, rel=0.02)
    ranks = [one.speedup for one in summary.changes if one.kind == "rank"]
    assert max(ranks) < 1.01


def test_batches_of_unequal_length_are_no_ranks_fault():
    """The batches come first, then the last stage; no single worker is named."""
    summary = found("SE").summary
    assert summary.verdict == "uneven_batches"
    ranks = [one.speedup for one in summary.changes if one.kind == "rank"]
    assert max(ranks) < 1.02
    assert summary.culprit is not None
    assert summary.slowdown is not None
    assert 1.25 < summary.culprit.speedup < summary.slowdown, "the last stage is long too"
    assert summary.lengths_share is not None
    assert summary.lengths_share > 0.95, "unequal sequence lengths, as published"


@pytest.mark.parametrize("name", PUBLISHED)
def test_late_and_waiting_are_two_sides_of_the_same(name: str):
    """The time for which a rank made others wait is part of what those waited."""
    members = found(name).summary.members
    late, waited = (np.array([getattr(one, key) for one in members]) for key in ("late_ns", "waited_ns"))
    assert late.shape == waited.shape
    assert late.sum() > 0
    assert waited.sum() >= late.sum()
