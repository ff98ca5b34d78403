"""Disables cuDNN attention, which plans again for every sequence length."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from .context import Context, Patch, Proof, has_gpu

PATCH = Patch(
    name="planning",
    does="cuDNN attention, which plans again for every new sequence length, is off; flash attention takes its place",
    line="torch.backends.cuda.enable_cudnn_sdp(False)",
    cannot="code that torch.compile compiles for every length: pad to a multiple (the fix `pad_to_multiple`)",
    group="shapes",
)


def apply(context: Context) -> Callable[[], Proof]:
    """Disables it as soon as torch has been imported."""
    before: list[bool] = []

    def switch(torch: Any) -> None:
        before.append(bool(torch.backends.cuda.cudnn_sdp_enabled()))
        torch.backends.cuda.enable_cudnn_sdp(False)

    context.on_import("torch", switch)

    def proof() -> Proof:
        torch = sys.modules.get("torch")
        if torch is None or not has_gpu():
            return Proof(False, "there is no GPU, so no cuDNN attention")
        if context.refusal:
            return Proof(False, context.refusal)
        if torch.backends.cuda.cudnn_sdp_enabled():
            return Proof(False, "the program switched cuDNN attention on after the patch")
        if not any(before):
            return Proof(False, "cuDNN attention was off already")
        return Proof(True, "cuDNN attention is off")

    return proof
