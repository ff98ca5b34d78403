"""A graph convolutional network (4 layers, width 256) that classifies the 16,000 nodes of one graph, in float32."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional

from scenarios.support.run import Run, main

CLASSES = 40
Spread = Callable[[torch.Tensor], torch.Tensor]
"""Features of nodes → the weighted sums of those of their neighbours."""


def graph(nodes: int, neighbours: int, device: str) -> torch.Tensor:
    """Edges as (2, count), both directions of each and one from each node to itself, without repetition."""
    ends = torch.randint(0, nodes, (2, nodes * neighbours // 2), device=device)
    itself = torch.arange(nodes, device=device).expand(2, -1)
    both = torch.cat((ends, ends.flip(0), itself), 1)
    pairs = torch.unique(both[0] * nodes + both[1])
    return torch.stack((pairs // nodes, pairs % nodes))


def normalised(adjacency: torch.Tensor) -> torch.Tensor:
    """D^-½ A D^-½, D the degrees of the nodes."""
    scale = adjacency.sum(1).pow(-0.5)
    return scale[:, None] * adjacency * scale[None, :]


class Layer(nn.Module):
    def __init__(self, inward: int, outward: int) -> None:
        super().__init__()
        self.weight = nn.Linear(inward, outward)

    def forward(self, x: torch.Tensor, spread: Spread) -> torch.Tensor:
        return spread(self.weight(x))


class Network(nn.Module):
    def __init__(self, features: int, width: int, layers: int) -> None:
        super().__init__()
        widths = (features, *[width] * (layers - 1), CLASSES)
        self.layers = nn.ModuleList(Layer(a, b) for a, b in pairwise(widths))

    def forward(self, x: torch.Tensor, spread: Spread) -> torch.Tensor:
        for layer in self.layers[:-1]:
            x = functional.dropout(functional.relu(layer(x, spread)), 0.5, self.training)
        return self.layers[-1](x, spread)


class AlongEdges:
    """Sums over the neighbours of each node, weighted as the normalised matrix is."""

    def __init__(self, edges: torch.Tensor, nodes: int) -> None:
        self.target, self.source = edges
        degrees = torch.bincount(self.target, minlength=nodes).float()
        self.weight = (degrees[self.target] * degrees[self.source]).pow(-0.5)[:, None]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x).index_add(0, self.target, x[self.source] * self.weight)


def train(run: Run) -> None:
    torch.manual_seed(0)
    nodes, neighbours, features, width, layers = run.pick((16_000, 40, 512, 256, 4), (60, 4, 16, 8, 3))
    if run.fix == "tf32":
        torch.set_float32_matmul_precision("high")
    edges = graph(nodes, neighbours, run.device)
    if run.fix == "edges":
        spread = AlongEdges(edges, nodes)
    else:
        adjacency = torch.zeros(nodes, nodes, device=run.device)
        adjacency[edges[0], edges[1]] = 1.0
        if run.fix == "normalised_once":
            adjacency = normalised(adjacency)
        once = run.fix == "normalised_once"

        def spread(x: torch.Tensor) -> torch.Tensor:
            return (adjacency if once else normalised(adjacency)) @ x

    model = Network(features, width, layers).to(run.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    x = torch.randn(nodes, features, device=run.device)
    labels = torch.randint(0, CLASSES, (nodes,), device=run.device)
    known = torch.rand(nodes, device=run.device) < 0.5
    for _ in run.steps():
        logits = model(x, spread)
        # As a mean over known nodes, without picking them out: that would have to wait for their number.
        losses = functional.cross_entropy(logits, labels, reduction="none")
        ((losses * known).sum() / known.sum()).backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


if __name__ == "__main__":
    main(train)
