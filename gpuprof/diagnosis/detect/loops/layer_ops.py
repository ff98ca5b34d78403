"""Ops of which a model's layers are made, by kind: they distinguish a loop from a stack of layers."""

from __future__ import annotations

MATMULS = frozenset({"aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::linear", "aten::matmul"})
CONVOLUTIONS = frozenset({"aten::conv1d", "aten::conv2d", "aten::conv3d"})
NORMS = frozenset(
    f"aten::{name}" for name in ("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "batch_norm")
)
ATTENTION = "aten::scaled_dot_product_attention"
CELLS = ("aten::lstm_cell", "aten::gru_cell", "aten::rnn_tanh_cell", "aten::rnn_relu_cell")
"""Cells of torch.nn for which it also has a layer that runs all steps."""
RECURRENT_LAYERS = frozenset({"aten::lstm", "aten::gru", "aten::rnn_tanh", "aten::rnn_relu"})
"""Layers that run all steps of a sequence in one call, and are called for each step by itself in some loops."""
