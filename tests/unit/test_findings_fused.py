"""Findings about sequences of kernels that one kernel replaces: norms, rotary embeddings, causal convolutions."""

from __future__ import annotations

import math

import pytest
from helpers.after_fix import after_us
from helpers.case import only
from helpers.present import present
from helpers.program import BF16, FLOAT, MS, US, Program

from gpuprof.diagnosis.analysis import Analysis
from gpuprof.diagnosis.detect.declared.proposal import CERTAIN_CHANCE
from gpuprof.diagnosis.detect.gpu import fused_sequences
from gpuprof.diagnosis.detect.gpu.activations import find_activations
from gpuprof.diagnosis.findings import fused_elementwise, missing_kernels


def norm(program: Program, gpu: int = 200 * US) -> None:
    shape = [8, 2048, 4096]
    program.cast(shape, BF16, FLOAT, gpu=gpu)
    program.plain("pow", shape, [], gpu=gpu, type=FLOAT)
    program.plain("mean", shape, gpu=gpu, type=FLOAT)
    program.plain("rsqrt", [8, 2048, 1], type=FLOAT)
    program.plain("mul", shape, [8, 2048, 1], gpu=gpu, type=FLOAT)
    program.plain("mul", [4096], shape, gpu=gpu)


def norm_by_division(program: Program, gpu: int = 200 * US) -> None:
    """x / sqrt(mean(x · x) + ε) · w."""
    shape = [8, 2048, 4096]
    program.cast(shape, BF16, FLOAT, gpu=gpu)
    program.plain("mul", shape, shape, gpu=gpu, type=FLOAT)
    program.plain("mean", shape, gpu=gpu, type=FLOAT)
    program.plain("add", [8, 2048, 1], [], type=FLOAT)
    program.plain("sqrt", [8, 2048, 1], type=FLOAT)
    program.plain("div", shape, [8, 2048, 1], gpu=gpu, type=FLOAT)
    program.plain("mul", [4096], shape, gpu=gpu)


@pytest.mark.parametrize("written", [norm, norm_by_division], ids=["rsqrt", "division"])
def test_a_fused_norm_reads_and_writes_once(written, tmp_path):
    program = Program()

    def body():
        program.mm(16384, 4096, 4096, gpu=1 * MS)
        written(program)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    assert case.roofline is not None
    fused_us = 2 * 8 * 2048 * 4096 * 2 / case.roofline.ceilings.memory_bytes_per_s / 0.65 * 1e6 + 1
    assert after_us(case, only(fused_elementwise, case)) == pytest.approx(1000 + fused_us, rel=0.02)


HEADS, HALF = [8, 2048, 32, 128], [8, 2048, 32, 64]
PAIRS, TABLE = [8, 2048, 32, 64, 2], [2048, 1, 64]
ROTARY = {
    "transformers": [
        ("mul", HEADS, HEADS), ("slice", HEADS), ("slice", HEADS), ("neg", HALF), ("cat", HALF), ("mul", HEADS, HEADS),
        ("add", HEADS, HEADS),
    ],
    "complex": [
        ("to", HEADS), ("reshape", HEADS), ("view_as_complex", PAIRS), ("unsqueeze", [2048, 64]), ("mul", HALF, TABLE),
        ("view_as_real", HALF), ("flatten", PAIRS), ("type_as", HEADS),
    ],
    "chunk": [
        ("chunk", HEADS), ("mul", HALF, TABLE), ("mul", HALF, TABLE), ("sub", HALF, HALF), ("mul", HALF, TABLE),
        ("mul", HALF, TABLE), ("add", HALF, HALF), ("cat", HALF),
    ],
    "nanochat": [
        ("slice", HEADS), ("slice", HEADS), ("mul", HALF, TABLE), ("mul", HALF, TABLE), ("add", HALF, HALF),
        ("neg", TABLE), ("mul", HALF, TABLE), ("mul", HALF, TABLE), ("add", HALF, HALF), ("cat", HALF), ("to", HEADS),
    ],
    "gpt-fast": [
        ("to", HEADS), ("reshape", HEADS), ("view", [2048, 64, 2]), ("select", PAIRS), ("select", [1, 2048, 1, 64, 2]),
        ("mul", HALF, TABLE), ("select", PAIRS), ("select", [1, 2048, 1, 64, 2]), ("mul", HALF, TABLE),
        ("sub", HALF, HALF), ("select", PAIRS), ("select", [1, 2048, 1, 64, 2]), ("mul", HALF, TABLE),
        ("select", PAIRS), ("select", [1, 2048, 1, 64, 2]), ("mul", HALF, TABLE), ("add", HALF, HALF), ("stack", HALF),
        ("flatten", PAIRS), ("type_as", HEADS),
    ],
}  # fmt: skip
"""Ops of a rotary embedding as PyTorch 2.13 records them, with the shapes of their arguments."""


