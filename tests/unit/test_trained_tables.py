"""Whole embeddings and output layers that are trained next to LoRA adapters: found by the number of trained weights,
priced by their gradients, clipping and updates."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from helpers.case import case_of, only, run_of, with_facts

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.gpu import trained_tables
from gpuprof.diagnosis.findings import adapter_extras
from gpuprof.tracefile.trace import Mask

RECORDING = Path(__file__).parents[2] / "scenarios/programs/modules_saved/recording"
MODEL = json.loads((RECORDING / "rank0.json").read_text())["model"]
ADAPTERS = MODEL["lora"]["parameters"]
TABLE = MODEL["vocabulary"] * MODEL["hidden_size"]


@cache
def once() -> Analysis:
    return case_of(RECORDING, ms=105)


def recorded(**facts: object) -> Analysis:
    return with_facts(once(), run=replace(run_of(), model=MODEL | facts))


def launched_by(case: Analysis, name: str, rows: tuple[int, ...] = ()) -> Mask:
    """GPU nodes of ops of this name, all or those whose first argument has one of these numbers of rows."""
    dims, named = case.trace.ops.dims, case.ops_named(name.__eq__)
    for row in named.nonzero()[0].tolist():
        first = json.loads(case.trace.text(int(dims[row])) or "[[0]]")[0]
        named[row] = not rows or first[:1] in [[one] for one in rows]
    return case.nodes_within(named) & case.graph.on_gpu


def test_gradients_clipping_and_updates_of_both_tables_go() -> None:
    case = recorded()
    proposal = only(adapter_extras, case, "tables")
    found = trained_tables.find_trained_tables(case)
    assert found is not None and found.count == 2 and found.share == pytest.approx(2 * TABLE / MODEL["trainable"])
    left = found.left
    chunks = 32768, 29952
    assert launched_by(case, "aten::addmm", chunks).any()
    assert (left[launched_by(case, "aten::addmm", chunks)] == 0).all(), "gradients of the output layer's weights"
    assert (left[launched_by(case, "aten::addmm", (3112,))] == 1).all(), "gradients of its inputs are still needed"
    assert (left[launched_by(case, "aten::embedding_dense_backward")] == 0).all()
    assert (left[launched_by(case, "aten::linear")] == 1).all() and (left[launched_by(case, "aten::bmm")] == 1).all()
    saved = float((case.graph.duration_ns * (1 - left)).sum()) / case.steps / 1e6
    assert 12 < saved < 16, "13 to 14 ms of the GPU's time"
    assert proposal.odds < 1 and proposal.changes and proposal.worst is not None
    step, worst = (case.step_of(change(case.graph)) for change in (proposal.change, proposal.worst))
    assert step <= worst <= case.step_ns and step < 0.97 * case.step_ns
    assert "modules_to_save=None" in str(proposal.fix) and "trainable_token_indices" in str(proposal.fix)


@pytest.mark.parametrize(
    "facts",
    [
        {"trainable": ADAPTERS},
        {"trainable": ADAPTERS + TABLE // 3},
        {"trainable": ADAPTERS + 5 * TABLE},
        {"trainable": 3 * TABLE, "lora": {"parameters": 2 * TABLE}},
        {"lora": None},
        {"vocabulary": None},
    ],
    ids=["adapters alone", "part of a table", "most of the model", "mostly adapters", "no adapters", "unknown size"],
)
def test_other_trained_weights_are_no_tables(facts: dict[str, object]) -> None:
    assert trained_tables.find_trained_tables(recorded(**facts)) is None


def test_multiplications_that_make_up_a_table() -> None:
    whole, rows = [(0, 32000, 512), (1, 512, 32000)], 32000
    assert trained_tables._gradients(whole, rows) == [0]
    layers = [(at, 4000, 1024) for at in range(8)]
    assert not trained_tables._gradients(layers, rows), "gradients of the inputs of frozen layers, for 4,000 tokens"
    parts = [(0, 20000, 512), (1, 512, 20000), (2, 12000, 512), (3, 512, 12000)]
    assert trained_tables._gradients(parts, rows) == [0, 2]
