"""Several ranks of one training. The truth comes from a small simulation of ranks that wait for each other in
collectives."""

from __future__ import annotations

import dataclasses
import gc
import math
import re
import weakref
from pathlib import Path

import numpy as np
import pytest
from helpers.make_diagnosis import host_bound
from helpers.make_trace import TraceBuilder
from helpers.present import present
from helpers.rank_program import BUCKETS, CALL, LATENCY, MS, RETURN, US, RankProgram, recording, run, write
from helpers.timeline import timeline_of

import gpuprof
from benchmarks import rank_jobs
from gpuprof.calibration import noise as noise_calibrated
from gpuprof.diagnosis.asked import Asked
from gpuprof.diagnosis.diagnose import diagnose
from gpuprof.diagnosis.findings.straggler import find_straggler
from gpuprof.diagnosis.ranks.combine_ranks import with_ranks
from gpuprof.diagnosis.ranks.ranks import gang_of, survey
from gpuprof.ranks import verdicts
from gpuprof.replay.build.build import build
from gpuprof.replay.build.carried_in import carried_over
from gpuprof.replay.graph import COMMUNICATION
from gpuprof.replay.simulate import simulate
from gpuprof.replay.split_collectives import (
    communication_cause,
    estimate_transfers,
    model_collectives,
    waiting,
    without_waiting,
)
from gpuprof.replay.transform import scale
from gpuprof.tracefile.read import read_trace


def truth_ns(programs: list[RankProgram], steps: int = 6, **options) -> float:
    """The length of a step in the steady state."""
    done = run(programs, steps, **options)[0]
    return done[-1].sync[1] - done[-2].sync[1]


def graph_of(path: Path):
    return build(timeline_of(path))


def near(expected: float):
    """Removing the profiler's cost removes a few µs per event, from steps of about ten ms."""
    return pytest.approx(expected, rel=0.01)


# -- several ranks


def test_the_slow_rank_is_named_with_what_it_does_more(tmp_path: Path):
    programs = [RankProgram(), RankProgram(extra_ns=40 * MS), RankProgram()]
    gang = survey(write(tmp_path, programs), read_trace)
    assert gang.slow == gang.shown == 1
    assert gang.step_ns == near(truth_ns(programs))
    assert gang.next_pace_ns == near(truth_ns([RankProgram()] * 3))
    assert [r.late_share for r in gang.ranks] == [0, 1, 0]
    assert [r.waiting_ns for r in gang.ranks] == [near(40 * MS), 0, near(40 * MS)]
    assert {r.transfer_ns for r in gang.ranks} == {3 * MS}
    first = gang.excess[0]
    assert (first.doing.resource, first.doing.what, first.doing.phase) == ("host", "Python", "forward")
    assert first.ns == near(40 * MS)
    assert first.doing.longest_ns == 40 * MS


def test_its_diagnosis_is_host_straggler_and_the_fix_is_predicted(tmp_path: Path):
    programs = [RankProgram(), RankProgram(extra_ns=40 * MS)]
    diagnosis = gpuprof.diagnose(write(tmp_path, programs))
    assert (diagnosis.verdict.bound, diagnosis.verdict.family, diagnosis.verdict.cause) == ("host", "host", "straggler")
    assert "rank 1" in diagnosis.verdict.summary
    fix = next(f for f in diagnosis.findings if f.id == "straggler")
    truth = truth_ns([RankProgram(), RankProgram()])
    assert fix.step_ns.expected == near(truth)
    assert fix.step_ns.low < truth < fix.step_ns.high
    assert fix.speedup.expected == near(truth_ns(programs) / truth)
    assert diagnosis.ranks is not None
    assert [r.rank for r in diagnosis.ranks] == [0, 1]
    assert diagnosis.environment.rank == 1, "the rank that the others wait for"


@pytest.mark.parametrize("clocks", [(0, 3_500 * MS, -7_250 * MS), (0, 1, -3), (0, 3_600_000 * MS, 40 * MS)])
def test_clocks_may_differ_by_any_time(tmp_path: Path, clocks):
    programs = [RankProgram(clock_ns=clock, extra_ns=(r == 2) * 25 * MS) for r, clock in enumerate(clocks)]
    gang = survey(write(tmp_path, programs), read_trace)
    assert [r.clock_offset_ns for r in gang.ranks] == list(clocks)
    assert gang.slow == 2
    assert gang.step_ns == near(truth_ns(programs))