@pytest.mark.parametrize("name", ROTARY)
def test_rotary_embeddings_are_found_however_they_are_written(name, tmp_path):
    """Queries and keys are rotated one after the other; one fused kernel reads and writes each in bf16."""
    program = Program()

    def body():
        program.mm(16384, 4096, 4096, gpu=1 * MS)
        for op, *shapes in ROTARY[name] * 2:
            program.plain(op, *shapes, gpu=100 * US if op in ("mul", "add", "sub", "to", "cat", "stack") else 0)

    for _ in range(3):
        program.step(body)
    case = program.case(tmp_path)
    found = fused_sequences.find_sequences(case)
    assert found is not None
    assert found.kind.tolist() == [fused_sequences.ROPE, fused_sequences.KEYS] * case.steps
    assert set(found.bytes[::2]) == {2 * 2.0 * math.prod(HEADS)}
    assert list(fused_elementwise.pieces(case, found)) == ["rotary embedding"]


def test_only_pieces_that_gain_are_fused(tmp_path):
    """Where the CPU is the limit, a fused call takes it less time than the many ops of a rotary embedding, and more
    than the two of a gate."""
    program = Program()

    def body():
        program.mm(16384, 4096, 4096, gpu=100 * US)
        for op, *shapes in ROTARY["transformers"] * 2:
            program.plain(op, *shapes, gpu=10 * US if op in ("mul", "add", "cat", "neg") else 0)
        program.plain("silu", [16384, 4096], gpu=10 * US)
        program.plain("mul", [16384, 4096], [16384, 4096], gpu=10 * US)

    for _ in range(3):
        program.step(lambda: [body() for _ in range(6)])
    case = program.case(tmp_path)
    proposal = only(fused_elementwise, case)
    assert proposal.title == "fused rotary (Liger)"
    assert "swiglu=False" in str(proposal.fix) or "liger_rotary_pos_emb" in str(proposal.fix)
    assert case.step_of(proposal.change(case.graph)) < case.step_ns


def test_halves_that_are_only_joined_are_no_rotary_embedding(tmp_path):
    program = Program()

    def body():
        program.mm(16384, 4096, 4096, gpu=1 * MS)
        for op, *shapes in [("chunk", HEADS), ("mul", HALF, TABLE), ("mul", HALF, TABLE), ("cat", HALF)]:
            program.plain(op, *shapes, gpu=100 * US)

    for _ in range(3):
        program.step(body)
    assert fused_sequences.find_sequences(program.case(tmp_path)) is None


def test_each_piece_has_a_price_of_its_own_and_may_lose(tmp_path):
    """For two norms the fused kernel takes about as long as both, and at worst longer."""
    program = Program()

    def body():
        program.mm(16384, 4096, 4096, gpu=1 * MS)
        norm(program, gpu=10 * US)

    for _ in range(4):
        program.step(body)
    case = program.case(tmp_path)
    ((name, piece),) = fused_elementwise.pieces(case, present(fused_sequences.find_sequences(case))).items()
    assert name == "norms"
    worst = case.step_of(piece.change(2)(case.graph))
    assert case.step_of(piece.change(1)(case.graph)) <= case.step_ns < worst


