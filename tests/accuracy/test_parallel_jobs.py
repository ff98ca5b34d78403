"""Generated recordings of tensor, pipeline and sharded data parallel training: the joint replay against exact times.

The jobs are those of the scenarios tensor_data, tensor_pipeline, fsdp_ranks and hsdp, each as it is and with what is
slow in it; the step without that is the exact one of the job as it is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from helpers.parallel_jobs import MS, Job, run, step_ns, write

from gpuprof.diagnosis.detect.ranks.gang import Gang
from gpuprof.diagnosis.ranks.ranks import survey
from gpuprof.tracefile.read import read_trace

LAYOUTS = ("tensor_data", "tensor_pipeline", "fsdp", "hsdp")
VERDICTS = {
    "": (None, ()),
    "slow_rank": ("straggler", (1,)),
    "long_stage": ("stage_imbalance", (2, 3)),
    "uneven": ("uneven_batches", ()),
}
JOBS = [
    Job(layout, change)
    for layout in LAYOUTS
    for change in VERDICTS
    if change != "long_stage" or layout == "tensor_pipeline"
]
REPRODUCED, PREDICTED = 0.02, 0.05


@cache
def exact_step_ns(job: Job) -> float:
    return step_ns(run(job))


@cache
def diagnosed(job: Job) -> Gang:
    with TemporaryDirectory() as folder:
        return survey(write(run(job), Path(folder)), read_trace)


def check(job: Job, found: Gang) -> None:
    """The step, what is slow and the step without it are right."""
    assert found.job.replay_error < REPRODUCED
    assert found.job.step_ns == pytest.approx(exact_step_ns(job), rel=REPRODUCED)
    verdict, ranks = VERDICTS[job.change]
    culprit = found.job.culprit
    right = (verdict, (job.slow,) if job.change == "slow_rank" else ranks)
    assert (found.job.verdict, culprit.ranks if culprit else ()) == right
    if culprit is not None:
        assert culprit.step_ns == pytest.approx(exact_step_ns(replace(job, change="")), rel=PREDICTED)


@pytest.mark.parametrize("job", JOBS, ids=lambda job: f"{job.layout}-{job.change or 'plain'}")
def test_the_step_the_culprit_and_the_step_without_it(job: Job):
    found = diagnosed(job)
    check(job, found)
    assert found.job.stages == (2 if job.layout == "tensor_pipeline" else 1)
    assert not found.job.notes
    assert all(one.clock_offset_ns is not None for one in found.ranks), "all ranks share a clock"


def test_a_slow_rank_of_the_last_stage():
    job = Job("tensor_pipeline", "slow_rank", slow=3)
    check(job, diagnosed(job))


@pytest.mark.parametrize("change", ["", "long_stage"])
def test_sends_that_are_all_batches(change: str):
    """Before torch 2.13 a send by itself was a batch, too: no kernel between stages has arguments."""
    job = Job("tensor_pipeline", change, all_batched=True)
    check(job, diagnosed(job))


def test_messages_that_fit_into_buffers():
    """The sender does not wait for the receiver, here one that comes late: no end is that of both."""
    job = Job("tensor_pipeline", "slow_rank", slow=3, buffered=True)
    check(job, diagnosed(job))


@pytest.mark.parametrize("change", ["slow_rank", "long_stage"])
def test_steps_that_scatter(change: str, tmp_path: Path):
    """Kernels that scatter by 3 %; no record says which event a stream waits for, as in most public recordings."""
    job = Job("tensor_pipeline", change, jitter=0.03, seed=5)
    ranks = run(job)
    for rank in ranks:
        rank.trace.events = [event for event in rank.trace.events if event["cat"] != "cuda_sync"]
    check(job, survey(write(ranks, tmp_path), read_trace))


def test_the_critical_path_is_the_step_and_goes_through_what_is_slow():
    job = Job("tensor_pipeline", "slow_rank")
    found = diagnosed(job).job
    total = Counter[tuple[int, str]]()
    for part in found.critical_path:
        total[part.rank, part.work] += part.ns
    assert total.total() == pytest.approx(found.step_ns, rel=1e-3)
    assert total[1, "other"] == pytest.approx(job.sleep_ns, rel=0.02)
    ends = [part.start_ns + part.ns for part in found.critical_path]
    assert ends[:-1] == [part.start_ns for part in found.critical_path[1:]], "without gaps"
    stages = diagnosed(Job("tensor_pipeline", "long_stage")).job.critical_path
    assert sum(part.ns for part in stages if part.rank >= 2) > 0.75 * sum(part.ns for part in stages)


def test_roles_of_groups():
    found = {layout: dict(diagnosed(Job(layout)).job.groups) for layout in LAYOUTS}
    assert found["tensor_data"] == {"world": 1, "tensor": 2, "data": 2}
    assert found["tensor_pipeline"] == {"world": 1, "pipeline": 6, "tensor": 2}, "two pairs, each: there, back, both"
    assert found["hsdp"] == {"world": 1, "data": 4}


def test_the_stages_of_a_long_stage_wait_for_it():
    """Without the pipeline's exchanges the stages would share only the collectives of all, once a step."""
    waits = {one.rank: one.waiting_ns or 0 for one in diagnosed(Job("tensor_pipeline", "long_stage")).ranks}
    assert min(waits[0], waits[1]) > max(waits[2], waits[3]) + 2 * MS