@pytest.mark.parametrize("skipped", [(0, 1), (1, 0), (0, 2)])
def test_recordings_may_begin_at_different_steps(tmp_path: Path, skipped):
    """The collectives that both hold are matched by fitting end times, as the slow rank's steps differ in length."""
    programs = [RankProgram(skipped=skipped[0]), RankProgram(skipped=skipped[1], extra_ns=30 * MS, clock_ns=90 * MS)]
    done = run(programs, 6)
    for steps in done:  # steps of slightly different length, as they are
        for k, s in enumerate(steps):
            shift = sum(range(k)) * 300 * US
            for name, value in vars(s).items():
                if isinstance(value, tuple):
                    setattr(s, name, tuple(v + shift for v in value))
                elif isinstance(value, list):
                    setattr(s, name, [tuple(v + shift for v in one) for one in value])
                else:
                    setattr(s, name, value + shift)
    paths = [recording(r, p, done[r], 2).write(tmp_path / f"{r}.json") for r, p in enumerate(programs)]
    gang = survey(paths, read_trace)
    assert gang.ranks[1].clock_offset_ns == 90 * MS
    assert gang.slow == 1


def test_a_missing_rank_is_said_and_its_waits_are_not_called_transfer(tmp_path: Path):
    programs = [RankProgram(), RankProgram(extra_ns=150 * MS), RankProgram()]
    paths = write(tmp_path, programs)
    gang = survey([paths[0], paths[2]], read_trace)
    assert gang.missing == (1,)
    assert gang.slow is None
    assert [r.transfer_ns for r in gang.ranks] == [None, None]
    assert {r.cause for r in gang.ranks} == {"peer_wait"}
    diagnosis = gpuprof.diagnose([paths[0], paths[2]])
    assert "ranks_missing" in {issue.id for issue in diagnosis.quality.issues}


def test_groups_of_different_size(tmp_path: Path):
    """Ranks exchange the first bucket in pairs, the second all together; one is slow."""
    pairs = ("[0, 1]", "[0, 1]", "[2, 3]", "[2, 3]")
    programs = [
        RankProgram(groups=(pairs[r], ""), extra_ns=(r == 2) * 20 * MS, clock_ns=r * 777 * MS) for r in range(4)
    ]
    gang = survey(write(tmp_path, programs), read_trace)
    assert gang.slow == 2
    assert [r.clock_offset_ns for r in gang.ranks] == [0, 777 * MS, 1554 * MS, 2331 * MS]
    assert gang.step_ns == near(truth_ns(programs))
    assert gang.ranks[2].late_share == 1.0
    assert [r.waiting_ns for r in gang.ranks] == [near(20 * MS), near(20 * MS), 0, near(20 * MS)]


def test_a_slow_gpu_is_the_devices(tmp_path: Path):
    programs = [RankProgram(kernel_ns=80 * MS), RankProgram(kernel_ns=80 * MS), RankProgram(kernel_ns=120 * MS)]
    made = []
    for r, p in enumerate(programs):  # the exchange waits for the kernel: all on one stream
        other = TraceBuilder(distributedInfo={"backend": "nccl", "rank": r, "world_size": 3})
        for k in range(3):
            t = k * 130 * MS
            other.step(k, t, t + 130 * MS)
            other.op("aten::mm", t, t + 10 * US)
            other.launch("gemm", (t + US, t + 6 * US), (t + 8 * US, t + 8 * US + p.kernel_ns))
            other.op("record_param_comms", t + 20 * US, t + 30 * US)
            other.launch(
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL", (t + 21 * US, t + 26 * US),
                (t + 9 * US + p.kernel_ns, t + 121 * MS), **{"Collective name": "allreduce", "Group size": 3},
            )  # fmt: skip
            other.call("cudaDeviceSynchronize", t + 40 * US, t + 130 * MS - US, correlation=900 + k)
        made.append(other.write(tmp_path / f"{r}.json"))
    gang = survey(made, read_trace)
    assert (gang.slow, gang.excess_bound) == (2, "device")
    finding = find_straggler(gang)
    assert finding is not None
    assert "nvidia-smi" in finding.fix