def test_where_the_host_limits_the_step_fused_kernels_are_no_fix(tmp_path):
    """Only fewer launches may gain something, and the cost of a fused call there is not well known."""
    program = Program()

    def body():
        program.mm(16384, 4096, 4096)
        norm(program, gpu=2 * US)

    for _ in range(3):
        program.step(body)
    found = list(fused_elementwise.find(program.case(tmp_path)))
    assert all(one.odds < CERTAIN_CHANCE and one.needs for one in found)


def test_a_causal_convolution_is_priced_by_its_shape(tmp_path):
    """One over four tokens per channel with the SiLU after it; wide filters and mixed channels are another kernel's."""
    source, silu = [4, 4096, 2048], [4, 4096, 2048]

    def case(weight: list[int], folder: str) -> Analysis:
        program = Program()

        def body():
            program.mm(16384, 4096, 4096, gpu=1 * MS)
            program.plain("conv1d", source, weight, gpu=900 * US)
            program.plain("slice", source)
            program.plain("silu", silu, gpu=100 * US)

        for _ in range(4):
            program.step(body)
        return program.case(tmp_path / folder)

    found = case([4096, 1, 4], "causal")
    assert found.roofline is not None
    fused_us = 2 * 2 * math.prod(source) / found.roofline.ceilings.memory_bytes_per_s / 0.65 * 1e6 + 1
    proposal = only(missing_kernels, found, "convolutions")
    assert after_us(found, proposal) == pytest.approx(found.step_ns / US - 1000 + fused_us, rel=0.02)
    for weight in ([4096, 1, 31], [4096, 4096, 4], [2048, 1, 4]):
        assert not list(missing_kernels.find(case(weight, f"other{weight}")))


WIDE, ROWS = [8, 1024, 3072], [8, 1024, 1]
"""Of an activation, and one number for each of its rows."""
WRITTEN_OUT = {
    "gelu_tanh": [
        ("mul", WIDE, []), ("to", WIDE), ("pow", WIDE, []), ("mul", WIDE, []), ("add", WIDE, WIDE), ("mul", WIDE, []),
        ("tanh", WIDE), ("add", WIDE, []), ("mul", WIDE, WIDE),
    ],
    "gelu_tanh in another order": [
        ("mul", WIDE, []), ("mul", WIDE, []), ("mul", WIDE, []), ("mul", WIDE, WIDE), ("add", WIDE, []),
        ("mul", WIDE, WIDE), ("tanh", WIDE), ("add", WIDE, []), ("mul", WIDE, WIDE),
    ],
    "gelu": [("mul", WIDE, []), ("div", WIDE, []), ("erf", WIDE), ("add", WIDE, []), ("mul", WIDE, WIDE)],
    "mish": [("softplus", WIDE), ("tanh", WIDE), ("mul", WIDE, WIDE)],
    "layer_norm": [
        ("mean", WIDE), ("var", WIDE), ("sub", WIDE, ROWS), ("add", ROWS, []), ("sqrt", ROWS), ("div", WIDE, ROWS),
        ("mul", WIDE, [3072]), ("add", WIDE, [3072]),
    ],
    "layer_norm by a deviation": [
        ("mean", WIDE), ("std", WIDE), ("sub", WIDE, ROWS), ("mul", [3072], WIDE), ("add", ROWS, []),
        ("div", WIDE, ROWS), ("add", WIDE, [3072]),
    ],
    "layer_norm by squares": [
        ("mean", WIDE), ("sub", WIDE, ROWS), ("pow", WIDE, []), ("mean", WIDE), ("sub", WIDE, ROWS), ("add", ROWS, []),
        ("rsqrt", ROWS), ("mul", WIDE, ROWS), ("mul", [3072], WIDE), ("add", WIDE, [3072]),
    ],
    "softmax": [("max", WIDE), ("sub", WIDE, ROWS), ("exp", WIDE), ("sum", WIDE), ("div", WIDE, ROWS)],
    "dropout": [("rand_like", WIDE), ("gt", WIDE, []), ("to", WIDE), ("mul", WIDE, WIDE), ("div", WIDE, [])],
    "dropout by a mask": [("bernoulli_", WIDE), ("mul", WIDE, WIDE), ("div", WIDE, [])],
    "other": [("mul", WIDE, []), ("sigmoid", WIDE), ("mul", WIDE, WIDE)],
    "other, squared": [("relu", WIDE), ("pow", WIDE, [])],
    "other, a bound": [("div", WIDE, []), ("tanh", WIDE), ("mul", WIDE, [])],
    "vocabulary, of tokens": [("div", WIDE, []), ("log_softmax", WIDE, []), ("unsqueeze", [8192], []),
                              ("gather", WIDE, [], ROWS, [])],
    "vocabulary, entropy": [("log_softmax", WIDE, []), ("exp", WIDE), ("mul", WIDE, WIDE), ("sum", WIDE, [])],
    "vocabulary, both": [("log_softmax", WIDE, []), ("gather", WIDE, [], ROWS, []), ("squeeze", ROWS, []),
                         ("exp", WIDE), ("mul", WIDE, WIDE), ("sum", WIDE, [])],
}  # fmt: skip
"""Function → its ops; `other` and `vocabulary` have no kernel of torch's own."""


