"""What findings say about recordings whose fixes were measured, and about those with nothing to fix."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from helpers.case import case_of, only, shown, with_facts
from helpers.paths import ROOT
from helpers.present import present
from helpers.program import MS
from helpers.traces import RUNS, each_shared, shared_trace

import gpuprof
from gpuprof.diagnosis.analysis import Analysis, analysis_of
from gpuprof.diagnosis.detect.batches import batch_scaling
from gpuprof.diagnosis.detect.compiled import compiled_passes
from gpuprof.diagnosis.findings import (
    FINDINGS,
    adapter_casts,
    allocator,
    autocast,
    compile,
    cuda_graphs,
    dequantize,
    eager_attention,
    expert_loop,
    exposed_communication,
    fused_elementwise,
    host_preprocessing,
    input_workers,
    larger_batch,
    optimizer,
    padding,
    pageable_copies,
    planning,
    rare_steps,
    recompiles,
    recompute,
    syncs,
    tf32,
    throttling,
)
from gpuprof.diagnosis.fixes.predict import LEAST_GAIN, fixes
from gpuprof.diagnosis.fixes.predicted_step import predict

ON_THE_HOST = (
    compile,
    cuda_graphs,
    larger_batch,
    syncs,
    optimizer,
    allocator,
    recompiles,
    planning,
    pageable_copies,
    rare_steps,
)
ON_THE_GPU = (
    adapter_casts,
    dequantize,
    eager_attention,
    cuda_graphs,
    expert_loop,
    exposed_communication,
    fused_elementwise,
    padding,
    recompute,
    tf32,
    throttling,
)


@cache
def recorded(name: str) -> Analysis:
    """The case of a recording in tests/data (a file), or of a shared one (`h200/…`)."""
    return case_of(shared_trace(name) if "/" in name else ROOT / "tests" / "data" / f"{name}.json.gz")


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.parent.name)
def test_findings_of_a_recording_are_plausible(path):
    """Wherever a finding appears, its interval is valid and its step no longer than before."""
    case = case_of(path)
    for module in ON_THE_GPU:
        for proposal in module.find(case):
            step = predict(case, proposal)
            assert 0 < step.low <= step.expected <= step.high
            assert np.isfinite(step.high)
            assert step.expected <= case.step_ns * 1.001, f"{module.PAGE.id} makes the step longer"
            assert proposal.evidence[0].text
            assert str(proposal.fix)


def test_the_measured_grouped_experts_lie_in_the_interval():
    case = recorded("h200/moe_gptoss_expert_loop")
    step = predict(case, only(expert_loop, case))
    assert step.low / MS <= 40.4
    assert step.high / MS >= 41.0
    assert step.expected / MS == pytest.approx(40.7, rel=0.08)


@pytest.mark.parametrize(
    "name", each_shared("tiny_lora_small_batch", "unsloth_llama1b", "ddp_straggler_rank1", slow=False)
)
def test_recordings_without_experts_or_eager_attention_get_neither(name: str):
    case = recorded(f"h200/{name}")
    assert not list(expert_loop.find(case))
    assert not list(eager_attention.find(case))


def test_a_launch_bound_step_gains_nothing_from_tf32():
    case = recorded("h200/tiny_lora_small_batch")
    for proposal in tf32.find(case):
        assert case.step_ns / predict(case, proposal).expected < LEAST_GAIN


@pytest.mark.parametrize(("torch", "turns_it_off"), [("2.11.0+cu130", True), ("2.9.1", False), ("", False)])
def test_bf16_autocast_avoids_the_attention_that_plans_for_each_length(torch: str, turns_it_off: bool):
    """A fp32 BERT with varying lengths: with plain autocast its measured step was five times as long, due to
    planning."""
    case = case_of(ROOT / "scenarios" / "accelerate_bert" / "recording" / "trace.rank0.json.gz")
    found = only(autocast, with_facts(case, versions={"torch_version": torch}))
    assert ("enable_cudnn_sdp(False)" in str(found.fix)) == ("cuDNN" in found.title) == turns_it_off


@pytest.mark.parametrize(("name", "where"), [("accelerate_bert", "call"), ("small_batch", "assignment")])
def test_a_larger_batch_is_set_in_the_loader_only_where_there_is_one(name, where):
    recording = ROOT / "scenarios" / name / "recording"
    batch = larger_batch.of_factor(case_of(recording, run=gpuprof.diagnose(recording).run), 2)
    assert batch.fix.settings[0].surface == where


def test_double_batch_of_a_compute_bound_recording():
    case = recorded("h200/dense8b_lora_compute")
    step = case.step_of(batch_scaling.scaled_batch(case, 2)(case.graph)) / 1e6
    assert 0.95 * 1224 <= step <= 1.05 * 1242
    assert not list(larger_batch.find(case)), "twice the time for twice the tokens"


def test_committed_recordings():
    """No advice without an object, such as about a compiled library's own kernels or a busy GPU."""
    busy = recorded("roofline_pair")
    assert {m.PAGE.id for m in ON_THE_HOST if shown(m, busy)} == {"compile"}
    unsloth = recorded("unsloth_llama1b")
    assert {m.PAGE.id for m in ON_THE_HOST if shown(m, unsloth)} == {"larger_batch"}