def test_what_recording_cost_all_ranks_alike_cancels_in_the_gain(tmp_path: Path):
    gang = survey(write(tmp_path, [RankProgram(), RankProgram(extra_ns=150 * MS), RankProgram()]), read_trace)
    assert gang.profiled[0] > 1 > gang.profiled[1], "the pause is no recorded event, and as long without a profiler"
    found = present(find_straggler(dataclasses.replace(gang, profiled=(1.1, 0.95))))
    noise, gain = math.log1p(noise_calibrated.PROCESS.value), found.speedup.expected
    less = math.exp(-math.hypot(noise, math.log(0.95)))
    more = math.exp(math.hypot(noise, math.log(1.1)))
    assert dataclasses.astuple(found.speedup) == pytest.approx((gain * less, gain, gain * more))
    alike = present(find_straggler(dataclasses.replace(gang, profiled=(1.0, 1.0))))
    assert alike.speedup.high / gain == pytest.approx(1 + noise_calibrated.PROCESS.value)
    assert alike.step_ns == found.step_ns, "how long the step is does depend on what recording cost"


def test_a_measured_step_scales_the_interval_with_everything_else(tmp_path: Path):
    gang = survey(write(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS), RankProgram()]), read_trace)
    assert gang.step_ns and gang.low_ns and gang.high_ns and gang.low_ns < gang.step_ns < gang.high_ns
    estimated = find_straggler(gang)
    measured_ns = round(gang.step_ns / 2)
    timed = host_bound()
    assert timed.steps and estimated
    timed = dataclasses.replace(timed, steps=dataclasses.replace(timed.steps, unprofiled_ns=measured_ns))
    found = with_ranks(timed, gang).findings[0]
    assert dataclasses.astuple(found.step_ns) == pytest.approx(
        [ns / 2 for ns in dataclasses.astuple(estimated.step_ns)]
    )
    assert dataclasses.astuple(found.speedup) == pytest.approx(dataclasses.astuple(estimated.speedup))


def test_what_is_said_of_batches_that_differ():
    shape = rank_jobs.Shape(tensor=1, pipeline=1, data=4)
    made = rank_jobs.programs(shape, rank_jobs.Slow(uneven=0.4))
    gang = gang_of(rank_jobs.digests(shape, made, rank_jobs.simulate(made)), [])
    assert gang.job.verdict == "uneven_batches"
    said = with_ranks(host_bound(), gang).verdict.summary
    assert re.search(
        r"batches differ in work.*in place of.*Their length is the reason: forward time explains (9\d|100) %", said
    ), said
    other = dataclasses.replace(gang, job=dataclasses.replace(gang.job, lengths_share=0.1))
    said = with_ranks(host_bound(), other).verdict.summary
    assert "Their length is not the reason, since forward time explains only 10 %" in said


@pytest.mark.parametrize(("sent", "elsewhere"), [((4, 5, 6, 7), True), ((5, 6, 7), False), ((0, 1, 2, 3), False)])
def test_a_slow_machine_whose_ranks_were_recorded_there(sent: tuple[int, ...], elsewhere: bool):
    """`sent`: ranks of which only a digest arrived."""
    shape = rank_jobs.Shape(tensor=1, pipeline=1, data=8)
    made = rank_jobs.programs(shape, rank_jobs.Slow(frozenset((4, 5, 6, 7)), factor=1.5))
    digests = [
        dataclasses.replace(one, source=f"nodes/trace.rank{one.rank}.digest.npz") if one.rank in sent else one
        for one in rank_jobs.digests(shape, made, rank_jobs.simulate(made))
    ]
    gang = gang_of(digests, [])
    assert gang.job.verdict == "slow_host"
    assert gang.slow_is_elsewhere is elsewhere
    said = with_ranks(host_bound(), gang).verdict.summary
    assert ("They were recorded on another node, where gpuprof diagnose has its fixes" in said) is elsewhere


def test_equal_ranks_have_no_straggler(tmp_path: Path):
    programs = [RankProgram(), RankProgram(extra_ns=1 * MS), RankProgram()]
    gang = survey(write(tmp_path, programs), read_trace)
    assert gang.slow is None
    assert find_straggler(gang) is None
    assert gang.step_ns == near(truth_ns(programs))


