"""Digests are made by the backend of the caller's `joblib.parallel_config`: Dask and Ray, each with a local cluster."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.rank_program import MS, RankProgram, write

from gpuprof.diagnosis.detect.ranks.gang import Gang
from gpuprof.diagnosis.ranks import rank_digests
from gpuprof.diagnosis.ranks.ranks import survey
from gpuprof.tracefile.read import read_trace

RANKS = rank_digests.FEWEST_IN_PARALLEL


@pytest.fixture
def traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    monkeypatch.setenv("GPUPROF_CACHE", str(tmp_path / "cache"))  # workers that start from here on have it, too
    return write(tmp_path, [RankProgram(extra_ns=(r == 5) * 40 * MS) for r in range(RANKS)])


def surveyed(traces: list[Path], monkeypatch: pytest.MonkeyPatch) -> Gang:
    """What the ranks show together; none is read in this process."""

    def not_here(*_: object) -> None:
        raise AssertionError("a digest is made in this process")

    monkeypatch.setattr(rank_digests, "digest_of_trace", not_here)
    gang = survey(traces, read_trace)
    monkeypatch.undo()
    return gang


def assert_right(gang: Gang) -> None:
    assert gang.notes == ()
    assert [one.rank for one in gang.ranks] == list(range(RANKS))
    assert gang.slow == 5


@pytest.mark.slow
def test_on_a_cluster_of_dask(traces: list[Path], monkeypatch: pytest.MonkeyPatch):
    joblib, distributed = pytest.importorskip("joblib"), pytest.importorskip("distributed")
    cluster = distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
    with cluster, distributed.Client(cluster) as client:
        with distributed.get_task_stream(client) as done, joblib.parallel_config(backend="dask"):
            gang = surveyed(traces, monkeypatch)
        assert len(done.data) >= 1, "the cluster worked"
    assert_right(gang)


@pytest.mark.slow
def test_on_a_cluster_of_ray(traces: list[Path], monkeypatch: pytest.MonkeyPatch):
    joblib, ray = pytest.importorskip("joblib"), pytest.importorskip("ray", reason="Ray is not installed")
    from ray.util.joblib import register_ray

    register_ray()
    ray.init(num_cpus=2, include_dashboard=False, logging_level="error")
    try:
        with joblib.parallel_config(backend="ray"):
            gang = surveyed(traces, monkeypatch)
    finally:
        ray.shutdown()
    assert_right(gang)
