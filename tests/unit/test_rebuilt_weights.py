"""Weights that each forward pass rebuilds from the small factors of an adapter."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.diagnosed import diagnosed
from helpers.quick import few

from gpuprof.diagnosis.analysis import analysis_of
from gpuprof.diagnosis.detect.rebuilt_weights import rebuilt_weights
from gpuprof.diagnosis.findings import rebuilt_weights as finding

ROOT = Path(__file__).parents[2]
WILD = ROOT.parent / "shared" / "traces" / "wild"


def case_of(path: Path):
    found = analysis_of(diagnosed(path))
    assert found is not None
    return found


@pytest.mark.slow
def test_an_adapter_of_all_experts():
    """12 expert stacks are rebuilt each step. Measured: the published fix makes this launch-bound step 1.09 times as
    long, and so the prediction promises no gain."""
    case = case_of(ROOT / "scenarios" / "cases" / "moe_lora_delta" / "recording")
    found = rebuilt_weights(case)
    assert found is not None
    assert found.per_step == 12
    assert found.shapes == ((32, 512, 1024), (32, 1024, 1024))
    built_ms = float(case.graph.duration_ns[found.built].sum()) / case.steps / 1e6
    assert 1.5 < built_ms < 2.5
    (proposal,) = finding.find(case)
    now = case.step_of(case.graph)
    assert proposal.best is not None and proposal.worst is not None
    best, likely, worst = (
        case.step_of(change(case.graph)) for change in (proposal.best, proposal.change, proposal.worst)
    )
    assert best <= likely <= worst
    assert now < likely < 1.09 * now
    # With the CPU out of the way, the GPU's work that goes is what would be gained.
    gone = float((case.graph.duration_ns - proposal.best(case.graph).duration_ns)[case.graph.on_gpu].sum()) / case.steps
    assert gone == pytest.approx(built_ms * 1e6, rel=0.01)
    assert "12 weights (32 × 512 × 1024" in (finding.why_not(case) or "")


@pytest.mark.parametrize(
    "name",
    few(
        ["qwen3_8b_lora", "fp32_adapters", "small_batch", "expert_loop", "eager_attention"],
        ["small_batch", "eager_attention"],
    ),
)
def test_adapters_that_are_applied_to_activations_are_none(name):
    case = case_of(ROOT / "scenarios" / name / "recording")
    assert rebuilt_weights(case) is None
    assert finding.why_not(case) is None


@pytest.mark.slow
@pytest.mark.skipif(not WILD.exists(), reason="recordings that do not come with a checkout")
def test_scores_of_attention_are_no_weights():
    """Scores over 400 positions come from a product over a short dimension, and values are multiplied with them."""
    assert rebuilt_weights(case_of(WILD / "yolo")) is None