def test_without_a_measured_step_the_diagnosis_is_of_the_step_of_all(tmp_path: Path):
    """However much longer that step is than the rank's own estimate."""
    programs = [RankProgram(), RankProgram(extra_ns=6 * MS), RankProgram(extra_ns=3 * MS)]
    paths = write(tmp_path, programs)
    gang = survey(paths, read_trace)
    step_ns = present(gang.known_step_ns)
    found = diagnose(read_trace(paths[0]), ranks=3, of_all_ns=1.25 * step_ns)
    alone = diagnose(read_trace(paths[0]), ranks=3)
    assert present(found.steps).unprofiled_ns is None
    assert found.step_ns == pytest.approx(1.25 * step_ns, rel=1e-3)
    assert alone.step_ns == pytest.approx(step_ns, rel=0.01)
    measured = diagnose(read_trace(paths[0]), ranks=3, of_all_ns=1.25 * step_ns, asked=Asked(step_ms=step_ns / 1e6))
    assert measured.step_ns == pytest.approx(step_ns, rel=1e-3), "a measured step goes first"
    assert gpuprof.diagnose(paths).step_ns == pytest.approx(present(gang.step_ns), rel=1e-3)


def test_a_joint_replay_that_misses_the_recorded_step_gives_no_step_to_the_diagnosis(tmp_path: Path):
    gang = survey(write(tmp_path, [RankProgram(), RankProgram()]), read_trace)
    assert gang.known_step_ns == gang.step_ns
    missed = dataclasses.replace(gang, job=dataclasses.replace(gang.job, even_ns=None, replay_error=0.03))
    assert missed.known_step_ns is None


@pytest.mark.parametrize("seed", range(6))
def test_random_ranks(tmp_path: Path, seed: int):
    """Whatever the ranks do, their step is found, and the slowest by 5 % or more is named."""
    rng = np.random.default_rng(seed)
    programs = [
        RankProgram(
            extra_ns=int(rng.integers(0, 40)) * MS, forward_ns=int(rng.integers(10, 30)) * MS,
            backward_ns=int(rng.integers(10, 50)) * MS, clock_ns=int(rng.integers(-(10**12), 10**12)),
        )
        for _ in range(int(rng.integers(2, 6)))
    ]  # fmt: skip
    gang = survey(write(tmp_path, programs, steps=3), read_trace)
    own = [truth_ns([one]) for one in programs]
    assert [r.pace_ns for r in gang.ranks] == [near(ns) for ns in own]
    assert gang.step_ns == near(truth_ns(programs))
    slowest, second = sorted(own)[-1], sorted(own)[-2]
    if abs(slowest / second - 1.05) > 0.01:
        assert gang.slow == (own.index(slowest) if slowest > 1.05 * second else None)
    offsets = [one.clock_ns - programs[0].clock_ns for one in programs]
    assert [r.clock_offset_ns for r in gang.ranks] == offsets


def test_a_truncated_rank_is_used_as_far_as_it_goes(tmp_path: Path):
    programs = [RankProgram(), RankProgram(extra_ns=40 * MS)]
    paths = write(tmp_path, programs, steps=8)
    done = run(programs, 8)
    text = recording(0, programs[0], done[0], 2).text().encode()
    (tmp_path / "cut.json").write_bytes(text[: int(len(text) * 0.7)])
    gang = survey([tmp_path / "cut.json", paths[1]], read_trace)
    assert gang.slow == 1
    assert [id_ for id_, _ in gang.notes] == ["rank_truncated"]
    assert gpuprof.diagnose([tmp_path / "cut.json", paths[1]]).quality.status == "degraded"


def test_one_trace_at_a_time_is_held(tmp_path: Path):
    alive: list[weakref.ref] = []
    gc.collect()
    gc.freeze()  # existing objects need not be searched each time

    def read(path: Path):
        gc.collect()
        assert not [one for one in alive if one() is not None], "an earlier trace is still held"
        trace = read_trace(path)
        alive.append(weakref.ref(trace))
        return trace

    try:
        survey(write(tmp_path, [RankProgram(), RankProgram(), RankProgram(extra_ns=MS)]), read)
    finally:
        gc.unfreeze()
    assert len(alive) == 3, "each is read once"


# -- one rank alone


