"""Four layers of a Llama of width 2048 in bf16, its RMSNorm and SwiGLU written in plain PyTorch, 2 × 2048 tokens"""

from __future__ import annotations

import torch
from torch.nn.functional import cross_entropy, rms_norm, scaled_dot_product_attention, silu

from scenarios.support.run import Run, main


class Norm(torch.nn.Module):
    """`how`: "" plain PyTorch, "torch" its own function, "liger" Liger's."""

    def __init__(self, width: int, how: str) -> None:
        super().__init__()
        self.weight, self.how = torch.nn.Parameter(torch.ones(width)), how

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.how == "torch":
            return rms_norm(x, self.weight.shape, self.weight, 1e-6)
        if self.how == "liger":
            from liger_kernel.ops.rms_norm import LigerRMSNormFunction

            return LigerRMSNormFunction.apply(x, self.weight, 1e-6)
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


class Layer(torch.nn.Module):
    def __init__(self, width: int, how: str) -> None:
        super().__init__()
        self.how = how
        self.norm, self.norm2 = Norm(width, how), Norm(width, how)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width, bias=False), torch.nn.Linear(width, width, bias=False)
        self.gate, self.up = (torch.nn.Linear(width, 11 * width // 4, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(11 * width // 4, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, width // 64, 64).permute(2, 0, 3, 1, 4)
        mixed = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        wide = self.norm2(x)
        return x + self.down(self._gated(self.gate(wide), self.up(wide)))

    def _gated(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        if self.how == "liger":
            from liger_kernel.ops.swiglu import LigerSiLUMulFunction

            return LigerSiLUMulFunction.apply(gate, up)
        return silu(gate) * up


def train(run: Run) -> None:
    torch.manual_seed(0)
    width, rows, length, layers = run.pick((2048, 2, 2048, 4), (64, 2, 8, 2))
    model = torch.nn.Sequential(
        torch.nn.Embedding(8192, width),
        *(Layer(width, run.fix) for _ in range(layers)),
        Norm(width, run.fix),
        torch.nn.Linear(width, 8192, bias=False),
    ).to(run.device, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=not run.tiny)
    tokens = torch.randint(0, 8192, (rows, length), device=run.device)
    for _ in run.steps():
        loss = cross_entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