def test_launch_bound_recording():
    """Measured: 27 to 30 ms with torch.compile, 72 to 73 with 8 times the batch; a fused optimizer is within the
    noise."""
    case = case_of(shared_trace("h200/tiny_lora_small_batch"), ms=75.0)
    found = {m.PAGE.id: shown(m, case) for m in ON_THE_HOST}
    assert {name for name, proposals in found.items() if proposals} == {"compile", "cuda_graphs", "larger_batch"}
    step = predict(case, found["compile"][0])
    assert step.low / 1e6 <= 27.4
    assert step.high / 1e6 >= 30.2
    assert step.high / step.low <= 2.2
    assert found["larger_batch"][0].work == 8
    step = predict(case, found["larger_batch"][0])
    assert step.low / 1e6 <= 75.01, "no step of 8 times the batch is shorter; measured ones differ by host"
    assert step.high / 1e6 >= 73.3


@pytest.mark.parametrize("name", each_shared("moe_gptoss_expert_loop", "unsloth_llama1b", slow=False))
def test_not_compiled_as_a_whole(name):
    case = recorded(f"h200/{name}")
    assert not list(compile.find(case))
    assert not list(cuda_graphs.find(case))


@pytest.mark.parametrize("name", ["tiny_lora_dataloader", "unsloth_llama1b", "roofline_pair"])
def test_fixes_are_short_and_whole(name: str):
    case = recorded(name)
    for page, find in FINDINGS:
        for one in find(case):
            assert len(one.title) < 55, (page.id, one.title)
            assert all(len(line) <= 105 for line in str(one.fix).split("\n")), (page.id, str(one.fix))
            assert "…" not in str(one.fix), (page.id, str(one.fix))
            assert "<" not in str(one.fix), (page.id, str(one.fix))


def test_memory_that_was_recorded_is_not_said_to_be_unknown():
    diagnosis = gpuprof.diagnose(shared_trace("public/hta_v100_2rank_nccl_5steps"))
    fix = next(finding.fix for finding in diagnosis.findings if finding.id == "larger_batch")
    assert diagnosis.memory is not None
    assert "if memory allows" in fix and "not recorded" not in fix


def test_torchs_own_transformer_that_looks_at_its_mask_is_compiled_after_that():
    """Lightning's example compiled measured 0.95 to 1.5 times as fast, within what its processes differ by; with the
    condition that it has, gaining nothing is within the interval."""
    case = case_of(ROOT / "scenarios" / "lightning_transformer_again" / "recording")
    assert compiled_passes.looks_at_mask(case)
    (alone,), (graphs,) = compile.find(case), cuda_graphs.find(case)
    assert alone.parts == ("is_causal=True", "torch.compile") and "is_causal=True" in graphs.needs
    found = fixes(case)
    tried = [one for one in found.worth_trying if one.id in ("compile", "cuda_graphs")]
    assert len(tried) == 2 and all(one.speedup.low <= 1.0 and one.probability < 0.9 for one in tried)
    assert not compiled_passes.looks_at_mask(case_of(ROOT / "scenarios" / "small_batch" / "recording"))


