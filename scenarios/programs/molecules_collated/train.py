"""A graph network with PyTorch Geometric (GINE: 5 layers, width 300) learns 12 properties of molecules of some 18
atoms, 512 molecules a batch, float32. The molecules are a list; PyTorch Geometric's DataLoader joins those of a batch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import torch
from torch import nn
from torch.nn import functional
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GINEConv, global_mean_pool

from scenarios.support.data import endless
from scenarios.support.run import Run, main

ATOM, BOND, PROPERTIES = (119, 5, 12, 12, 10, 6, 6, 2, 2), (5, 6, 2), 12
"""Numbers of values that each feature of an atom and of a bond has."""
REPEATED = 10
"""How often the molecules are in the list, so that an epoch is not over at once."""


def molecule(atoms: int) -> Data:
    """A chain with a few rings, each bond in both directions."""
    chain, rings = torch.arange(atoms - 1), torch.randint(0, atoms, (2, max(atoms // 8, 1)))
    bonds = torch.cat((torch.stack((chain, chain + 1)), rings), 1)
    kinds = torch.stack([torch.randint(0, many, (bonds.shape[1],)) for many in BOND], 1)
    return Data(
        x=torch.stack([torch.randint(0, many, (atoms,)) for many in ATOM], 1),
        edge_index=torch.cat((bonds, bonds.flip(0)), 1),
        edge_attr=kinds.repeat(2, 1),
        y=torch.randn(1, PROPERTIES),
    )


class Encoder(nn.Module):
    """The sum of an embedding of each feature."""

    def __init__(self, counts: tuple[int, ...], width: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(count, width) for count in counts)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        return sum(table(features[:, i]) for i, table in enumerate(self.tables))


class Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        inner = nn.Sequential(
            nn.Linear(width, 2 * width), nn.BatchNorm1d(2 * width), nn.ReLU(), nn.Linear(2 * width, width)
        )
        self.bonds, self.passing, self.norm = (
            Encoder(BOND, width),
            GINEConv(inner, train_eps=True),
            nn.BatchNorm1d(width),
        )

    def forward(self, x: torch.Tensor, edges: torch.Tensor, bonds: torch.Tensor) -> torch.Tensor:
        return self.norm(self.passing(x, edges, self.bonds(bonds)))


class Network(nn.Module):
    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.atoms = Encoder(ATOM, width)
        self.layers = nn.ModuleList(Layer(width) for _ in range(layers))
        self.head = nn.Linear(width, PROPERTIES)

    def forward(self, batch: Batch) -> torch.Tensor:
        x = self.atoms(batch.x)
        for layer in self.layers:
            x = x + functional.dropout(functional.relu(layer(x, batch.edge_index, batch.edge_attr)), 0.1, self.training)
        return self.head(global_mean_pool(x, batch.batch, size=batch.num_graphs))


def kept(loader: DataLoader, device: str) -> Iterator[Batch]:
    """Batches that are joined once and stay on the device; their order changes from epoch to epoch."""
    batches = [batch.to(device) for batch in loader]
    while True:
        random.shuffle(batches)
        yield from batches


def train(run: Run) -> None:
    torch.manual_seed(0)
    random.seed(0)
    many, batch, width, layers = run.pick((4000, 512, 300, 5), (16, 8, 8, 2))
    molecules = [molecule(random.randint(9, 27)) for _ in range(many)] * REPEATED
    if run.fix == "workers":
        workers = run.pick(8, 0)
        loader = DataLoader(
            molecules, batch, shuffle=True, drop_last=True, num_workers=workers, persistent_workers=workers > 0,
            pin_memory=not run.tiny,
        )  # fmt: skip
    else:
        loader = DataLoader(molecules, batch, shuffle=True, drop_last=True)
    batches = kept(loader, run.device) if run.fix == "batches_kept" else endless(loader)
    model = Network(width, layers).to(run.device).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in run.steps():
        joined = next(batches).to(run.device, non_blocking=True)
        loss = functional.l1_loss(model(joined), joined.y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main(train)
