"""Ops of which a model's layers are made, by kind: they distinguish a loop from a stack of layers."""

from __future__ import annotations

MATMULS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul"})
CONVOLUTIONS = frozenset(
    {"aten::convolution"} | {f"aten::conv{kind}{width}d" for kind in ("", "_transpose") for width in (1, 2, 3)}
)
NORMS = frozenset(
    f"aten::{name}"
    for name in ("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "batch_norm", "instance_norm")
)
ATTENTION = "aten::scaled_dot_product_attention"
CELLS = ("aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell")
"""Cells of torch.nn for which it also has a layer that runs all steps."""
RECURRENT_LAYERS = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})
"""Layers that run all steps of a sequence in one call, and are called for each step by itself in some loops."""
LARGE_OPS = (
    MATMULS | CONVOLUTIONS | NORMS | RECURRENT_LAYERS
    | {"aten::_scaled_mm", "aten::_grouped_mm", "aten::embedding", ATTENTION}
)  # fmt: skip
"""Large ops: what repeats with them is a stack of layers, each of which needs the one before."""
ONCE_A_LAYER = NORMS | {
    *("aten::topk", "aten::sort", "aten::embedding", "aten::_grouped_mm", "aten::rsqrt", "aten::softmax", ATTENTION)
}
"""Ops that a layer runs once and an expert does not: a repeating sequence that contains them is the layers
themselves."""
NOT_OF_CELLS = NORMS | CONVOLUTIONS | {"aten::rsqrt", ATTENTION}
"""Ops that layers have and recurrent cells do not: a stack of layers whose modules have no ranges of their own also
repeats."""
