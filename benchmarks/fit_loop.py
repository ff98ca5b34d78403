"""A plain training loop for `benchmarks.largest_batch`: a Llama of 0.4 billion parameters in bf16, samples of 1,024
tokens, batch 8; tiny without a GPU.

    python -m benchmarks.largest_batch benchmarks/fit_loop.py
"""

from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

on_gpu = torch.cuda.is_available()
device = "cuda" if on_gpu else "cpu"
vocabulary, width, layers, heads, length = (32_000, 1024, 24, 16, 1024) if on_gpu else (500, 64, 2, 4, 32)
config = LlamaConfig(
    vocab_size=vocabulary,
    hidden_size=width,
    intermediate_size=2816 if on_gpu else 128,
    num_hidden_layers=layers,
    num_attention_heads=heads,
    num_key_value_heads=heads // 2 if on_gpu else heads,
)
torch.manual_seed(0)
model: Any = LlamaForCausalLM(config)
model.to(device, torch.bfloat16)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
samples: Any = torch.randint(0, 500, (20_000, length))
loader = torch.utils.data.DataLoader(samples, batch_size=8, shuffle=True)
for ids in loader:
    ids = ids.to(device)
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
