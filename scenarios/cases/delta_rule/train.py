"""Linear-attention layers of Qwen3-Next as transformers runs them without the fla package: the gated delta rule in
plain torch writes each chunk's result into a slice of its output, so that the backward pass copies the whole for
each.
"""

from __future__ import annotations

import inspect

import torch
from transformers import Qwen3NextConfig
from transformers.models.qwen3_next import modeling_qwen3_next as library

from scenarios.support.run import Run, main

VIEWS = ("new_values", "k_cumdecay", "query", "intra_chunk_attn", "key", "chunk_decay")
WRITTEN = "core_attn_out[:, :, i] = "


def without_slices() -> None:
    """Replaces the library's function by one with the same text whose loop reads views and collects its results."""
    text = inspect.getsource(library.torch_chunk_gated_delta_rule)
    text = text[text.index("def ") :]
    head, loop = text.split("    for i in range(num_chunks):", 1)
    (written,) = [line for line in loop.splitlines() if WRITTEN in line]  # else it is another version of transformers
    loop = loop.replace(written, written.replace(WRITTEN, "outputs.append(") + ")")
    for name in VIEWS:
        loop = loop.replace(f"{name}[:, :, i]", f"{name}_views[i]")
    views = "".join(f"    {name}_views = {name}.unbind(2)\n" for name in VIEWS if f"{name}_views" in loop)
    body, tail = cut(loop)
    start, end = "    outputs = []\n    for i in range(num_chunks):", "    core_attn_out = torch.stack(outputs, 2)\n"
    text = head + views + start + body + end + tail
    exec(compile(text, "without_slices", "exec"), vars(library))


def cut(loop: str) -> tuple[str, str]:
    """The body of the loop, and what follows."""
    lines = loop.splitlines(keepends=True)
    end = next(i for i, line in enumerate(lines) if i and line.strip() and not line.startswith("        "))
    return "".join(lines[:end]), "".join(lines[end:])


def train(run: Run) -> None:
    if run.fix == "after":
        without_slices()
    width, layers, length = run.pick((1024, 6, 4096), (64, 2, 200))
    heads = run.pick((8, 16, 128), (2, 2, 16))
    config = Qwen3NextConfig(
        hidden_size=width, num_hidden_layers=layers, linear_num_key_heads=heads[0], linear_num_value_heads=heads[1],
        linear_key_head_dim=heads[2], linear_value_head_dim=heads[2], vocab_size=1000,
    )  # fmt: skip
    torch.manual_seed(0)
    with torch.device(run.device):
        model = torch.nn.ModuleList(library.Qwen3NextGatedDeltaNet(config, i) for i in range(layers)).to(torch.bfloat16)
    norms = torch.nn.ModuleList(torch.nn.RMSNorm(width) for _ in range(layers)).to(run.device, torch.bfloat16)
    weights = [*model.parameters(), *norms.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=1e-4, fused=not run.tiny)
    x = torch.randn(1, length, width, device=run.device, dtype=torch.bfloat16)
    for _ in run.steps():
        y = x
        for norm, layer in zip(norms, model, strict=True):
            y = y + layer(norm(y))
        loss = y.float().pow(2).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