@pytest.mark.parametrize("rank", [0, 1])
def test_the_untouched_graph_replays_as_recorded(tmp_path: Path, rank: int):
    paths = write(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)])
    graph = model_collectives(carried_over(graph_of(paths[rank])))
    schedule = simulate(graph)
    gpu = graph.on_gpu
    assert np.abs(schedule.start_ns - graph.recorded_start_ns)[gpu].max() < 1
    assert np.abs(schedule.end_ns - graph.recorded_end_ns)[gpu].max() < 1
    waits = float(graph.duration_ns[waiting(graph)].max(initial=0))
    # What a transfer takes is not known to better than the link's usual rate.
    assert waits == pytest.approx(40 * MS, abs=2 * MS) if rank == 0 else waits < 2 * MS


@pytest.mark.parametrize("host", [0.25, 0.5, 0.8, 1.5])
def test_a_late_peer_is_waited_for_once(tmp_path: Path, host: float):
    """Both buckets wait for the same peer. With another host on both ranks the peer is as late as before, not twice."""
    (path, _) = write(tmp_path, [RankProgram(), RankProgram(extra_ns=40 * MS)])
    graph = graph_of(path)
    exact = np.full(len(graph.timeline.trace.gpu), np.nan)
    rows = graph.gpu_row[graph.resource == COMMUNICATION]
    exact[rows] = np.resize([1 * MS, 2 * MS], len(rows))
    graph = model_collectives(graph, exact)
    result = simulate(scale(graph, host=host), 3).step_ns
    assert result == near(truth_ns([RankProgram(host=host), RankProgram(extra_ns=40 * MS, host=host)]))
    alone = simulate(scale(without_waiting(graph), host=host), 3).step_ns
    assert alone == near(truth_ns([RankProgram(host=host)] * 2))


def test_waiting_for_a_peer_is_communication(tmp_path: Path):
    (path, _) = write(tmp_path, [RankProgram(), RankProgram(extra_ns=150 * MS)])
    verdict = gpuprof.diagnose(path).verdict
    assert verdict.bound == "communication"
    assert communication_cause(model_collectives(graph_of(path))) == "peer_wait"


def test_a_slow_network_is_not_taken_for_waiting(tmp_path: Path):
    """At 1 Gb/s the transfer takes as long as its bytes require."""
    rate = 0.125  # bytes a ns
    transfer = tuple(round(4 * n / rate) for n in BUCKETS)
    (path, _) = write(tmp_path, [RankProgram(), RankProgram()], transfer=transfer)
    graph = graph_of(path)
    found = estimate_transfers(graph.timeline)
    nodes = np.flatnonzero(graph.resource == COMMUNICATION)
    assert found[graph.gpu_row[nodes]] == pytest.approx(graph.duration_ns[nodes], rel=0.02)
    assert communication_cause(model_collectives(graph)) == "transfer"


def test_what_was_queued_before_the_recording_is_the_round_befores(tmp_path: Path):
    """15 ms of work without launches delay the first kernel once. In the loop the stream is free when the host
    arrives."""
    made = TraceBuilder().step(1, 0, 17 * MS)
    made.gpu("gemm", US, 15 * MS, correlation=77)
    made.op("aten::mm", 0, 10 * MS)
    made.launch("gemm", (10 * MS, 10 * MS + CALL), (15 * MS + US, 16 * MS))
    made.call("cudaDeviceSynchronize", 10 * MS + CALL, 16 * MS + RETURN, correlation=99)
    graph = carried_over(graph_of(made.write(tmp_path / "queued.json")))
    first = simulate(graph)
    launched = graph.on_gpu & (graph.call >= 0)
    assert first.start_ns[launched] == pytest.approx([15 * MS + US])
    assert first.step_end_ns == pytest.approx([17 * MS])
    rest = 17 * MS - (16 * MS + RETURN)
    looped = 10 * MS + CALL + LATENCY + (1 * MS - US) + RETURN + rest
    assert simulate(graph, 3).step_ns == pytest.approx(looped, abs=5 * US)


# -- recorded ranks


def test_fewer_steps_must_differ_by_more_to_name_a_straggler():
    margins = [verdicts.least_slower(steps) for steps in (1, 2, 3, 12)]
    assert margins == sorted(margins, reverse=True)
    assert margins[0] == pytest.approx(1 + 0.05 * math.sqrt(3))
    assert margins[2] == margins[3] == verdicts.SLOW_RANK
