"""What gpuprof says about recordings whose truth was measured (unprofiled timings, before and after the fix)."""

from __future__ import annotations

import pytest
from helpers.diagnosed import diagnosed
from helpers.make_trace import TraceBuilder
from helpers.paths import ROOT
from helpers.present import present
from helpers.timeline import built
from helpers.traces import each_shared, shared_trace, shared_truth

import gpuprof
from benchmarks.share_verdicts import by_shares
from gpuprof.diagnosis import diagnose as diagnosing
from gpuprof.diagnosis.asked import Asked

DEMO = ROOT / "gpuprof" / "data" / "demo.json.gz"
COMMITTED = [
    (DEMO, "host", "launch"),
    (ROOT / "tests" / "data" / "tiny_lora_dataloader.json.gz", "input", None),
    (ROOT / "tests" / "data" / "unsloth_llama1b.json.gz", "host", "launch"),
    (ROOT / "tests" / "data" / "roofline_pair.json.gz", "memory", None),
]


@pytest.mark.parametrize(("path", "bound", "cause"), [pytest.param(*c, id=c[0].name) for c in COMMITTED])
def test_committed_recordings(path, bound, cause):
    verdict = diagnosed(path).verdict
    assert (verdict.bound, verdict.cause) == (bound, cause)


@pytest.mark.parametrize("path", [pytest.param(c[0], id=c[0].name) for c in COMMITTED])
def test_shares_of_the_step_lead_to_the_verdict_of_the_replay(path):
    assert by_shares(diagnosed(path)) == diagnosed(path).verdict.bound


@pytest.mark.parametrize(
    ("name", "bounds", "cause"),
    each_shared(
        ("moe_gptoss_expert_loop", {"host"}, "launch"),
        ("tiny_lora_small_batch", {"host"}, "launch"),
        ("unsloth_llama1b", {"host"}, "launch"),
        ("hf_trainer_lora", {"host"}, "launch"),
        ("tiny_lora_dataloader", {"input"}, None),
        ("dense8b_lora_compute", {"compute", "memory", "balanced"}, None),
        ("ddp_straggler_rank0", {"communication"}, "peer_wait"),
        ("ddp_straggler_rank1", {"host"}, None),
    ),
)
@pytest.mark.slow
def test_shared_recordings(name, bounds, cause):
    path = shared_trace(f"h200/{name}")
    truth = shared_truth()
    run = truth.get(name) or truth["ddp_straggler"]
    as_recorded = diagnosed(path).verdict
    assert as_recorded.bound in bounds
    if cause:
        assert as_recorded.cause == cause
    if name == "ddp_straggler_rank1" or "unprofiled_ms" not in run:
        return
    for ms in run["unprofiled_ms"]:
        with_step = gpuprof.diagnose(path, step_ms=ms)
        assert with_step.verdict.bound in bounds, f"with --step-ms {ms}"
        steps = present(with_step.steps)
        assert steps.inflation == pytest.approx(present(steps.recorded_ns) / (ms * 1e6))


def test_a_given_step_time_is_split():
    diagnosis = gpuprof.diagnose(DEMO, step_ms=81)
    (estimate,) = present(diagnosis.devices_estimated)
    parts = (estimate.compute_ns, estimate.communication_ns, estimate.copy_ns, estimate.idle_ns)
    assert sum(parts) == estimate.step_ns == 81_000_000
    # Kernels take as long without the profiler as with it.
    assert estimate.compute_ns == pytest.approx(diagnosis.devices[0].compute_ns, rel=1e-3)


def test_an_inflated_step_is_not_called_host_bound_for_the_profilers_sake():
    """A device that works 60 of 100 ms while 20,000 events are recorded waits for the profiler, not for the host."""

    def trace(events: int):
        made = TraceBuilder().step(1, 0, 100_000_000)
        for i in range(1000):
            at = i * 100_000
            made.op("aten::mm", at, at + 60_000)
            made.launch("gemm", (at + 30_000, at + 40_000), (at + 40_000, at + 100_000))
        for i in range(events):
            made.op("aten::view", i * 1000, i * 1000 + 1)
        return gpuprof.diagnose(built(made))

    assert trace(0).verdict.bound == "host"
    inflated = trace(18_000)
    assert inflated.verdict.bound == "compute"
    assert 60e6 < present(present(inflated.steps).estimated_ns) < 70e6


def test_a_cut_file_gives_no_verdict_on_waits():
    """A missing kernel looks like a wait, so a file that lost events is not called host-bound."""
    for name in ("broken_truncated_gzip_60pct", "broken_truncated_json_70pct"):
        diagnosis = diagnosed(shared_trace(f"public/{name}"))
        assert (diagnosis.quality.status, diagnosis.verdict.bound) == ("degraded", None)
        assert diagnosis.sensitivities is None, "a missing kernel makes the CPU look worth speeding up"
        assert "missing" in diagnosis.verdict.summary


def test_work_that_was_never_seen_launched_is_not_blamed_on_the_host():
    diagnosis = diagnosed(shared_trace("public/hta_bigint_20digit_comms_id.pt.trace"))
    assert diagnosis.verdict.bound in (None, "communication")
    assert {c.cause for c in present(diagnosis.gaps).by_cause} == {"unknown"}


def test_a_measured_step_that_cannot_be_of_this_run_is_doubted():
    demo = gpuprof.load(DEMO)
    for ms, doubted in ((1, True), (81, False), (188, False), (900, True)):
        issues = {issue.id for issue in diagnosing.diagnose(demo, asked=Asked(step_ms=ms), advise=False).quality.issues}
        assert ("step_ms_mismatch" in issues) == doubted, ms


def test_waiting_for_slowed_ranks_is_part_of_the_profilers_cost():
    """Rank 0 waits in its collectives for rank 1, which the profiler slows too: compute keeps its time."""
    path = shared_trace("h200/ddp_straggler_rank0")
    recorded, with_step = diagnosed(path), gpuprof.diagnose(path, step_ms=115.4)
    (estimate,) = present(with_step.devices_estimated)
    assert estimate.compute_ns == pytest.approx(recorded.devices[0].compute_ns / 2, rel=0.05)
    assert (with_step.verdict.bound, with_step.verdict.cause) == ("communication", "peer_wait")
    profiler, steps = present(recorded.profiler), present(recorded.steps)
    assert profiler.low_ns <= present(steps.recorded_ns) - 115.4e6 <= profiler.high_ns
    assert steps.estimated_ns == pytest.approx(115.4e6, rel=0.1)


def test_a_device_that_always_works_is_judged_by_what_slows_it():
    diagnosis = diagnosed(ROOT / "tests" / "data" / "runs" / "dense8b_lora")
    shares = present(diagnosis.tables.roofline).bound_shares
    assert sum(shares.values()) == pytest.approx(1, abs=0.05)
    first = {"compute": "Arithmetic", "memory": "Memory traffic"}[max(shares, key=shares.__getitem__)]
    assert f"{first} limits" in diagnosis.verdict.summary
