"""A loss that is computed for several outputs, one after another: long sequences of ops that come a few times."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from helpers.case import only
from helpers.make_trace import AUTOGRAD, MAIN
from helpers.program import MS, OP, US, Program
from hypothesis import given
from hypothesis import strategies as st

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.loops.repeated_blocks import blocks_in, find_repeated_blocks
from gpuprof.diagnosis.findings import python_loop

LOSS = ("flatten", "cdist", "sub", "abs", "max", "index", "gather", "mul", "sum", "add")
OUTPUTS = 5


def trained(
    tmp_path, outputs: int = OUTPUTS, layer: str = "", gradients: bool = True, rest: int = 1 * MS, nodes: bool = True,
    names: tuple[str, ...] = LOSS, body_of: str = "mm",
) -> Analysis:  # fmt: skip
    """A short model, and for each of its outputs twelve ops; `layer`: one more of them. Without nodes they all have the
    number of the next op that makes one."""
    made = Program()

    def losses() -> None:
        start = made.sequence
        for _ in range(outputs):
            for name in (*names, *([layer] if layer else [])):
                made.plain(name, [64, 64], gpu=5 * US)
                made.sequence = made.sequence if nodes else start
        made.sequence = max(made.sequence, start + 1)
        if not gradients:
            return
        made.tid = AUTOGRAD
        for number in range(start + 1, made.sequence + 1):
            begin = made.now
            made.elementwise()
            arguments: dict[str, Any] = {"Sequence number": number, "Fwd thread id": 1}
            made.trace.op("autograd::engine::evaluate_function: Backward0", begin, made.now, AUTOGRAD, **arguments)
        made.tid = MAIN

    def body() -> None:
        made.python(rest)
        if body_of == "mm":
            made.small_mm()
        losses()

    for _ in range(3):
        made.step(body)
    return made.case(tmp_path)


def test_a_loss_for_each_output_is_one_for_all_or_for_the_last(tmp_path):
    case = trained(tmp_path)
    found = find_repeated_blocks(case)
    assert found is not None and found.rounds.tolist() == [OUTPUTS] * 3
    one, last = (only(python_loop, case, key) for key in ("blocks", "last"))
    whole = OUTPUTS * len(LOSS) * OP  # forward, and as much backward
    saved = [case.step_ns - case.step_of(change(case.graph)) for change in (one.change, last.change)]
    assert saved[1] == pytest.approx(2 * whole * (1 - 1 / OUTPUTS), rel=0.05)
    assert 0.9 * 2 * whole * (1 - 2 / OUTPUTS) < saved[0] < saved[1]
    assert last.changes and not one.changes and one.odds > last.odds


@pytest.mark.parametrize(("gradients", "fix"), [(True, "weight_decay"), (False, "_foreach_norm")])
def test_a_norm_of_each_weight_in_the_loss_is_weight_decay(tmp_path, gradients: bool, fix: str):
    case = trained(tmp_path, outputs=20, names=("linalg_vector_norm", "add"), gradients=gradients)
    assert fix in str(only(python_loop, case).fix)


LEVEL = ("mul", "floor", "sub", "remainder", "unsqueeze", "add", "index", "gather", "sum")


@pytest.mark.parametrize("lookup", ["embedding", "grid_sampler"])
def test_a_lookup_for_each_level_is_one_for_all(tmp_path, lookup: str):
    """Indices and interpolation weights are computed for each level; no lookup returns the indices of the next."""
    found = [one for one in python_loop.find(trained(tmp_path, names=LEVEL, layer=lookup)) if one.key]
    assert [one.key for one in found] == ["levels"]
    assert "5 times 10 different ops" in found[0].evidence[0].text


def test_a_residual_quantizer_needs_one_level_after_another(tmp_path):
    assert not [
        one for one in python_loop.find(trained(tmp_path, names=(*LEVEL, "argmin"), layer="embedding")) if one.key
    ]


@pytest.mark.parametrize(
    "more",
    [{"layer": "linear"}, {"outputs": 2}, {"gradients": False}, {"rest": 100 * MS}, {"nodes": False}],
    ids=lambda one: next(iter(one)),
)
def test_not_of_layers_pairs_what_no_loss_needs_or_what_takes_little(tmp_path, more):
    assert not [one for one in python_loop.find(trained(tmp_path, **more)) if one.key in ("blocks", "last")]


def test_layers_without_weights_are_no_losses(tmp_path):
    """The propagation over a recommender's graph: nothing is summed up."""
    names = tuple(name for name in (*LOSS, "relu", "index_add_") if name != "sum")
    assert not [one for one in python_loop.find(trained(tmp_path, names=names)) if one.key in ("blocks", "last")]


def test_whole_steps_are_no_blocks(tmp_path):
    """A model without matrix multiplications: each step is like the one before, backward pass included."""
    assert find_repeated_blocks(trained(tmp_path, outputs=1, body_of="")) is None


@given(st.permutations(range(1, 13)), st.integers(3, 9), st.lists(st.integers(20, 99), max_size=9, unique=True))
def test_blocks_among_other_ops_are_found_whole(body, rounds, others):
    names = np.array([*others, *body * rounds, *others[::-1]], np.int64)
    free = np.zeros(len(names), bool)
    assert list(blocks_in(names, free)) == [(len(others), len(body), rounds)]
    layers = names == body[3]
    assert not list(blocks_in(names, layers))


def test_other_ops_between_two_blocks_end_the_repetition():
    body = list(range(1, 13))
    names = np.array([*body * 3, 50, *body * 4], np.int64)
    assert list(blocks_in(names, np.zeros(len(names), bool))) == [(37, 12, 4), (0, 12, 3)]
