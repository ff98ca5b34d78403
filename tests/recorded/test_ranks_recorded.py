"""Recorded ranks, and what made one of them slow."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from helpers.diagnosed import diagnosed
from helpers.paths import ROOT, SHARED
from helpers.present import present
from helpers.rank_program import MS, US
from helpers.timeline import timeline_of
from helpers.traces import shared_trace

import gpuprof
from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.sensitivity import sensitivities
from gpuprof.replay.split_collectives import communication_cause, model_collectives
from gpuprof.replay.unprofiled.profiler_fit import remove_profiler


def pair() -> tuple[list[Path], dict]:
    """Both recordings of a training with a slow rank, and its measurements; skips the test where they are missing."""
    paths = [shared_trace(f"h200/ddp_straggler_rank{r}") for r in (0, 1)]
    return paths, json.loads((SHARED / "traces" / "h200" / "truth.json").read_text())["runs"]["ddp_straggler"]


@pytest.mark.slow
def test_the_recorded_straggler():
    paths, truth = pair()
    diagnosis = gpuprof.diagnose(paths)
    assert (diagnosis.verdict.bound, diagnosis.verdict.cause) == ("host", "straggler")
    assert diagnosis.ranks is not None
    assert [r.late_share for r in diagnosis.ranks] == [0, 1]
    assert diagnosis.ranks[0].step_ns == pytest.approx(truth["unprofiled_ms"][0] * MS, rel=0.1)
    fix = next(f for f in diagnosis.findings if f.id == "straggler")
    after = truth["without_the_slow_rank_ms"][0] * MS
    assert fix.step_ns.expected == pytest.approx(after, rel=0.1)
    assert fix.step_ns.low < after < fix.step_ns.high
    assert fix.speedup.low < truth["unprofiled_ms"][0] * MS / after < fix.speedup.high
    assert any("Python" in evidence.text and "40" in evidence.text for evidence in fix.evidence)


def test_the_recorded_straggler_seen_from_the_rank_that_waits():
    """Its recording alone only shows when its peer came; the step is that of both."""
    paths, truth = pair()
    graph = model_collectives(carried_over(build(timeline_of(paths[0]))))
    removal = remove_profiler(graph)
    assert removal.step_ns == pytest.approx(truth["unprofiled_ms"][0] * MS, rel=0.1)
    assert removal.low_ns < truth["unprofiled_ms"][0] * MS < removal.high_ns
    found = sensitivities(removal.graph)
    assert found.communication == max(found.communication, found.host, found.device)
    assert communication_cause(removal.graph) == "peer_wait"


@pytest.mark.slow
def test_eight_recorded_ranks():
    """One step just after the recording began, at which the ranks arrived up to 7.6 ms apart: none is slow
    throughout."""
    folder = shared_trace("public/param_dlrm_8rank/worker0_step_12.1694128201545.pt.trace").parent
    diagnosis = diagnosed(folder)
    assert diagnosis.ranks is not None
    assert [r.rank for r in diagnosis.ranks] == list(range(8))
    assert diagnosis.verdict.cause != "straggler"
    # They are on one host with one clock, recorded in whole µs.
    assert all(abs(present(r.clock_offset_ns)) <= 2 * US for r in diagnosis.ranks)
    late = max(diagnosis.ranks, key=lambda r: present(r.late_share))
    assert late.rank == diagnosis.environment.rank == 7
    # It has the least work of all, so it is not slow although it came last.
    assert present(late.pace_ns) == min(present(r.pace_ns) for r in diagnosis.ranks)
    assert "By itself it needs less than most, " in " ".join(diagnosis.verdict.sentences)
    assert diagnosis.step_ns == pytest.approx(present(diagnosis.job).step_ns, rel=1e-3)


def test_ranks_without_a_measured_step_are_diagnosed_as_with_it(tmp_path: Path):
    """By itself rank 0 would take a third longer than measured, as it waited for a rank that recording held up."""
    folder = ROOT / "scenarios" / "ddp_scaling" / "recording"
    for trace in folder.glob("trace.rank*.json.gz"):
        (tmp_path / trace.name).symlink_to(trace)
    measured, found = gpuprof.diagnose(folder), gpuprof.diagnose(tmp_path)
    alone = gpuprof.diagnose(tmp_path / "trace.rank0.json.gz")
    truth = present(present(measured.steps).unprofiled_ns)
    assert present(alone.step_ns) > 1.25 * truth
    assert found.step_ns == pytest.approx(truth, rel=0.08)
    assert found.step_ns == pytest.approx(present(found.job).step_ns, rel=1e-3)
    assert found.verdict.bound == measured.verdict.bound
    assert present(found.sensitivities).communication == pytest.approx(
        present(measured.sensitivities).communication, abs=0.03
    )
    gains, others = (
        {one.id: one.speedup.expected for one in (*each.findings, *each.worth_trying)} for each in (measured, found)
    )
    assert {"compile", "larger_batch"} <= gains.keys() <= others.keys()
    assert {name: others[name] for name in gains} == pytest.approx(gains, rel=0.03)


def test_ranks_whose_steps_merely_scatter_have_no_straggler():
    """Two ranks of one program on a noisy host: in the recorded step one took 15 % longer, and each arrived last half
    of the time."""
    gang = diagnosed(ROOT / "scenarios" / "ddp_scaling" / "recording")
    paces = sorted(rank.pace_ns or 0 for rank in present(gang.ranks))
    assert paces[1] > 1.1 * paces[0]
    assert gang.verdict.cause != "straggler"
    assert "straggler" not in {finding.id for finding in gang.findings}


@pytest.mark.parametrize(
    "recorded", ["scenarios/ddp_scaling/recording", "scenarios/fsdp_exposed/recording", "public/param_dlrm_8rank"]
)
def test_the_step_of_all_is_that_of_each_rank_and_its_waits(recorded: str):
    folder = ROOT / recorded if recorded.startswith("scenarios") else SHARED / "traces" / recorded
    if not folder.is_dir():
        pytest.skip(f"{recorded} is not here")
    diagnosis = diagnosed(folder)
    job, ranks = present(diagnosis.job), present(diagnosis.ranks)
    assert all(rank.step_ns == pytest.approx(job.step_ns, abs=1) for rank in ranks)
    assert max(present(rank.pace_ns) for rank in ranks) <= 1.001 * job.step_ns
    for rank in ranks:
        assert present(rank.pace_ns) + present(rank.waiting_ns) == pytest.approx(job.step_ns, rel=0.001)
    mean = sum(present(rank.waiting_ns) for rank in ranks) / len(ranks)
    assert present(job.exposed).waiting_ns == pytest.approx(mean, abs=10)
    assert sum(part.ns for part in job.critical_path) <= 1.001 * job.step_ns
