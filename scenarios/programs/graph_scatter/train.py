"""A graph network (8 layers, width 256) on 16,000 nodes and 240,000 edges, float32 with TF32, reproducible to the bit.

Edges are sorted by the node that they end at.
"""

from __future__ import annotations

import os

import torch
from torch.nn.functional import cross_entropy, relu

from scenarios.support.run import Run, main

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


class Layer(torch.nn.Module):
    """GINE: each node sums messages over its edges. `segments`: how many edges end at each node."""

    def __init__(self, width: int, features: int) -> None:
        super().__init__()
        self.edge = torch.nn.Linear(features, width)
        self.norm = torch.nn.LayerNorm(width)
        self.mlp = torch.nn.Sequential(
            torch.nn.Linear(width, 2 * width), torch.nn.ReLU(), torch.nn.Linear(2 * width, width)
        )

    def forward(
        self, x: torch.Tensor, begin: torch.Tensor, end: torch.Tensor, edges: torch.Tensor, counts: torch.Tensor | None
    ) -> torch.Tensor:
        messages = relu(x.index_select(0, begin) + self.edge(edges))
        if counts is not None:
            summed = torch.segment_reduce(messages, "sum", lengths=counts, axis=0, unsafe=True)
        else:
            summed = torch.zeros_like(x).index_add(0, end, messages)
        return x + self.mlp(self.norm(x + summed))


class Network(torch.nn.Module):
    def __init__(self, inputs: int, features: int, width: int, layers: int, classes: int) -> None:
        super().__init__()
        self.embed = torch.nn.Linear(inputs, width)
        self.layers = torch.nn.ModuleList(Layer(width, features) for _ in range(layers))
        self.head = torch.nn.Linear(width, classes)

    def forward(self, x: torch.Tensor, *graph: torch.Tensor | None) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x, *graph)
        return self.head(x)


def train(run: Run) -> None:
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    torch.use_deterministic_algorithms(run.fix != "not_deterministic")
    torch.utils.deterministic.fill_uninitialized_memory = run.fix != "unfilled"
    nodes, many, width, layers = run.pick((16_000, 240_000, 256, 8), (40, 200, 16, 2))
    model = Network(64, 16, width, layers, 40).to(run.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=not run.tiny)
    begin, end = torch.randint(0, nodes, (many,)), torch.randint(0, nodes, (many,)).sort().values
    counts = torch.bincount(end, minlength=nodes).to(run.device) if run.fix == "segments" else None
    edges = torch.randn(many, 16)
    if run.fix == "by_source":
        order = begin.argsort()
        begin, end, edges = begin[order], end[order], edges[order]
    begin, end, edges = begin.to(run.device), end.to(run.device), edges.to(run.device)
    x = torch.randn(nodes, 64, device=run.device)
    classes = torch.randint(0, 40, (nodes,), device=run.device)
    for _ in run.steps():
        loss = cross_entropy(model(x, begin, end, edges, counts), classes)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
