"""Residual MLPs, compiled, whose linear layers are bf16 or FP8: by torchao, or by torch._scaled_mm in a few lines."""

from __future__ import annotations

import os
import sys

import torch

from scenarios.support.run import Run

TORCHAO = "SCENARIO_TORCHAO"
"""A folder with torchao, where it is not installed: other libraries use it as soon as it is."""
LARGEST = 448.0
"""The largest number of float8_e4m3fn; that of float8_e5m2 is 57344."""
LARGEST_GRADIENT = 57344.0


def quantized(x: torch.Tensor, largest: float, kind: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """The tensor in FP8, and the scale that undoes this: one for the whole tensor, from its current maximum."""
    scale = largest / x.abs().max().clamp(min=1e-12).float()
    return (x.float() * scale).clamp(-largest, largest).to(kind), scale.reciprocal()


class ScaledLinear(torch.autograd.Function):
    """y = x wᵀ with all three matrix multiplications of a step in FP8, each tensor scaled by its own maximum."""

    @staticmethod
    def forward(ctx, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, w)
        a, by = quantized(x, LARGEST, torch.float8_e4m3fn)
        b, bw = quantized(w, LARGEST, torch.float8_e4m3fn)
        return torch._scaled_mm(a, b.t(), by, bw, out_dtype=torch.bfloat16, use_fast_accum=True)

    @staticmethod
    def backward(ctx, *grads: torch.Tensor):
        x, w = ctx.saved_tensors
        g, bg = quantized(grads[0], LARGEST_GRADIENT, torch.float8_e5m2)
        a, bx = quantized(x, LARGEST, torch.float8_e4m3fn)
        b, bw = quantized(w, LARGEST, torch.float8_e4m3fn)
        dx = torch._scaled_mm(g, b.t().contiguous().t(), bg, bw, out_dtype=torch.bfloat16)
        dw = torch._scaled_mm(g.t().contiguous(), a.t().contiguous().t(), bg, bx, out_dtype=torch.bfloat16)
        return dx, dw


class ByHand(torch.nn.Linear):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return ScaledLinear.apply(input.flatten(0, -2), self.weight).view(*input.shape[:-1], -1)  # type: ignore[union-attr]


class Layer(torch.nn.Module):
    def __init__(self, width: int, inner: int, linear: type[torch.nn.Linear]) -> None:
        super().__init__()
        self.norm = torch.nn.RMSNorm(width)
        self.gate, self.up = linear(width, inner, bias=False), linear(width, inner, bias=False)
        self.down = linear(inner, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(torch.nn.functional.silu(self.gate(y)) * self.up(y))


def train_linear(run: Run, width: int, inner: int, layers: int, tokens: int) -> None:
    """Fixes: `fp8` and `fp8_rowwise` by torchao's float8 training, `scaled_mm` by hand."""
    width, inner, layers, tokens = run.pick((width, inner, layers, tokens), (64, 128, 2, 32))
    torch.manual_seed(0)
    linear = ByHand if run.fix == "scaled_mm" else torch.nn.Linear
    model = torch.nn.Sequential(*(Layer(width, inner, linear) for _ in range(layers))).to(run.device, torch.bfloat16)
    if run.fix.startswith("fp8"):
        sys.path += filter(None, [os.environ.get(TORCHAO)])
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        recipe = "rowwise" if run.fix == "fp8_rowwise" else "tensorwise"
        convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name(recipe))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=not run.tiny)
    for layer in model:
        layer.compile()
    x = torch.randn(tokens, width, device=run.device, dtype=torch.bfloat16)
    for _ in run.steps():
        loss = model(x).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
