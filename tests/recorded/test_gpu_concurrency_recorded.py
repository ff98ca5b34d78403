"""A recorded training whose two GPUs take turns, and what one process per GPU gains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from helpers.case import with_facts
from helpers.diagnosed import diagnosed
from helpers.present import present

import gpuprof
from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.findings import naive_pipeline
from scenarios.catalogue import scenario

RECORDING = scenario("two_gpus_one_process").recording


@pytest.fixture(scope="module")
def diagnosis() -> gpuprof.Diagnosis:
    if RECORDING is None:
        pytest.skip("not recorded")
    return diagnosed(RECORDING)


def test_a_process_per_gpu_does_the_work_of_both_in_the_step_of_one(diagnosis):
    """Measured: with all layers on one GPU, and the other free, a step takes as long."""
    entry = scenario("two_gpus_one_process")
    assert "take turns" in diagnosis.verdict.summary
    assert diagnosis.verdict.bound in ("compute", "memory", "balanced"), "the host is not what the GPUs wait for"
    (found,) = (one for one in diagnosis.findings if one.id == "naive_pipeline")
    low, high = present(entry.measured_ms("one_gpu"))
    assert found.work == 2
    assert diagnosis.findings[0] is found, "it gains most"
    assert found.step_ns.low <= high * 1e6 and low * 1e6 <= found.step_ns.high


@pytest.mark.parametrize(
    ("peak_gib", "says", "wider"),
    [(40, "DistributedDataParallel", 1.0), (60, "fully_shard", 1.15), (None, "memory was not recorded", 1.0)],
    ids=["one GPU holds it", "none does", "not known"],
)
def test_what_takes_the_place_of_turns_hangs_on_the_memory_of_one_gpu(
    peak_gib: int | None, says: str, wider: float, diagnosis
):
    """Two such peaks and a quarter are 100 and 150 GiB, and an H200 can allocate 126."""
    case = analysis_of(diagnosis)
    assert case is not None and case.run is not None
    memory = replace(case.run.memory, peak_bytes=peak_gib and peak_gib << 30)
    (found,) = naive_pipeline.find(with_facts(case, run=replace(case.run, memory=memory)))
    assert says in str(found.fix) and found.work == 2
    # The gradients of its 10.5 million trained parameters, 42 MB over 450 GB/s, are hardly a thousandth of the step.
    assert found.spread == pytest.approx(wider, rel=0.002)