def test_a_closures_passes_are_no_part_of_the_optimizer():
    """A plain SGD over lists is twelve kernels, and fusing them measured no gain."""
    found = list(optimizer.find(case_of(ROOT / "scenarios" / "lightning_transformer_again" / "recording")))
    said = "SGD goes through lists of parameters: 12 kernels a step, 468 µs of CPU"
    assert all(said in one.evidence[0].text for one in found)


def test_what_torch_skipped_is_priced_beside_a_pass_in_cuda_graphs():
    """Its backward pass runs in a graph and its forward pass does not; measured 1.98 times as fast with both."""
    said = gpuprof.diagnose(ROOT / "scenarios" / "programs" / "graphs_skipped" / "recording")
    found = next(one for one in said.findings if one.id == "cuda_graphs")
    assert "as a buffer" in found.fix and any("mutated inputs" in one.text for one in found.evidence)
    assert found.speedup is not None and found.speedup.low <= 1.98 <= found.speedup.high
    assert found.speedup.expected == pytest.approx(1.98, rel=0.2)


def test_a_cpu_that_runs_ahead_is_no_doubt_where_the_gpu_explains_the_timed_step():
    """Three steps of 8.8 ms on the CPU launched 72 ms of GPU work, and without the profiler a step takes 24 ms."""
    said = gpuprof.diagnose(ROOT / "scenarios" / "programs" / "fp8_middle" / "recording")
    assert said.verdict.family == "compute" and {"host_ahead", "baseline_mismatch"}.isdisjoint(
        one.id for one in said.quality.issues
    )
    found = next(one for one in said.findings if one.id == "fp8")
    assert found.speedup is not None and found.speedup.low <= 1.14 <= found.speedup.high  # as measured


def _of_run(name: str) -> Analysis:
    """A program's recording with what its run timed."""
    return present(analysis_of(gpuprof.diagnose(ROOT / "scenarios" / "programs" / name / "recording")))


def test_rows_that_are_read_one_by_one_make_python_collect():
    """Thousands of objects a batch: workers take the collections with them, and rows taken at once need neither."""
    case = _of_run("rows_one_by_one")
    workers = only(input_workers, case)
    (rows,) = (one for one in host_preprocessing.find(case) if one.key in ("whole_batches", "kept", "once"))
    assert rows.key == "whole_batches" and rows.lumps == workers.lumps and rows.odds == 1
    assert workers.lumps["garbage_collection"] < 0.1
    saved = [predict(case, replace(one, lumps={})).expected - predict(case, one).expected for one in (workers, rows)]
    assert min(saved) > 0.9 * case.mean.lumps_ns["garbage_collection"] > 0.25 * case.mean_ns


@pytest.mark.parametrize(("fewer", "key"), [(1, "whole_batches"), (100, "once")])
def test_rows_of_a_data_set_of_ones_own(tmp_path, fewer: int, key: str):
    """The same stacks in a class of the program. Where a sample takes longer than a row can, it may be read from a
    file."""
    folder = tmp_path / "recording"
    shutil.copytree(ROOT / "scenarios/programs/rows_one_by_one/recording", folder)
    path, facts = folder / "samples.rank0.json", folder / "rank0.json"
    samples, rank = json.loads(path.read_text()), json.loads(facts.read_text())
    for one in samples["functions"]:
        if one[2].startswith("TensorDataset.__getitem__"):
            one[:3] = ["own", "train.py", one[2].replace("TensorDataset", "Table")]
    rank["loader"]["batch_size"] //= fewer
    path.write_text(json.dumps(samples))
    facts.write_text(json.dumps(rank))
    case = present(analysis_of(gpuprof.diagnose(folder)))
    (found,) = (one for one in host_preprocessing.find(case) if one.key in ("whole_batches", "kept", "once"))
    assert (found.key, found.odds < 1, "__getitems__" in str(found.fix)) == (key, True, key == "whole_batches")


def test_samples_that_are_only_joined_are_not_prepared_again():
    case = _of_run("molecules_collated")
    (kept,) = host_preprocessing.find(case)
    assert (kept.key, kept.odds < 1, bool(kept.changes)) == ("kept", True, True)
