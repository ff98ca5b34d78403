"""The example of the mixture of experts: its projections, compared with published and measured values."""

from __future__ import annotations

import pytest
from helpers.example_case import example_case
from helpers.present import present

import gpuprof


@pytest.fixture(scope="module")
def example():
    return example_case()


@pytest.fixture(scope="module")
def case(example):
    return example.recorded()


def test_the_mixture_ties_and_its_larger_batch_is_ahead_with_the_recorded_host(example, case):
    assert example.faster(case.on("moe", "ds1", 1.0)) == pytest.approx(1.0, rel=example.TARGETS["tie"])
    ahead = example.ahead(case.on("moe", "ds2", 1.0, 16), case.on("moe", "ds2", 1.0))
    assert ahead == pytest.approx(7300 / 5200, rel=example.TARGETS["ds2"])


@pytest.mark.parametrize(("data", "published"), [("ds1", 27 / 11), ("ds2", 9.2 / 3.6)])
def test_the_dense_model_is_as_much_faster_as_published(example, case, data: str, published: float):
    """Within 10 %, if only just; what was published lies in the interval."""
    found = case.on("dense", data, 1.0)
    assert example.faster(found) == pytest.approx(published, rel=example.TARGETS["dense"])
    steps = [found[name].step_ns for name in (example.H100, example.MAX_Q)]
    assert steps[1].low / steps[0].expected < published < steps[1].high / steps[0].expected


@pytest.mark.parametrize("data", ["ds1", "ds2"])
def test_the_projection_to_an_h100_comes_true(example, case, data: str):
    run = present(gpuprof.diagnose(example.DENSE_ON_H100[data]).run)
    measured = present(present(run.baseline).free_ns)
    there = gpuprof.project(case.dense[data], [example.H100], host_factor=1.0, whole_batch=True).gpus[0].step_ns
    assert there.expected == pytest.approx(measured, rel=0.03)
    assert there.low < measured < there.high