def _activations(ops, folder) -> Analysis:
    """A step with one activation between two matrix multiplications, after an adapter's scale and sum."""
    program = Program()

    def body():
        program.mm(8192, 3072, 768, gpu=1 * MS)
        program.plain("mul", WIDE, [], gpu=50 * US)
        program.plain("add", WIDE, WIDE, gpu=50 * US)
        for op, *shapes in ops:
            program.plain(op, *shapes, gpu=100 * US)
        program.mm(8192, 768, 3072, gpu=1 * MS)

    for _ in range(3):
        program.step(body)
    return program.case(folder)


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_a_function_that_is_written_out_becomes_one_kernel(name, tmp_path):
    case = _activations(WRITTEN_OUT[name], tmp_path)
    found = find_activations(case)
    assert found is not None and found.names == (name.partition(",")[0].partition(" ")[0],)
    assert len(found.found.stretches) == case.steps
    proposal = only(fused_elementwise, case, "activations")
    assert case.roofline is not None
    one_us = 2 * 2 * math.prod(WIDE) / case.roofline.ceilings.memory_bytes_per_s / 0.65 * 1e6 + 1
    assert after_us(case, proposal) == pytest.approx(2100 + one_us, rel=0.02), "the adapter's ops stay"
    assert ("torch.compile" in str(proposal.fix)) == name.startswith(("other", "vocabulary"))


@pytest.mark.parametrize(
    "ops",
    [
        [("sigmoid", WIDE), ("mul", WIDE, WIDE)],
        [("mul", WIDE, WIDE), ("sigmoid", WIDE), ("mul", WIDE, WIDE)],
        [("tanh", WIDE), ("mul", WIDE, WIDE)],
        [("add", WIDE, WIDE), ("tanh", WIDE), ("add", WIDE, []), ("mul", WIDE, WIDE)],
        [("gelu", WIDE), ("mul", WIDE, WIDE)],
        [("mean", WIDE), ("sub", WIDE, ROWS), ("add", WIDE, WIDE)],
        [("exp", WIDE), ("sum", WIDE), ("log", ROWS)],
        [("rand_like", WIDE), ("mul", WIDE, WIDE), ("add", WIDE, WIDE)],
        [("softmax", WIDE, []), ("mul", WIDE, WIDE)],
        [("log_softmax", WIDE, []), ("gather", WIDE, [], WIDE, [])],
        [("log_softmax", [8192, 96, 32], []), ("gather", [8192, 96, 32], [], [8192, 96, 1], [])],
    ],
    ids=[
        "a gate",
        "a gate of a product",
        "an LSTM's output",
        "no polynomial",
        "torch's own",
        "a mean alone",
        "a logarithm of a sum",
        "noise",
        "weights of experts",
        "all values in another order",
        "few classes",
    ],
)
def test_other_ops_are_no_such_function(ops, tmp_path):
    assert find_activations(_activations(ops, tmp_path)) is None
