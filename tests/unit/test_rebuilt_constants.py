"""Constants that every layer makes again; not those made once, nor chains that use what layers compute."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers.case import only
from helpers.program import BF16, FLOAT, MATMUL, PLAIN, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.findings import rebuilt_constants

LAYERS, TOKENS, WIDTH, HALF = 12, 512, 1_024, 64
TABLE = [TOKENS, HALF]


def model(folder: Path, makers: int, sees: list[int], first: str = "arange") -> Analysis:
    """A launch-bound model in which some layers make a table with five ops of 20 µs, the fourth of which uses
    `sees`."""
    program = Program()

    def table() -> None:
        program.op(f"aten::{first}", PLAIN, 2 * US, [[], []], ["Scalar", "Scalar"])
        for name, shape in (("outer", [TOKENS]), ("cos", TABLE), ("mul", sees), ("to", TABLE)):
            program.op(f"aten::{name}", PLAIN, 2 * US, [shape, []], [FLOAT, "Scalar"])

    def body() -> None:
        for layer in range(LAYERS):
            if layer < makers:
                table()
            for _ in range(5):
                shapes = [[TOKENS, WIDTH], [WIDTH, WIDTH]]
                program.op("aten::linear", MATMUL, 5 * US, shapes, [BF16, BF16])

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_a_table_of_each_layer_is_made_once(tmp_path: Path):
    case = model(tmp_path, LAYERS, TABLE)
    proposal = only(rebuilt_constants, case)
    saved = case.step_ns - case.step_of(proposal.change(case.graph))
    assert saved == pytest.approx((LAYERS - 1) * 5 * 20 * US, rel=0.02)
    assert f"made {LAYERS} times a step" in proposal.evidence[0].text and proposal.odds < 0.9


@pytest.mark.parametrize(
    ("makers", "sees", "first"), [(3, TABLE, "arange"), (LAYERS, [TOKENS, WIDTH], "arange"), (LAYERS, TABLE, "rand")]
)
def test_neither_few_nor_what_depends_on_samples(tmp_path: Path, makers: int, sees: list[int], first: str):
    found = list(rebuilt_constants.find(model(tmp_path, makers, sees, first)))
    # Up to an op that uses an activation a chain is still constant.
    assert all(f"made {LAYERS} times" in one.evidence[0].text for one in found) and bool(found) is (sees != TABLE)


@pytest.mark.parametrize(("second", "found"), [("triu", 1), ("tril", 1), ("expand", 0)])
def test_a_causal_mask_takes_two_ops(tmp_path: Path, second: str, found: int):
    """`torch.full((t, t), -inf).triu(1)` in each layer."""
    program = Program()

    def body() -> None:
        for _ in range(LAYERS):
            program.op("aten::full", PLAIN, 20 * US, [[], []], ["Scalar", "Scalar"])
            program.op(f"aten::{second}", PLAIN, 20 * US, [[TOKENS, TOKENS], []], [FLOAT, "Scalar"])
            program.op("aten::add", PLAIN, 20 * US, [[8, TOKENS, TOKENS], [TOKENS, TOKENS]], [FLOAT, FLOAT])
            program.op("aten::softmax", PLAIN, 20 * US, [[8, TOKENS, TOKENS]], [FLOAT])

    for _ in range(3):
        program.step(body)
    assert len(list(rebuilt_constants.find(program.case(tmp_path)))) == found


NODES, FEATURES = 4_000, 256
MATRIX = [NODES, NODES]


def graph_network(folder: Path, trained: bool = False, size: list[int] = MATRIX, times: int = 4, type: str = FLOAT):
    """A model that scales a matrix by its sums before each multiplication, with no node of autograd unless trained."""
    program = Program()

    def scaled() -> None:
        for name, shapes in (("sum", [size]), ("pow", [[NODES]]), ("mul", [[NODES, 1], size])):
            program.op(f"aten::{name}", PLAIN, 100 * US, [*shapes, []], [type, type])
            program.sequence -= not trained  # the next op has the same number

    def body() -> None:
        for _ in range(times):
            shapes = [[NODES, FEATURES], [FEATURES, FEATURES]]
            program.op("aten::linear", MATMUL, 50 * US, shapes, [FLOAT, FLOAT])
            scaled()
            program.op("aten::matmul", MATMUL, 200 * US, [size, [NODES, FEATURES]], [FLOAT, FLOAT])
            program.op("aten::relu", PLAIN, 50 * US, [[NODES, FEATURES]], [FLOAT])

    for _ in range(3):
        program.step(body)
    return program.case(folder)


def test_what_has_no_gradients_is_computed_once(tmp_path: Path):
    case = graph_network(tmp_path)
    proposal = only(rebuilt_constants, case, "untrained")
    assert proposal.best is not None
    once, never = (case.step_ns - case.step_of(change(case.graph)) for change in (proposal.change, proposal.best))
    assert once == pytest.approx(3 * 300 * US, rel=0.03)
    assert never == pytest.approx(4 * 300 * US, rel=0.03), "it may be the same in all steps"


@pytest.mark.parametrize(
    "other",
    [{"trained": True}, {"size": [NODES, FEATURES]}, {"times": 2}, {"type": "long int"}],
    ids=["weights", "statistics of activations", "two inputs", "indices of a router"],
)
def test_what_may_differ_is_not(tmp_path: Path, other):
    assert not [one for one in rebuilt_constants.find(graph_network(tmp_path, **other)) if one.key == "untrained"]
